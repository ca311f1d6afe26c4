#include "compat/payload.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/hash.h"
#include "stream/transfer.h"
#include "tensor/tensor_list.h"

#define LIST_HEAD 4 /* bytes: the number of positions */
#define LIST_ITEM 5 /* a position and its byte */

/* ---- checksums ---- */

bool dw_checksum_from_name(dw_checksum *out, const char *name)
{
    if (strcmp(name, "xxh3-128") == 0)
        *out = DW_CHECKSUM_XXH3_128;
    else if (strcmp(name, "adler32") == 0)
        *out = DW_CHECKSUM_ADLER32;
    else
        return false;
    return true;
}

void dw_checksum_of(char out[DW_CHECKSUM_TEXT], dw_checksum kind, const void *bytes,
                    uint64_t n_bytes)
{
    out[0] = '\0';
    if (kind == DW_CHECKSUM_XXH3_128) {
        XXH128_canonical_t digest;
        XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes, (size_t)n_bytes));
        dw_hex_encode(out, digest.digest, sizeof digest.digest);
    } else if (kind == DW_CHECKSUM_ADLER32) {
        /* for no bytes zlib may get a NULL, and then returns the initial value: 1 */
        snprintf(out, DW_CHECKSUM_TEXT, "%08lx",
                 adler32_z(1, bytes, (z_size_t)n_bytes) & 0xffffffff);
    }
}

static dw_status check(const void *bytes, const dw_tensor *old, const dw_payload *p,
                       dw_error *err)
{
    char found[DW_CHECKSUM_TEXT];
    if (p->checksum == DW_CHECKSUM_NONE)
        return DW_OK;
    dw_checksum_of(found, p->checksum, bytes, old->n_bytes);
    if (p->checksum_text && strcasecmp(found, p->checksum_text) == 0)
        return DW_OK;
    return dw_fail_tensor(err, DW_CORRUPT, p->where, old->name,
                          "the new weights have the checksum %s, not %.64s: the file is "
                          "damaged, or the weights it was applied to are not the version "
                          "it starts from",
                          found, p->checksum_text ? p->checksum_text : "(none)");
}

/* ---- frames ---- */

static dw_status check_frame(const dw_payload *p, const char *name, dw_error *err)
{
    size_t n = ZSTD_findFrameCompressedSize(p->packed, p->n_packed);
    if (ZSTD_isError(n) || n != p->n_packed)
        return dw_fail_tensor(err, DW_CORRUPT, p->where, name,
                              "its %zu bytes are not one zstd frame", p->n_packed);
    return DW_OK;
}

/* Unpacks at most N_ROOM bytes; sets *N. */
static dw_status unpack(void *into, size_t n_room, size_t *n, const dw_payload *p,
                        const char *name, dw_error *err)
{
    dw_status status = check_frame(p, name, err);
    if (status != DW_OK)
        return status;
    /* a frame may declare more than it holds: only the room limits it */
    uint8_t none;
    *n = ZSTD_decompress(n_room > 0 ? into : &none, n_room, p->packed, p->n_packed);
    return ZSTD_isError(*n)
               ? dw_fail_tensor(err, DW_CORRUPT, p->where, name,
                                "the zstd frame does not unpack to what fits the tensor: "
                                "%s",
                                ZSTD_getErrorName(*n))
               : DW_OK;
}

/* ---- contents of frames ---- */

static dw_status decode_xor(uint8_t *into, const dw_tensor *old, const dw_payload *p,
                            dw_error *err)
{
    size_t n;
    dw_status status = unpack(into, (size_t)old->n_bytes, &n, p, old->name, err);
    if (status != DW_OK)
        return status;
    if (n != old->n_bytes)
        return dw_fail_tensor(err, DW_CORRUPT, p->where, old->name,
                              "it unpacks to %zu bytes, the tensor has %" PRIu64, n,
                              old->n_bytes);
    const uint8_t *before = old->data;
    for (size_t i = 0; i < n; i++)
        into[i] ^= before[i];
    return DW_OK;
}

static dw_status store_list(uint8_t *into, const dw_tensor *old, const uint8_t *list,
                            size_t n_list, const dw_payload *p, dw_error *err)
{
    uint64_t n = n_list >= LIST_HEAD ? dw_load32(list) : 0;
    if (n_list != LIST_HEAD + n * LIST_ITEM)
        return dw_fail_tensor(err, DW_CORRUPT, p->where, old->name,
                              "a list of %" PRIu64 " positions does not have %zu bytes",
                              n, n_list);
    const uint8_t *positions = list + LIST_HEAD, *bytes = positions + 4 * n;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t at = dw_load32(positions + 4 * i);
        if (at >= old->n_bytes)
            return dw_fail_tensor(err, DW_CORRUPT, p->where, old->name,
                                  "position %" PRIu32 " is beyond its %" PRIu64 " bytes",
                                  at, old->n_bytes);
        into[at] = bytes[i];
    }
    return DW_OK;
}

static dw_status decode_list(uint8_t *into, const dw_tensor *old, const dw_payload *p,
                             dw_error *err)
{
    /* there are at most as many positions as bytes; a frame that declares its size needs
     * only that */
    uint64_t n_room = old->n_bytes < UINT32_MAX
                          ? LIST_HEAD + LIST_ITEM * old->n_bytes
                          : LIST_HEAD + LIST_ITEM * (uint64_t)UINT32_MAX;
    unsigned long long n_stated = ZSTD_getFrameContentSize(p->packed, p->n_packed);
    if (n_stated < n_room)
        n_room = n_stated;
    dw_blob list;
    size_t n;
    dw_status status = dw_blob_make(&list, n_room, p->spool_dir, err);
    if (status != DW_OK)
        return status;
    status = unpack(list.bytes, (size_t)n_room, &n, p, old->name, err);
    if (status == DW_OK) {
        if (old->n_bytes > 0)
            memcpy(into, old->data, (size_t)old->n_bytes);
        status = store_list(into, old, list.bytes, n, p, err);
    }
    dw_blob_release(&list);
    return status;
}

dw_status dw_payload_decode(void *into, const dw_tensor *old_, const dw_payload *p,
                            dw_error *err)
{
    dw_loan loan = {0};
    dw_tensor old;
    dw_status status = dw_tensor_read(&old, &loan, old_, err);
    if (status == DW_OK)
        status = p->packing == DW_PACKING_OVERWRITE ? decode_list(into, &old, p, err)
                                                    : decode_xor(into, &old, p, err);
    dw_loan_release(&loan);
    return status == DW_OK ? check(into, old_, p, err) : status;
}
