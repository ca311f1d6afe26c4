#include "peers.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/parallel.h"
#include "kernel/kernel.h"
#include "measure.h"

enum { LEVEL = 1, MAX_THREADS = 256 };

/* One tensor's message. */
typedef struct message {
    uint8_t *bytes;
    size_t n_bytes;
} message;

/* The scratch of a thread: room for the largest tensor. */
typedef struct bench_scratch {
    uint8_t *plain;
    uint8_t *packed;
    uint32_t *positions;
    ZSTD_CCtx *compress;
    ZSTD_DCtx *expand;
} bench_scratch;

typedef struct peer {
    bench_workload *w;
    message *messages;
    bench_scratch scratch[MAX_THREADS];
    size_t n_plain; /* bytes of room */
} peer;

static void release_peer(peer *p)
{
    for (size_t t = 0; p->messages && t < p->w->n_tensors; t++)
        free(p->messages[t].bytes);
    free(p->messages);
    for (size_t i = 0; i < MAX_THREADS; i++) {
        free(p->scratch[i].plain);
        free(p->scratch[i].packed);
        free(p->scratch[i].positions);
        ZSTD_freeCCtx(p->scratch[i].compress);
        ZSTD_freeDCtx(p->scratch[i].expand);
    }
    free(p);
}

static peer *new_peer(bench_workload *w, unsigned n_workers)
{
    peer *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->w = w;
    p->messages = calloc(w->n_tensors, sizeof *p->messages);
    if (!p->messages) {
        release_peer(p);
        return NULL;
    }
    for (size_t t = 0; t < w->n_tensors; t++)
        if (w->old[t].n_bytes > p->n_plain)
            p->n_plain = (size_t)w->old[t].n_bytes;
    p->n_plain = 2 * p->n_plain + 1024;
    for (unsigned i = 0; i < n_workers; i++) {
        bench_scratch *s = &p->scratch[i];
        s->plain = malloc(p->n_plain);
        s->packed = malloc(ZSTD_compressBound(p->n_plain));
        s->positions = malloc((DW_BLOCK_ELEMS + DW_LIST_SLACK) * sizeof *s->positions);
        s->compress = ZSTD_createCCtx();
        s->expand = ZSTD_createDCtx();
        if (!s->plain || !s->packed || !s->positions || !s->compress || !s->expand) {
            release_peer(p);
            return NULL;
        }
    }
    return p;
}

static dw_status pack(peer *p, size_t t, bench_scratch *s, size_t n_plain, dw_error *err)
{
    size_t n = ZSTD_compressCCtx(s->compress, s->packed, ZSTD_compressBound(p->n_plain),
                                 s->plain, n_plain, LEVEL);
    p->messages[t] = (message){malloc(n), n};
    if (ZSTD_isError(n) || !p->messages[t].bytes)
        return dw_fail_memory(err, NULL);
    memcpy(p->messages[t].bytes, s->packed, n);
    return DW_OK;
}

/* ---- slime ---- */

static void xor_into(uint8_t *restrict to, const uint8_t *a, const uint8_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = a[i] ^ b[i];
}

static dw_status xor_encode(void *context, size_t t, unsigned worker, dw_error *err)
{
    peer *p = context;
    bench_scratch *s = &p->scratch[worker];
    size_t n = (size_t)p->w->old[t].n_bytes;
    xor_into(s->plain, p->w->old[t].data, p->w->new_[t].data, n);
    return pack(p, t, s, n, err);
}

static dw_status xor_apply(void *context, size_t t, unsigned worker, dw_error *err)
{
    peer *p = context;
    bench_scratch *s = &p->scratch[worker];
    uint8_t *data = p->w->base[t].data;
    size_t n = ZSTD_decompressDCtx(s->expand, s->plain, p->n_plain, p->messages[t].bytes,
                                   p->messages[t].n_bytes);
    if (n != p->w->base[t].n_bytes)
        return dw_fail(err, DW_CORRUPT, NULL, "zstd gave other bytes back");
    for (size_t i = 0; i < n; i++)
        data[i] ^= s->plain[i];
    return DW_OK;
}

/* ---- PULSE ---- */

