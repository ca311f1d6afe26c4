/* Parsing what is never signed, for nothing depends on it: latest, floor, follower. */
#include "sync/record.h"

#include "base/mem.h"
#include "sync/record_seal.h"

#define MAX_STATUS 32

/* ---- latest ---- */

static bool read_edge(dw_edge *out, const json_t *entry, uint64_t newest)
{
    if (json_array_size(entry) != 4)
        return false;
    const json_t *from = json_array_get(entry, 0);
    out->from = DW_NO_VERSION;
    bool is_anchor = json_is_integer(from) && json_integer_value(from) == -1;
    return (is_anchor || dw_json_number(&out->from, from)) &&
           dw_json_number(&out->to, json_array_get(entry, 1)) &&
           dw_json_number(&out->n_bytes, json_array_get(entry, 2)) &&
           dw_json_number(&out->n_objects, json_array_get(entry, 3)) &&
           (is_anchor || out->from < out->to) && out->to <= newest;
}

dw_status dw_latest_record_parse(dw_latest_record *out, const void *bytes, size_t n,
                                 const char *where, dw_error *err)
{
    *out = (dw_latest_record){0};
    dw_fields f;
    dw_status status = dw_record_open(&f, out->stream, NULL, "latest", DW_LATEST_BYTES,
                                      bytes, n, where, err);
    if (status != DW_OK)
        return status;
    out->version = dw_field_number(&f, "version");
    const json_t *edges = dw_field_array(&f, "edges");
    size_t n_edges = json_array_size(edges);
    if (n_edges > DW_MAX_EDGES)
        dw_fields_fail(&f, DW_CORRUPT, "edges", "has %zu entries, over the limit of %d",
                       n_edges, DW_MAX_EDGES);
    if (f.status == DW_OK) {
        out->edges = dw_alloc_array(n_edges, sizeof *out->edges);
        if (!out->edges)
            dw_fields_fail_memory(&f);
    }
    for (size_t i = 0; i < n_edges && f.status == DW_OK; i++)
        if (!read_edge(&out->edges[i], json_array_get(edges, i), out->version))
            dw_fields_fail(&f, DW_CORRUPT, "edges",
                           "has at %zu no [from, to, bytes, objects] with from < to <= "
                           "version",
                           i);
    out->n_edges = n_edges;
    json_decref(f.object);
    if (f.status != DW_OK)
        dw_latest_record_release(out);
    return f.status;
}

void dw_latest_record_release(dw_latest_record *record)
{
    dw_free(record->edges);
    *record = (dw_latest_record){0};
}

/* ---- floor ---- */

dw_status dw_floor_record_parse(dw_floor_record *out, const void *bytes, size_t n,
                                const char *where, dw_error *err)
{
    *out = (dw_floor_record){0};
    dw_fields f;
    dw_status status = dw_record_open(&f, out->stream, NULL, "floor", DW_SMALL_BYTES,
                                      bytes, n, where, err);
    if (status != DW_OK)
        return status;
    out->version = dw_field_number(&f, "version");
    json_decref(f.object);
    return f.status;
}

/* ---- follower ---- */

static bool is_word(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-_";
    return text[0] && text[strspn(text, letters)] == '\0';
}

dw_status dw_follower_record_parse(dw_follower_record *out, const void *bytes, size_t n,
                                   const char *where, dw_error *err)
{
    *out = (dw_follower_record){0};
    dw_fields f;
    dw_status status = dw_record_open(&f, out->stream, NULL, "follower", DW_SMALL_BYTES,
                                      bytes, n, where, err);
    if (status != DW_OK)
        return status;
    const char *id = dw_field_text(&f, "id", sizeof out->id - 1);
    if (!dw_follower_id_valid(id))
        dw_fields_fail(&f, DW_CORRUPT, "id",
                       "is not 1 to 64 of A-Z a-z 0-9 _ . -, no dot first");
    memcpy(out->id, id, strlen(id) + 1);
    out->version = dw_field_version(&f, "version");
    out->host = dw_field_note(&f, "host");
    if (!is_word(dw_field_text(&f, "status", MAX_STATUS)))
        dw_fields_fail(&f, DW_CORRUPT, "status", "is not a word of a-z 0-9 - _");
    out->status = dw_field_note(&f, "status");
    out->message = dw_field_note(&f, "message");
    dw_field_time(&f, out->time, "time");
    json_decref(f.object);
    if (f.status != DW_OK)
        dw_follower_record_release(out);
    return f.status;
}

void dw_follower_record_release(dw_follower_record *record)
{
    dw_free(record->host);
    dw_free(record->status);
    dw_free(record->message);
    *record = (dw_follower_record){0};
}
