/* Parsing what is never signed, for nothing depends on it: latest, floor, follower. */
#include "stream/record.h"

#include "base/mem.h"
#include "stream/record_seal.h"

#define MAX_STATUS 32

/* ---- latest ---- */

static bool read_edge(dw_edge *out, const dw_json *entry, uint64_t newest)
{
    int64_t numbers[4];
    size_t n = 0;
    if (!dw_json_is_array(entry))
        return false;
    for (const dw_json *it = dw_json_first(entry); it; it = dw_json_next(entry, it)) {
        int64_t least = n == 0 ? -1 : 0;
        if (n == 4 || !dw_json_integer(it, &numbers[n]) || numbers[n] < least ||
            numbers[n] >= (int64_t)DW_NUMBER_END)
            return false;
        n++;
    }
    if (n != 4)
        return false;
    bool is_anchor = numbers[0] == -1;
    out->from = is_anchor ? DW_NO_VERSION : (uint64_t)numbers[0];
    out->to = (uint64_t)numbers[1];
    out->n_bytes = (uint64_t)numbers[2];
    out->n_objects = (uint64_t)numbers[3];
    return (is_anchor || out->from < out->to) && out->to <= newest;
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
    const dw_json *edges = dw_field_array(&f, "edges");
    size_t n_edges = dw_json_size(edges);
    if (n_edges > DW_MAX_EDGES)
        dw_fields_fail(&f, DW_CORRUPT, "edges", "has %zu entries, over the limit of %d",
                       n_edges, DW_MAX_EDGES);
    if (f.status == DW_OK) {
        out->edges = dw_alloc_array(n_edges, sizeof *out->edges);
        if (!out->edges)
            dw_fields_fail_memory(&f);
    }
    const dw_json *item = dw_json_first(edges);
    for (size_t i = 0; item && f.status == DW_OK; i++, item = dw_json_next(edges, item))
        if (!read_edge(&out->edges[i], item, out->version))
            dw_fields_fail(&f, DW_CORRUPT, "edges",
                           "has at %zu no [from, to, bytes, objects] with from < to <= "
                           "version",
                           i);
    out->n_edges = n_edges;
    dw_fields_release(&f);
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
    dw_fields_release(&f);
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
    dw_field_times(&f, &out->times, dw_follow_moment_name);
    dw_fields_release(&f);
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
