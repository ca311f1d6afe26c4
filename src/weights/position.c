/* A seal covers the record, so that damage is found. */
#include "weights/position.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json_tree.h"
#include "base/mem.h"
#include "codec/seal.h"
#include "tensor/safetensors.h"
#include "weights/own_dir.h"

#define FORMAT    "deltawire-replica/1"
#define MAX_BYTES (1u << 20)

/* ---- positions ---- */

dw_position dw_position_of(const dw_commit_record *commit)
{
    dw_position p = {.version = commit->version, .state = commit->state};
    memcpy(p.stream, commit->stream, sizeof p.stream);
    memcpy(p.commit_sha256, commit->seal.sha256, sizeof p.commit_sha256);
    return p;
}

bool dw_position_same(const dw_position *a, const dw_position *b)
{
    return a->version == b->version && a->state == b->state &&
           strcmp(a->stream, b->stream) == 0 &&
           memcmp(a->commit_sha256, b->commit_sha256, sizeof a->commit_sha256) == 0;
}

/* ---- writing ---- */

static void write_follows(dw_writer *w, const dw_position *p)
{
    if (p->follows[0])
        dw_write_format(w, ",\"follows\":\"%s\"", p->follows);
}

static void write_position(dw_writer *w, const dw_position *p)
{
    char sha256[DW_SHA256_TEXT];
    dw_hex_encode(sha256, p->commit_sha256, DW_SHA256_BYTES);
    dw_write_format(
        w, "{\"stream\":\"%s\",\"version\":%" PRIu64 ",\"commit_sha256\":\"%s\",",
        p->stream, p->version, sha256);
    dw_write_format(w, "\"state\":\"%016" PRIx64 "\"", p->state);
    write_follows(w, p);
    dw_write_u8(w, '}');
}

dw_status dw_position_write(const dw_position *at, const dw_position *next,
                            const char *dir, dw_error *err)
{
    return dw_position_write_patch(at, next, &(dw_patch_seal){0}, dir, err);
}

dw_status dw_position_write_patch(const dw_position *at, const dw_position *next,
                                  const dw_patch_seal *patch, const char *dir,
                                  dw_error *err)
{
    dw_writer w = {0};
    dw_status status = dw_own_dir_make(dir, err);
    if (status != DW_OK)
        return status;
    dw_write_text(&w, "{\"format\":\"" FORMAT "\"");
    /* the version is at the top level, where people and scripts look for it */
    if (at->version != DW_NO_VERSION) {
        char sha256[DW_SHA256_TEXT];
        dw_hex_encode(sha256, at->commit_sha256, DW_SHA256_BYTES);
        dw_write_format(&w, ",\"stream\":\"%s\",\"version\":%" PRIu64, at->stream,
                        at->version);
        dw_write_format(&w, ",\"commit_sha256\":\"%s\",\"state\":\"%016" PRIx64 "\"",
                        sha256, at->state);
        write_follows(&w, at);
    }
    if (next && next->version != DW_NO_VERSION) {
        dw_write_text(&w, ",\"next\":");
        write_position(&w, next);
    }
    if (patch->n_bytes > 0)
        dw_write_format(&w,
                        ",\"patch\":{\"bytes\":%" PRIu64 ",\"xxh64\":\"%016" PRIx64 "\"}",
                        patch->n_bytes, patch->hash);
    return dw_seal_write(&w, dir, DW_POSITION_NAME, err);
}

/* ---- reading ---- */

static bool read_position(dw_position *out, const dw_json *object)
{
    const char *stream = dw_json_string(dw_json_get(object, "stream"));
    const char *sha256 = dw_json_string(dw_json_get(object, "commit_sha256"));
    const char *state = dw_json_string(dw_json_get(object, "state"));
    const char *follows = dw_json_string(dw_json_get(object, "follows"));
    uint8_t id[(DW_ID_TEXT - 1) / 2];
    if (!stream || !sha256 || !state ||
        !dw_json_unsigned(dw_json_get(object, "version"), &out->version) ||
        !dw_hex_decode(id, sizeof id, stream) ||
        !dw_hex_decode(out->commit_sha256, DW_SHA256_BYTES, sha256) ||
        strlen(state) != 16 || !dw_parse_number(state, 16, &out->state))
        return false;
    memcpy(out->stream, stream, sizeof out->stream);
    if (follows && dw_hex_decode(id, sizeof id, follows))
        memcpy(out->follows, follows, sizeof out->follows);
    return true;
}

