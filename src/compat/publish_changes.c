/* Packs changed tensors for slime: one zstd frame, which declares the size of
 * its content, and the checksum of the tensor's new bytes.
 *
 *     xor        new XOR old, as many bytes as the tensor
 *     overwrite  u32 count | count u32 positions | count new bytes; positions are bytes'
 */
#include <string.h>
#include <zstd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "compat/payload.h"
#include "compat/peer_publish_int.h"
#include "kernel/kernel.h"
#include "tensor/dtype.h"
#include "tensor/tensor_list.h"

#define LEVEL       1
#define CHUNK_ELEMS (64u << 10)
#define CHUNK_BYTES (256u << 10)

/* ---- which tensors differ ---- */

typedef struct search {
    const dw_peer_job *job;
    uint64_t *counts;   /* [n] elements that differ */
    uint32_t **scratch; /* [n_workers] */
} search;

static void count_pair(const search *s, size_t i, unsigned worker, const dw_tensor *base,
                       const dw_tensor *next)
{
    if (next->n_bytes == 0 || memcmp(base->data, next->data, next->n_bytes) == 0)
        return;
    const unsigned width = dw_dtype_element(next->dtype).width;
    const dw_kernels *k = dw_kernels_get();
    const uint64_t n_units = dw_tensor_units(next);
    for (uint64_t at = 0; at < n_units; at += CHUNK_ELEMS) {
        size_t n = n_units - at < CHUNK_ELEMS ? (size_t)(n_units - at) : CHUNK_ELEMS;
        s->counts[i] += k->diff[dw_width_index(width)](
            s->scratch[worker], (const uint8_t *)base->data + at * width,
            (const uint8_t *)next->data + at * width, n);
    }
}

static dw_status count_one(void *context, size_t i, unsigned worker, dw_error *err)
{
    const search *s = context;
    dw_loan loans[2] = {{0}};
    dw_tensor base, next;
    dw_status status = dw_tensor_read(&base, &loans[0], &s->job->base[i], err);
    if (status == DW_OK)
        status = dw_tensor_read(&next, &loans[1], &s->job->next[i], err);
    if (status == DW_OK)
        count_pair(s, i, worker, &base, &next);
    dw_loan_release(&loans[0]);
    dw_loan_release(&loans[1]);
    return status;
}

static dw_status count_changes(const dw_peer_job *job, uint64_t *counts,
                               unsigned n_threads, dw_error *err)
{
    const unsigned n_workers = dw_worker_count(n_threads, job->n);
    search s = {job, counts, dw_alloc_zeroed(n_workers, sizeof *s.scratch)};
    dw_status status = s.scratch ? DW_OK : dw_fail_memory(err, NULL);
    for (unsigned w = 0; status == DW_OK && w < n_workers; w++) {
        s.scratch[w] = dw_alloc_array(CHUNK_ELEMS + DW_LIST_SLACK, sizeof **s.scratch);
        if (!s.scratch[w])
            status = dw_fail_memory(err, NULL);
    }
    if (status == DW_OK)
        status = dw_parallel(n_workers, job->n, count_one, &s, NULL, err);
    for (unsigned w = 0; s.scratch && w < n_workers; w++)
        dw_free(s.scratch[w]);
    dw_free(s.scratch);
    return status;
}

dw_status dw_peer_changes_find(dw_peer_changes *out, const dw_peer_job *job,
                               unsigned n_threads, dw_error *err)
{
    *out = (dw_peer_changes){0};
    uint64_t *counts = dw_alloc_zeroed(job->n, sizeof *counts);
    out->base = dw_alloc_array(job->n, sizeof *out->base);
    out->next = dw_alloc_array(job->n, sizeof *out->next);
    dw_status status = counts && out->base && out->next
                           ? count_changes(job, counts, n_threads, err)
                           : dw_fail_memory(err, NULL);
    for (size_t i = 0; status == DW_OK && i < job->n; i++) {
        if (counts[i] == 0)
            continue;
        out->base[out->n] = job->base[i];
        out->next[out->n++] = job->next[i];
        out->n_elems += counts[i];
    }
    dw_free(counts);
    if (status != DW_OK)
        dw_peer_changes_release(out);
    return status;
}

void dw_peer_changes_release(dw_peer_changes *changes)
{
    dw_free(changes->base);
    dw_free(changes->next);
    *changes = (dw_peer_changes){0};
}

/* ---- packing ---- */

typedef struct packer {
    dw_peer_pack *pack;
    const dw_tensor *base; /* [pack->n] */
    const dw_tensor *next;
    const dw_peer_publish_options *options;
} packer;

/* Feeds N_BYTES to the frame that goes to OUT. */
static dw_status feed(ZSTD_CCtx *zstd, dw_writer *out, uint8_t *room, const void *bytes,
                      size_t n_bytes, ZSTD_EndDirective end, const char *name,
                      dw_error *err)
{
    ZSTD_inBuffer in = {bytes, n_bytes, 0};
    for (size_t left = 1; left > 0 && (in.pos < in.size || end == ZSTD_e_end);) {
        ZSTD_outBuffer to = {room, CHUNK_BYTES, 0};
        left = ZSTD_compressStream2(zstd, &to, &in, end);
        if (ZSTD_isError(left))
            return dw_fail_tensor(err, DW_NO_MEMORY, NULL, name, "zstd: %s",
                                  ZSTD_getErrorName(left));
        dw_write_bytes(out, room, to.pos);
        if (end == ZSTD_e_continue)
            left = 1;
    }
    return out->failed ? dw_fail_memory(err, NULL) : DW_OK;
}