/* For two-byte elements, as the workloads have. */
static dw_status gaps_encode(void *context, size_t t, unsigned worker, dw_error *err)
{
    peer *p = context;
    bench_scratch *s = &p->scratch[worker];
    const size_t n = (size_t)p->w->old[t].n_bytes / 2;
    const uint16_t *old = p->w->old[t].data, *new_ = p->w->new_[t].data;
    uint8_t *gap = s->plain + 8;
    uint8_t *values = s->plain + p->n_plain / 2; /* moved together at the end */
    uint8_t *value = values;
    size_t after = 0;
    for (size_t first = 0; first < n; first += DW_BLOCK_ELEMS) {
        size_t n_block = n - first < DW_BLOCK_ELEMS ? n - first : DW_BLOCK_ELEMS;
        size_t n_changed =
            dw_kernels_get()->diff[1](s->positions, old + first, new_ + first, n_block);
        for (size_t i = 0; i < n_changed; i++) {
            size_t at = first + s->positions[i], g = at - after;
            for (; g >= 255; g -= 255)
                *gap++ = 255;
            *gap++ = (uint8_t)g;
            dw_store16(value, new_[at]);
            value += 2;
            after = at + 1;
        }
    }
    size_t n_gaps = (size_t)(gap - s->plain - 8), n_values = (size_t)(value - values);
    dw_store64(s->plain, n_gaps);
    memmove(gap, values, n_values);
    return pack(p, t, s, 8 + n_gaps + n_values, err);
}

static dw_status gaps_apply(void *context, size_t t, unsigned worker, dw_error *err)
{
    peer *p = context;
    bench_scratch *s = &p->scratch[worker];
    uint16_t *data = p->w->base[t].data;
    size_t n = ZSTD_decompressDCtx(s->expand, s->plain, p->n_plain, p->messages[t].bytes,
                                   p->messages[t].n_bytes);
    if (ZSTD_isError(n))
        return dw_fail(err, DW_CORRUPT, NULL, "zstd gave other bytes back");
    size_t n_gaps = (size_t)dw_load64(s->plain), at = 0;
    const uint8_t *gap = s->plain + 8, *value = gap + n_gaps;
    for (size_t i = 0; i < n_gaps; i++) {
        at += gap[i];
        if (gap[i] == 255)
            continue;
        data[at++] = dw_load16(value);
        value += 2;
    }
    return DW_OK;
}

/* ---- all of them ---- */

static bool outcome_equal(const bench_workload *w)
{
    return memcmp(w->base[0].data, w->new_[0].data, w->n_bytes) == 0;
}

static dw_status run_peer(bench_peer_result *out, bench_workload *w, unsigned n_threads,
                          dw_item_fn encode, dw_item_fn apply, dw_error *err)
{
    unsigned n_workers = dw_worker_count(n_threads, w->n_tensors);
    peer *p = new_peer(w, n_workers);
    if (!p)
        return dw_fail_memory(err, NULL);
    bench_workload_reset(w);
    double start = bench_seconds();
    dw_status status = dw_parallel(n_workers, w->n_tensors, encode, p, NULL, err);
    out->encode_seconds = bench_seconds() - start;
    out->n_bytes = 0;
    for (size_t t = 0; t < w->n_tensors; t++)
        out->n_bytes += p->messages[t].n_bytes;
    start = bench_seconds();
    if (status == DW_OK)
        status = dw_parallel(n_workers, w->n_tensors, apply, p, NULL, err);
    out->apply_seconds = bench_seconds() - start;
    out->equal = outcome_equal(w);
    release_peer(p);
    return status;
}

dw_status bench_peer_xor(bench_peer_result *out, bench_workload *w, unsigned n_threads,
                         dw_error *err)
{
    return run_peer(out, w, n_threads, xor_encode, xor_apply, err);
}

dw_status bench_peer_gaps(bench_peer_result *out, bench_workload *w, unsigned n_threads,
                          dw_error *err)
{
    return run_peer(out, w, n_threads, gaps_encode, gaps_apply, err);
}

dw_status bench_peer_trl(bench_peer_result *out, bench_workload *w, dw_codec codec,
                         unsigned n_threads, dw_error *err)
{
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.codec = codec;
    options.n_threads = n_threads;
    /* TRL has no digests: leave their time out */
    dw_digest *digests = calloc(w->n_tensors, sizeof *digests);
    options.base_digests = digests;
    dw_delta *delta = NULL;
    bench_workload_reset(w);
    double start = bench_seconds();
    dw_status status =
        digests ? dw_delta_diff(&delta, w->old, w->new_, w->n_tensors, &options, err)
                : dw_fail_memory(err, NULL);
    out->encode_seconds = bench_seconds() - start;
    dw_patch *patch = NULL;
    if (status == DW_OK) {
        dw_delta_info info;
        dw_delta_get_info(delta, &info);
        out->n_bytes = info.n_bytes;
        dw_apply_options apply = {.struct_bytes = sizeof apply,
                                  .n_threads = n_threads,
                                  .base_digests = digests};
        start = bench_seconds();
        status = dw_delta_stage(&patch, delta, w->base, w->n_tensors, &apply, err);
    }
    if (status == DW_OK)
        status = dw_patch_apply(patch, w->base, w->n_tensors, n_threads, err);
    out->apply_seconds = bench_seconds() - start;
    out->equal = status == DW_OK && outcome_equal(w);
    dw_patch_free(patch);
    dw_delta_close(delta);
    free(digests);
    return status;
}
