/* slime's index of a version:
 *
 *     {"metadata": {"version": "000007", "base_version": "000006",
 *                   "delta_encoding": "xor", "compression_format": "zstd",
 *                   "checksum_format": "xxh3-128"},
 *      "weight_map": {TENSOR: FILE}}
 *
 * Without delta_encoding it is the index of a whole checkpoint.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/json_tree.h"
#include "base/mem.h"
#include "compat/peer_int.h"
#include "tensor/safetensors.h"

static const char *text_of(const dw_json *object, const char *key)
{
    return dw_json_string(dw_json_get(object, key));
}

static dw_status read_delta(dw_peer_record *r, const dw_json *meta, const char *where,
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

static dw_status read_metadata(dw_peer_record *r, const dw_json *meta, const char *where,
                               dw_error *err)
{
    const char *named = text_of(meta, "version");
    uint64_t version;
    if (named && (!dw_parse_number(named, 10, &version) || version != r->version))
        return dw_fail(err, DW_CORRUPT, where,
                       "the directory is named version %" PRIu64 ", but its index says "
                       "that it is %.40s",
                       r->version, named);
    if (dw_json_get(meta, "delta_encoding"))
        return read_delta(r, meta, where, err);
    if (dw_json_get(meta, "base_version") || dw_json_get(meta, "checksum_format"))
        return dw_fail(err, DW_CORRUPT, where,
                       "the index names a base or checksums, as a delta's, but no "
                       "delta_encoding");
    r->is_whole = true;
    return DW_OK;
}

static dw_status read_map(dw_peer_record *r, const dw_json *map, const char *where,
                          dw_error *err)
{
    r->entries = dw_alloc_zeroed(dw_json_size(map), sizeof *r->entries);
    if (!r->entries)
        return dw_fail_memory(err, where);
    for (const dw_json *k = dw_json_first(map); k; k = dw_json_next(map, k)) {
        const char *name = dw_json_string(k);
        const char *file = dw_json_string(dw_json_value(k));
        if (!file)
            return dw_fail_tensor(err, DW_CORRUPT, where, name,
                                  "weight_map does not name its file");
        r->entries[r->n_entries++] = (dw_peer_entry){.name = name, .file = file};
    }
    char dir[32];
    snprintf(dir, sizeof dir, "weight_v%06" PRIu64, r->version);
    return dw_peer_list_files(r, dir, where, err);
}

dw_status dw_peer_read_slime(dw_peer_record *r, const void *text, size_t n_bytes,
                             const char *where, dw_error *err)
{
    dw_status status = dw_json_read(&r->root, text, n_bytes, "index", where, err);
    if (status != DW_OK)
        return status;
    const dw_json *map = dw_json_get(r->root, "weight_map");
    if (!dw_json_is_object(map))
        return dw_fail(err, DW_CORRUPT, where, "the index has no weight_map");
    status = read_metadata(r, dw_json_get(r->root, "metadata"), where, err);
    if (status == DW_OK && r->is_whole && dw_json_size(map) == 0)
        status = dw_fail(err, DW_CORRUPT, where, "a whole checkpoint of no tensors");
    return status == DW_OK ? read_map(r, map, where, err) : status;
}
