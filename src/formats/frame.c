#include "formats/frame.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "kernel/kernel.h"
#include "stream/transfer.h"

#define LEVEL       1
#define CHUNK_BYTES (256u << 10)
#define CHUNK_ELEMS (64u << 10)
#define LIST_HEAD   4 /* bytes: the number of positions */
#define LIST_ITEM   5 /* a position and its byte */

/* ---- checksums ---- */

bool dw_checksum_of(char out[DW_CHECKSUM_TEXT], const char *kind, const void *bytes,
                    uint64_t n_bytes)
{
    out[0] = '\0';
    if (strcmp(kind, "xxh3-128") == 0) {
        XXH128_canonical_t digest;
        XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes, (size_t)n_bytes));
        dw_hex_encode(out, digest.digest, sizeof digest.digest);
    } else if (strcmp(kind, "adler32") == 0) {
        /* for no bytes zlib may get a NULL, and then returns the initial value: 1 */
        snprintf(out, DW_CHECKSUM_TEXT, "%08lx",
                 adler32_z(1, bytes, (z_size_t)n_bytes) & 0xffffffff);
    }
    return out[0] != '\0';
}

static dw_status check(const dw_tensor *t, const dw_frame *f, dw_error *err)
{
    char found[DW_CHECKSUM_TEXT];
    if (!f->checksum)
        return DW_OK;
    dw_checksum_of(found, f->checksum, t->data, t->n_bytes);
    if (f->checksum_text && strcasecmp(found, f->checksum_text) == 0)
        return DW_OK;
    return dw_fail_tensor(err, DW_CORRUPT, f->where, t->name,
                          "the new weights have the checksum %s, not %.64s: the file is "
                          "damaged, or the weights it was applied to are not the version "
                          "it starts from",
                          found, f->checksum_text ? f->checksum_text : "(none)");
}

/* ---- unpacking ---- */

/* Unpacks at most N_ROOM bytes; sets *N. */
static dw_status unpack(void *into, size_t n_room, size_t *n, const dw_frame *f,
                        const char *name, dw_error *err)
{
    uint8_t none;
    const size_t n_frame = ZSTD_findFrameCompressedSize(f->packed, f->n_packed);
    if (ZSTD_isError(n_frame) || n_frame != f->n_packed)
        return dw_fail_tensor(err, DW_CORRUPT, f->where, name,
                              "its %zu bytes are not one zstd frame", f->n_packed);
    /* a frame may declare more than it holds: only the room limits it */
    *n = ZSTD_decompress(n_room > 0 ? into : &none, n_room, f->packed, f->n_packed);
    return ZSTD_isError(*n)
               ? dw_fail_tensor(err, DW_CORRUPT, f->where, name,
                                "the zstd frame does not unpack to what fits the tensor: "
                                "%s",
                                ZSTD_getErrorName(*n))
               : DW_OK;
}

static dw_status store_xor(const dw_tensor *t, const uint8_t *mixed, size_t n,
                           const dw_frame *f, dw_error *err)
{
    if (n != t->n_bytes)
        return dw_fail_tensor(err, DW_CORRUPT, f->where, t->name,
                              "it unpacks to %zu bytes, the tensor has %" PRIu64, n,
                              t->n_bytes);
    uint8_t *into = t->data;
    for (size_t i = 0; i < n; i++)
        into[i] ^= mixed[i];
    return DW_OK;
}

static dw_status store_list(const dw_tensor *t, const uint8_t *list, size_t n_list,
                            const dw_frame *f, dw_error *err)
{
    const uint64_t n = n_list >= LIST_HEAD ? dw_load32(list) : 0;
    if (n_list != LIST_HEAD + n * LIST_ITEM)
        return dw_fail_tensor(err, DW_CORRUPT, f->where, t->name,
                              "a list of %" PRIu64 " positions does not have %zu bytes",
                              n, n_list);
    const uint8_t *positions = list + LIST_HEAD, *bytes = positions + 4 * n;
    uint8_t *into = t->data;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t at = dw_load32(positions + 4 * i);
        if (at >= t->n_bytes)
            return dw_fail_tensor(err, DW_CORRUPT, f->where, t->name,
                                  "position %" PRIu32 " is beyond its %" PRIu64 " bytes",
                                  at, t->n_bytes);
        into[at] = bytes[i];
    }
    return DW_OK;
}

/* The most bytes that a frame of this tensor can hold: there are at most as many
 * positions as bytes. One that declares its size needs only that. */
static uint64_t room_of(const dw_tensor *t, const dw_frame *f)
{
    const uint64_t n_most = t->n_bytes < UINT32_MAX ? t->n_bytes : UINT32_MAX;
    const uint64_t n_room = f->overwrite ? LIST_HEAD + LIST_ITEM * n_most : t->n_bytes;
    const unsigned long long n_stated = ZSTD_getFrameContentSize(f->packed, f->n_packed);
    return n_stated < n_room ? n_stated : n_room;
}

