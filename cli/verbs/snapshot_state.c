#include "snapshot_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json_tree.h"
#include "base/mem.h"

#define MAX_RECORD_BYTES (16 << 20)

static dw_status fail_record(const char *path, dw_error *err)
{
    return dw_fail(err, DW_CORRUPT, path,
                   "not a record of a version: pull into a new directory");
}

/* The version and the state of a position. */
static bool take_position(uint64_t *version, dw_digest *state, const dw_json *position)
{
    const char *text = dw_json_string(dw_json_get(position, "state"));
    uint8_t digest[8];
    if (!text || !dw_hex_decode(digest, sizeof digest, text) ||
        !dw_json_unsigned(dw_json_get(position, "version"), version))
        return false;
    *state = strtoull(text, NULL, 16);
    return true;
}

static dw_status take(cli_snapshot_state *out, const dw_json *record, const char *path,
                      dw_error *err)
{
    const char *stream = dw_json_string(dw_json_get(record, "stream"));
    uint8_t id[16];
    if (!stream || !dw_hex_decode(id, sizeof id, stream) ||
        !take_position(&out->version, &out->state, record))
        return fail_record(path, err);
    out->present = true;
    memcpy(out->stream, stream, sizeof out->stream);
    out->has_next =
        take_position(&out->next_version, &out->next_state, dw_json_get(record, "next"));
    return DW_OK;
}

static dw_status read_record(cli_snapshot_state *out, const char *path, dw_error *err)
{
    uint8_t *text;
    size_t n_bytes;
    dw_json *record = NULL;
    dw_status status = dw_read_file(&text, &n_bytes, path, MAX_RECORD_BYTES, err);
    if (status == DW_NOT_FOUND)
        return DW_OK;
    if (status == DW_OK)
        status = dw_json_read(&record, text, n_bytes, "record", path, err);
    if (status == DW_OK)
        status = take(out, record, path, err);
    else if (status == DW_CORRUPT)
        status = fail_record(path, err);
    dw_json_free(record);
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