static bool read_patch(dw_patch_seal *out, const dw_json *object)
{
    const char *hash = dw_json_string(dw_json_get(object, "xxh64"));
    return hash && strlen(hash) == 16 && dw_parse_number(hash, 16, &out->hash) &&
           dw_json_unsigned(dw_json_get(object, "bytes"), &out->n_bytes) &&
           out->n_bytes > 0;
}

/* Reads the members. False if they are not those of a record. */
static bool read_record(dw_position *at, dw_position *next, dw_patch_seal *patch,
                        const dw_json *root)
{
    const char *format = dw_json_string(dw_json_get(root, "format"));
    const dw_json *coming = dw_json_get(root, "next");
    const dw_json *seal = dw_json_get(root, "patch");
    return format && strcmp(format, FORMAT) == 0 &&
           (!dw_json_get(root, "version") || read_position(at, root)) &&
           (!coming || read_position(next, coming)) && (!seal || read_patch(patch, seal));
}

static dw_status parse_state(dw_position *at, dw_position *next, dw_patch_seal *patch,
                             dw_record_kind *kind, const uint8_t *bytes, size_t n_bytes,
                             const char *path, dw_error *err)
{
    dw_json *root = NULL;
    *kind = DW_RECORD_DAMAGED;
    dw_status status = dw_json_read(&root, bytes, n_bytes, "record", path, err);
    if (status != DW_OK)
        return status == DW_NO_MEMORY ? status : DW_OK;
    const bool is_sealed = dw_seal_good(bytes, n_bytes, NULL, 0);
    const bool is_good = read_record(at, next, patch, root);
    if (is_sealed && !is_good)
        status = dw_fail(err, DW_UNSUPPORTED, path,
                         "this version of deltawire does not know this record of a "
                         "replica. Use the version that wrote it, or another directory");
    else if (is_good && is_sealed)
        *kind = DW_RECORD_SEALED;
    if (*kind == DW_RECORD_DAMAGED) {
        *at = *next = dw_nowhere;
        *patch = (dw_patch_seal){0};
    }
    dw_json_free(root);
    return status;
}

static dw_status read_all(dw_position *at, dw_position *next, dw_patch_seal *patch,
                          dw_record_kind *kind, const char *dir, dw_error *err)
{
    *kind = DW_RECORD_NONE;
    *at = *next = dw_nowhere;
    *patch = (dw_patch_seal){0};
    char *path = dw_join_path(dir, DW_POSITION_NAME);
    if (!path)
        return dw_fail_memory(err, dir);
    bool exists = false;
    uint8_t *bytes = NULL;
    size_t n_bytes;
    dw_status status = dw_own_dir_check(dir, err);
    if (status == DW_OK)
        status = dw_file_exists(path, &exists, err);
    if (status == DW_OK && exists)
        status = dw_read_file(&bytes, &n_bytes, path, MAX_BYTES, err);
    if (status == DW_CORRUPT) { /* too long for a record */
        *kind = DW_RECORD_DAMAGED;
        status = DW_OK;
    } else if (status == DW_OK && exists) {
        status = parse_state(at, next, patch, kind, bytes, n_bytes, path, err);
    }
    dw_free(bytes);
    dw_free(path);
    return status;
}

dw_status dw_position_read(dw_position *at, dw_position *next, dw_record_kind *kind,
                           const char *dir, dw_error *err)
{
    dw_patch_seal patch;
    return read_all(at, next, &patch, kind, dir, err);
}

dw_status dw_position_read_patch(dw_patch_seal *patch, dw_record_kind *kind,
                                 const char *dir, dw_error *err)
{
    dw_position at, next;
    return read_all(&at, &next, patch, kind, dir, err);
}
