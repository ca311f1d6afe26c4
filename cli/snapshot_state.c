#include "snapshot_state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"

#define MAX_RECORD_BYTES (1 << 20)

static dw_status fail_record(const char *path, dw_error *err)
{
    return dw_fail(err, DW_CORRUPT, path,
                   "not a record of a version: pull into a new directory");
}

static dw_status take(cli_snapshot_state *out, const json_t *record, const char *path,
                      dw_error *err)
{
    const char *stream = json_string_value(json_object_get(record, "stream"));
    const char *state = json_string_value(json_object_get(record, "state"));
    const json_t *version = json_object_get(record, "version");
    uint8_t id[16], digest[8];
    if (!stream || !state || !dw_hex_decode(id, sizeof id, stream) ||
        !dw_hex_decode(digest, sizeof digest, state) || !json_is_integer(version) ||
        json_integer_value(version) < 0)
        return fail_record(path, err);
    out->present = true;
    memcpy(out->stream, stream, sizeof out->stream);
    out->version = (uint64_t)json_integer_value(version);
    out->state = strtoull(state, NULL, 16);
    return DW_OK;
}

static dw_status read_record(cli_snapshot_state *out, const char *path, dw_error *err)
{
    uint8_t *text;
    size_t n_bytes;
    json_t *record = NULL;
    dw_status status = dw_read_file(&text, &n_bytes, path, MAX_RECORD_BYTES, err);
    if (status == DW_NOT_FOUND)
        return DW_OK;
    if (status == DW_OK)
        status = dw_json_parse_object(&record, text, n_bytes, "record", path, err);
    if (status == DW_OK)
        status = take(out, record, path, err);
    else if (status == DW_CORRUPT)
        status = fail_record(path, err);
    json_decref(record);
    dw_free(text);
    return status;
}

dw_status cli_snapshot_state_read(cli_snapshot_state *out, const char *path,
                                  dw_error *err)
{
    *out = (cli_snapshot_state){0};
    char *record = dw_join_path(path, CLI_SNAPSHOT_STATE_NAME);
    if (!record)
        return dw_fail_memory(err, path);
    dw_status status = read_record(out, record, err);
    dw_free(record);
    return status;
}

/* ---- two copies ---- */

bool cli_copies_find(char *out[2], const char *dir)
{
    static const char *const names[] = {"copy-0", "copy-1"};
    char target[sizeof "copy-0"] = "";
    char *link = dw_join_path(dir, "current");
    ssize_t n = link ? readlink(link, target, sizeof target) : -1;
    dw_free(link);
    if (n != (ssize_t)sizeof target - 1)
        return false;
    for (int i = 0; i < 2; i++) {
        if (memcmp(target, names[i], (size_t)n) != 0)
            continue;
        out[0] = dw_join_path(dir, names[i]);
        out[1] = dw_join_path(dir, names[1 - i]);
        if (out[0] && out[1])
            return true;
        dw_free(out[0]);
        dw_free(out[1]);
    }
    return false;
}