dw_status dw_frame_apply(const dw_tensor *t, const dw_frame *f, dw_error *err)
{
    const uint64_t n_room = room_of(t, f);
    size_t n = 0;
    dw_blob plain;
    dw_status status = dw_blob_make(&plain, n_room, f->spool_dir, err);
    if (status != DW_OK)
        return status;
    status = unpack(plain.bytes, (size_t)n_room, &n, f, t->name, err);
    if (status == DW_OK)
        status = f->overwrite ? store_list(t, plain.bytes, n, f, err)
                              : store_xor(t, plain.bytes, n, f, err);
    dw_blob_release(&plain);
    return status == DW_OK ? check(t, f, err) : status;
}

/* ---- packing ---- */

typedef struct packer {
    ZSTD_CCtx *zstd;
    dw_writer *out;
    uint8_t *room; /* two chunks */
    const char *name;
} packer;

static dw_status feed(const packer *p, const void *bytes, size_t n_bytes, bool is_last,
                      dw_error *err)
{
    const ZSTD_EndDirective end = is_last ? ZSTD_e_end : ZSTD_e_continue;
    ZSTD_inBuffer in = {bytes, n_bytes, 0};
    for (size_t left = 1; left > 0 && (in.pos < in.size || is_last);) {
        ZSTD_outBuffer to = {p->room, CHUNK_BYTES, 0};
        left = ZSTD_compressStream2(p->zstd, &to, &in, end);
        if (ZSTD_isError(left))
            return dw_fail_tensor(err, DW_NO_MEMORY, NULL, p->name, "zstd: %s",
                                  ZSTD_getErrorName(left));
        dw_write_bytes(p->out, p->room, to.pos);
        if (!is_last)
            left = 1;
    }
    return p->out->failed ? dw_fail_memory(err, NULL) : DW_OK;
}

static dw_status pack_xor(const packer *p, const dw_tensor *base, const dw_tensor *next,
                          dw_error *err)
{
    uint8_t *mixed = p->room + CHUNK_BYTES;
    const uint8_t *a = base->data, *b = next->data;
    dw_status status = DW_OK;
    ZSTD_CCtx_setPledgedSrcSize(p->zstd, next->n_bytes);
    for (uint64_t at = 0; status == DW_OK && at < next->n_bytes; at += CHUNK_BYTES) {
        const uint64_t left = next->n_bytes - at;
        const size_t n = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        for (size_t i = 0; i < n; i++)
            mixed[i] = a[at + i] ^ b[at + i];
        status = feed(p, mixed, n, n == left, err);
    }
    return status;
}

/* Lists the positions of changed bytes, and the new bytes, in one block. */
static dw_status list_bytes(dw_writer *out, const dw_tensor *base, const dw_tensor *next,
                            dw_error *err)
{
    uint32_t *found = dw_alloc_array(CHUNK_ELEMS + DW_LIST_SLACK, sizeof *found);
    if (!found)
        return dw_fail_memory(err, NULL);
    const uint8_t *a = base->data, *b = next->data;
    uint32_t n_found = 0;
    dw_writer values = {0};
    dw_write_bytes(out, &n_found, sizeof n_found);
    for (uint64_t at = 0; at < next->n_bytes && !out->failed && !values.failed;
         at += CHUNK_ELEMS) {
        const uint64_t left = next->n_bytes - at;
        const size_t n = dw_kernels_get()->diff[0](
            found, a + at, b + at, left < CHUNK_ELEMS ? (size_t)left : CHUNK_ELEMS);
        for (size_t i = 0; i < n; i++) {
            found[i] += (uint32_t)at;
            dw_write_u8(&values, b[found[i]]);
        }
        dw_write_bytes(out, found, n * sizeof *found);
        n_found += (uint32_t)n;
    }
    dw_write_bytes(out, values.bytes, values.n_bytes);
    const bool failed = out->failed || values.failed;
    if (!failed)
        dw_store32(out->bytes, n_found);
    dw_writer_release(&values);
    dw_free(found);
    return failed ? dw_fail_memory(err, NULL) : DW_OK;
}

static dw_status pack_list(const packer *p, const dw_tensor *base, const dw_tensor *next,
                           dw_error *err)
{
    if (next->n_bytes > UINT32_MAX)
        return dw_fail_tensor(err, DW_UNSUPPORTED, NULL, next->name,
                              "overwrite reaches 4 GiB of a tensor and no further: use "
                              "xor");
    dw_writer list = {0};
    dw_status status = list_bytes(&list, base, next, err);
    ZSTD_CCtx_setPledgedSrcSize(p->zstd, list.n_bytes);
    if (status == DW_OK)
        status = feed(p, list.bytes, list.n_bytes, true, err);
    dw_writer_release(&list);
    return status;
}

dw_status dw_frame_make(dw_writer *out, const dw_tensor *base, const dw_tensor *next,
                        bool overwrite, dw_error *err)
{
    packer p = {ZSTD_createCCtx(), out, dw_alloc(2 * CHUNK_BYTES), next->name};
    dw_status status = p.zstd && p.room ? DW_OK : dw_fail_memory(err, NULL);
    if (status == DW_OK) {
        ZSTD_CCtx_setParameter(p.zstd, ZSTD_c_compressionLevel, LEVEL);
        status =
            overwrite ? pack_list(&p, base, next, err) : pack_xor(&p, base, next, err);
    }
    ZSTD_freeCCtx(p.zstd);
    dw_free(p.room);
    return status;
}
