/* slime's index of a version:
 *
 *     {"metadata": {"version": "000007", "base_version": "000006",
 *                   "delta_encoding": "xor", "compression_format": "zstd",
 *                   "checksum_format": "xxh3-128"},
 *      "weight_map": {TENSOR: FILE}}
 *
 * Without delta_encoding it is that of a checkpoint, whole.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "compat/peer.h"
#include "tensor/safetensors.h"

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static dw_status read_delta(dw_peer_record *r, const json_t *meta, const char *where,
                            dw_error *err)
{
    const char *base = text_of(meta, "base_version");
    const char *encoding = text_of(meta, "delta_encoding");
    const char *compression = text_of(meta, "compression_format");
    const char *checksum = text_of(meta, "checksum_format");
    if (!encoding || !base || strlen(base) > 15 ||
        !dw_parse_number(base, 10, &r->named_base))
        return dw_fail(err, DW_CORRUPT, where,
                       "a delta must name its encoding and the version it starts from");
    dw_peer_set_word(r->encoding, encoding);
    if (strcmp(encoding, "xor") == 0)
        r->packing = DW_PACKING_XOR;
    else if (strcmp(encoding, "overwrite") == 0)
        r->packing = DW_PACKING_OVERWRITE;
    else
        dw_peer_refuse(r,
                       "its delta_encoding '%.40s' is not supported; 'xor' and "
                       "'overwrite' are",
                       encoding);
    if (!compression || strcmp(compression, "zstd") != 0)
        dw_peer_refuse(r, "its compression_format '%.40s' is not supported; 'zstd' is",
                       compression ? compression : "");
    if (checksum)
        dw_peer_set_checksum(r, checksum);
    return DW_OK;
}

static dw_status read_metadata(dw_peer_record *r, const json_t *meta, const char *where,
                               dw_error *err)
{
    const char *told = text_of(meta, "version");
    uint64_t version;
    if (told && (!dw_parse_number(told, 10, &version) || version != r->version))
        return dw_fail(err, DW_CORRUPT, where,
                       "the directory is named version %" PRIu64 ", but its index says "
                       "that it is %.40s",
                       r->version, told);
    if (json_object_get(meta, "delta_encoding"))
        return read_delta(r, meta, where, err);
    if (json_object_get(meta, "base_version") || json_object_get(meta, "checksum_format"))
        return dw_fail(err, DW_CORRUPT, where,
                       "the index names a base or checksums, as a delta's, but no "
                       "delta_encoding");
    r->is_whole = true;
    dw_peer_set_word(r->encoding, "whole");
    return DW_OK;
}

static dw_status read_map(dw_peer_record *r, json_t *map, const char *where,
                          dw_error *err)
{
    r->entries = dw_alloc_zeroed(json_object_size(map), sizeof *r->entries);
    if (!r->entries)
        return dw_fail_memory(err, where);
    for (void *it = json_object_iter(map); it; it = json_object_iter_next(map, it)) {
        const char *name = json_object_iter_key(it);
        const char *file = json_string_value(json_object_iter_value(it));
        if (!file)
            return dw_fail_tensor(err, DW_CORRUPT, where, name,
                                  "weight_map does not name its file");
        r->entries[r->n_entries++] = (dw_peer_entry){.name = name,
                                                     .file = file,
                                                     .key = name,
                                                     .n_bytes = UINT64_MAX,
                                                     .n_packed = UINT64_MAX};
    }
    char dir[32];
    snprintf(dir, sizeof dir, "weight_v%06" PRIu64, r->version);
    return dw_peer_list_files(r, dir, where, err);
}

dw_status dw_peer_read_slime(dw_peer_record *r, const void *text, size_t n_bytes,
                             const char *where, dw_error *err)
{
    dw_status status = dw_json_parse_object(&r->root, text, n_bytes, "index", where, err);
    if (status != DW_OK)
        return status;
    json_t *map = json_object_get(r->root, "weight_map");
    if (!json_is_object(map))
        return dw_fail(err, DW_CORRUPT, where, "the index has no weight_map");
    status = read_metadata(r, json_object_get(r->root, "metadata"), where, err);
    if (status == DW_OK && r->is_whole && json_object_size(map) == 0)
        status = dw_fail(err, DW_CORRUPT, where, "a whole checkpoint of no tensors");
    return status == DW_OK ? read_map(r, map, where, err) : status;
}
