#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "sync/replica.h"
#include "tensor/safetensors.h"

#define FORMAT "deltawire-replica/1"

/* ---- writing ---- */

static void write_position(dw_writer *w, const dw_position *p)
{
    char sha256[DW_SHA256_TEXT];
    dw_hex_encode(sha256, p->commit_sha256, DW_SHA256_BYTES);
    dw_write_format(
        w, "{\"stream\":\"%s\",\"version\":%" PRIu64 ",\"commit_sha256\":\"%s\",",
        p->stream, p->version, sha256);
    dw_write_format(w, "\"state\":\"%016" PRIx64 "\"}", p->state);
}

dw_status dw_replica_state_write(const dw_position *at, const dw_position *next,
                                 const char *dir, dw_error *err)
{
    dw_writer w = {0};
    dw_write_text(&w, "{\"format\":\"" FORMAT "\"");
    /* the version is told at the top, where people and scripts look for it */
    if (at->version != DW_NO_VERSION) {
        char sha256[DW_SHA256_TEXT];
        dw_hex_encode(sha256, at->commit_sha256, DW_SHA256_BYTES);
        dw_write_format(&w, ",\"stream\":\"%s\",\"version\":%" PRIu64, at->stream,
                        at->version);
        dw_write_format(&w, ",\"commit_sha256\":\"%s\",\"state\":\"%016" PRIx64 "\"",
                        sha256, at->state);
    }
    if (next && next->version != DW_NO_VERSION) {
        dw_write_text(&w, ",\"next\":");
        write_position(&w, next);
    }
    dw_write_text(&w, "}\n");
    char *path = dw_join_path(dir, DW_REPLICA_STATE);
    dw_status status = w.failed || !path ? dw_fail_memory(err, dir)
                                         : dw_write_file(path, w.bytes, w.n_bytes, err);
    dw_free(path);
    dw_writer_release(&w);
    return status;
}

/* ---- reading ---- */

static bool read_position(dw_position *out, const json_t *object)
{
    const char *stream = json_string_value(json_object_get(object, "stream"));
    const char *sha256 = json_string_value(json_object_get(object, "commit_sha256"));
    const char *state = json_string_value(json_object_get(object, "state"));
    const json_t *version = json_object_get(object, "version");
    uint8_t id[(DW_ID_TEXT - 1) / 2];
    if (!stream || !sha256 || !state || !json_is_integer(version) ||
        json_integer_value(version) < 0 || !dw_hex_decode(id, sizeof id, stream) ||
        !dw_hex_decode(out->commit_sha256, DW_SHA256_BYTES, sha256) ||
        strlen(state) != 16 || !dw_parse_number(state, 16, &out->state))
        return false;
    memcpy(out->stream, stream, sizeof out->stream);
    out->version = (uint64_t)json_integer_value(version);
    return true;
}

static dw_status parse_state(dw_position *at, dw_position *next, const dw_map *map,
                             const char *path, dw_error *err)
{
    json_t *root;
    dw_status status =
        dw_json_parse_object(&root, map->bytes, map->n_bytes, "record", path, err);
    if (status != DW_OK)
        return status;
    const char *format = json_string_value(json_object_get(root, "format"));
    const json_t *coming = json_object_get(root, "next");
    bool good = format && strcmp(format, FORMAT) == 0;
    if (good && json_object_get(root, "version"))
        good = read_position(at, root);
    if (good && coming)
        good = read_position(next, coming);
    json_decref(root);
    return good ? DW_OK
                : dw_fail(
                      err, DW_CORRUPT, path,
                      "this is no record of a replica. Remove the file: the weights are "
                      "then looked at anew");
}

dw_status dw_replica_state_read(dw_position *at, dw_position *next, bool *exists,
                                const char *dir, dw_error *err)
{
    *exists = false;
    *at = *next = (dw_position){.version = DW_NO_VERSION};
    char *path = dw_join_path(dir, DW_REPLICA_STATE);
    if (!path)
        return dw_fail_memory(err, dir);
    dw_map map = {.fd = -1};
    dw_status status = dw_file_exists(path, exists, err);
    if (status == DW_OK && *exists)
        status = dw_map_open(&map, path, false, err);
    if (status == DW_OK && *exists) {
        if (map.n_bytes > 1u << 20)
            status = dw_fail(err, DW_CORRUPT, path, "the file is too long for a record");
        else
            status = parse_state(at, next, &map, path, err);
        dw_map_close(&map);
    }
    dw_free(path);
    return status;
}
