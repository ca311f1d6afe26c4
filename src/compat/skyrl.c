/* SkyRL's manifest of a version:
 *
 *     {"version": 7, "base_version": 6,
 *      "tensors": [{"name", "dtype", "shape", "uncompressed_num_bytes",
 *                   "compressed_num_bytes", "payload_file", "payload_key",
 *                   "checksum", "checksum_algorithm": "xxh3-128"}],
 *      "payload_files": [...], "totals": {...}}
 *
 * All are XOR in zstd. Types and totals are ignored: the bytes of a tensor and their
 * checksum are enough.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/json_tree.h"
#include "base/mem.h"
#include "compat/peer.h"

static bool number_of(const dw_json *object, const char *key, uint64_t *out)
{
    return dw_json_unsigned(dw_json_get(object, key), out);
}

static dw_status read_tensor(dw_peer_record *r, const dw_json *t, const char *where,
                             dw_error *err)
{
    const char *algorithm = dw_json_string(dw_json_get(t, "checksum_algorithm"));
    dw_peer_entry e = {
        .name = dw_json_string(dw_json_get(t, "name")),
        .file = dw_json_string(dw_json_get(t, "payload_file")),
        .key = dw_json_string(dw_json_get(t, "payload_key")),
        .checksum = dw_json_string(dw_json_get(t, "checksum")),
        .shape = dw_json_get(t, "shape"),
    };
    if (!e.name || !e.file || !e.key || !dw_json_is_array(e.shape) ||
        !number_of(t, "uncompressed_num_bytes", &e.n_bytes) ||
        !number_of(t, "compressed_num_bytes", &e.n_packed))
        return dw_fail(err, DW_CORRUPT, where,
                       "tensor %zu of the manifest lacks its name, shape, sizes or "
                       "payload",
                       r->n_entries);
    if (!algorithm != !e.checksum)
        return dw_fail_tensor(err, DW_CORRUPT, where, e.name,
                              "its checksum and what kind that is come together");
    if (algorithm && r->checksum_name[0] && strcmp(algorithm, r->checksum_name) != 0)
        dw_peer_refuse(r, "it has checksums of more than one kind");
    else if (algorithm)
        dw_peer_set_checksum(r, algorithm);
    r->entries[r->n_entries++] = e;
    return DW_OK;
}

/* Either all tensors of a version have checksums, or none has. */
static dw_status check_checksums(const dw_peer_record *r, const char *where,
                                 dw_error *err)
{
    for (size_t i = 0; r->checksum_name[0] && i < r->n_entries; i++)
        if (!r->entries[i].checksum)
            return dw_fail_tensor(err, DW_CORRUPT, where, r->entries[i].name,
                                  "it has no checksum, as the others have");
    return DW_OK;
}

dw_status dw_peer_read_skyrl(dw_peer_record *r, const void *text, size_t n_bytes,
                             const char *where, dw_error *err)
{
    dw_status status = dw_json_read(&r->root, text, n_bytes, "manifest", where, err);
    if (status != DW_OK)
        return status;
    uint64_t version;
    const dw_json *tensors = dw_json_get(r->root, "tensors");
    if (!number_of(r->root, "version", &version) || !dw_json_is_array(tensors) ||
        !number_of(r->root, "base_version", &r->named_base))
        return dw_fail(err, DW_CORRUPT, where,
                       "the manifest lacks its version, base_version or tensors");
    if (version != r->version)
        return dw_fail(err, DW_CORRUPT, where,
                       "the directory is named version %" PRIu64 ", but its manifest "
                       "says that it is %" PRIu64,
                       r->version, version);
    dw_peer_set_word(r->encoding, "xor");
    r->packing = DW_PACKING_XOR;
    const size_t n = dw_json_size(tensors);
    r->entries = dw_alloc_zeroed(n, sizeof *r->entries);
    if (!r->entries)
        return dw_fail_memory(err, where);
    for (const dw_json *it = dw_json_first(tensors); status == DW_OK && it;
         it = dw_json_next(tensors, it))
        status = read_tensor(r, it, where, err);
    if (status == DW_OK)
        status = check_checksums(r, where, err);
    char dir[32];
    snprintf(dir, sizeof dir, "delta-%08" PRIu64, r->version);
    return status == DW_OK ? dw_peer_list_files(r, dir, where, err) : status;
}