static dw_status pack_xor(ZSTD_CCtx *zstd, dw_writer *out, uint8_t *room,
                          const dw_tensor *base, const dw_tensor *next, dw_error *err)
{
    uint8_t *mixed = room + CHUNK_BYTES;
    const uint8_t *a = base->data, *b = next->data;
    dw_status status = DW_OK;
    for (uint64_t at = 0; status == DW_OK && at < next->n_bytes; at += CHUNK_BYTES) {
        const uint64_t left = next->n_bytes - at;
        const size_t n = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        for (size_t i = 0; i < n; i++)
            mixed[i] = a[at + i] ^ b[at + i];
        status = feed(zstd, out, room, mixed, n, n == left ? ZSTD_e_end : ZSTD_e_continue,
                      next->name, err);
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

static dw_status pack_overwrite(ZSTD_CCtx *zstd, dw_writer *out, uint8_t *room,
                                const dw_tensor *base, const dw_tensor *next,
                                dw_error *err)
{
    if (next->n_bytes > UINT32_MAX)
        return dw_fail_tensor(err, DW_UNSUPPORTED, NULL, next->name,
                              "overwrite reaches 4 GiB of a tensor and no further: use "
                              "xor");
    dw_writer list = {0};
    dw_status status = list_bytes(&list, base, next, err);
    ZSTD_CCtx_setPledgedSrcSize(zstd, list.n_bytes);
    if (status == DW_OK)
        status =
            feed(zstd, out, room, list.bytes, list.n_bytes, ZSTD_e_end, next->name, err);
    dw_writer_release(&list);
    return status;
}

static dw_status pack_one(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    packer *p = context;
    dw_peer_pack *pack = p->pack;
    dw_loan loans[2] = {{0}};
    dw_tensor base, readable;
    const dw_tensor *next = &readable;
    ZSTD_CCtx *zstd = ZSTD_createCCtx();
    uint8_t *room = dw_alloc(2 * CHUNK_BYTES);
    dw_status status = zstd && room ? DW_OK : dw_fail_memory(err, NULL);
    if (status == DW_OK)
        status = dw_tensor_read(&base, &loans[0], &p->base[i], err);
    if (status == DW_OK)
        status = dw_tensor_read(&readable, &loans[1], &p->next[i], err);
    if (status == DW_OK) {
        ZSTD_CCtx_setParameter(zstd, ZSTD_c_compressionLevel, LEVEL);
        ZSTD_CCtx_setPledgedSrcSize(zstd, next->n_bytes);
        status = p->options->delta == DW_PEER_OVERWRITE
                     ? pack_overwrite(zstd, &pack->bytes[i], room, &base, next, err)
                     : pack_xor(zstd, &pack->bytes[i], room, &base, next, err);
    }
    if (status == DW_OK) {
        dw_checksum_of(pack->checksums[i],
                       p->options->checksum == DW_PEER_ADLER32 ? DW_CHECKSUM_ADLER32
                                                               : DW_CHECKSUM_XXH3_128,
                       next->data, next->n_bytes);
        pack->dims[i] = pack->bytes[i].n_bytes;
        pack->frames[i] =
            (dw_tensor){next->name,           DW_U8, 1,   &pack->dims[i], pack->dims[i],
                        pack->bytes[i].bytes, 0,     NULL};
    }
    ZSTD_freeCCtx(zstd);
    dw_free(room);
    dw_loan_release(&loans[0]);
    dw_loan_release(&loans[1]);
    return status;
}

dw_status dw_peer_pack_make(dw_peer_pack *out, const dw_peer_changes *changes,
                            size_t first, size_t n,
                            const dw_peer_publish_options *options, dw_error *err)
{
    *out = (dw_peer_pack){
        .frames = dw_alloc_zeroed(n, sizeof *out->frames),
        .checksums = dw_alloc_zeroed(n, sizeof *out->checksums),
        .n = n,
        .bytes = dw_alloc_zeroed(n, sizeof *out->bytes),
        .dims = dw_alloc_zeroed(n, sizeof *out->dims),
    };
    packer p = {out, changes->base + first, changes->next + first, options};
    dw_status status = out->frames && out->checksums && out->bytes && out->dims
                           ? dw_parallel(dw_worker_count(options->n_threads, n), n,
                                         pack_one, &p, NULL, err)
                           : dw_fail_memory(err, NULL);
    if (status != DW_OK)
        dw_peer_pack_release(out);
    return status;
}

void dw_peer_pack_release(dw_peer_pack *pack)
{
    for (size_t i = 0; pack->bytes && i < pack->n; i++)
        dw_writer_release(&pack->bytes[i]);
    dw_free(pack->frames);
    dw_free(pack->checksums);
    dw_free(pack->bytes);
    dw_free(pack->dims);
    *pack = (dw_peer_pack){0};
}
