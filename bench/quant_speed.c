/* How fast weights are quantised, compared and encoded.
 *
 * As a publisher does it: group by group. The threads quantise the chunks of a group into
 * scratch, then compare them with the baseline, encode the changes and update it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/parallel.h"
#include "measure.h"
#include "quant_bench.h"

enum {
    CHUNK_ELEMS = 1 << 20,
    GROUP_CHUNKS = 8,
    NAME_BYTES = 32,
};

typedef struct run {
    const quant_options *options;
    bench_workload w;
    dw_quant_plan *plan;
    dw_tensor *source; /* the new version, of what is quantised */
    dw_tensor *source_old;
    size_t n_source;
    uint64_t n_bytes;
    quant_model base;
    uint8_t *before;       /* the elements of the old version */
    dw_digest *digests;    /* of its chunks */
    char *names;           /* of the chunks */
    uint64_t (*shapes)[1]; /* likewise */
    uint8_t *scratch;      /* of one group */
    struct {
        quant_timing copy, quantise_1, quantise, encode, publish, bf16;
    } best;
} run;

quant_timing quant_start(void)
{
    return (quant_timing){bench_seconds(), bench_cpu_seconds()};
}

void quant_keep_better(quant_timing *best, quant_timing start)
{
    const double wall = bench_seconds() - start.wall;
    const double cpu = bench_cpu_seconds() - start.cpu;
    if (best->wall == 0 || wall < best->wall)
        best->wall = wall;
    if (best->cpu == 0 || cpu < best->cpu)
        best->cpu = cpu;
}

/* ---- one group ---- */

typedef struct group {
    run *r;
    size_t first, n;
    uint8_t *at[GROUP_CHUNKS]; /* in the scratch */
} group;

static group group_at(run *r, size_t first)
{
    group g = {.r = r, .first = first};
    uint8_t *at = r->scratch;
    for (; g.n < GROUP_CHUNKS && first + g.n < r->base.n_chunks; g.n++) {
        g.at[g.n] = at;
        at += r->base.chunks[first + g.n].n_elems;
    }
    return g;
}

static dw_status quantise_one(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const group *g = context;
    return quant_model_chunk(&g->r->base, g->first + i, g->r->source, g->at[i], err);
}

static dw_status quantise(group *g, unsigned n_threads, dw_error *err)
{
    return dw_parallel(dw_worker_count(n_threads, g->n), g->n, quantise_one, g, NULL,
                       err);
}

static dw_tensor chunk_tensor(const run *r, size_t c, void *data)
{
    const dw_quant_entry *e = &r->plan->entries[r->base.chunks[c].weight];
    return (dw_tensor){.name = r->names + c * NAME_BYTES,
                       .dtype = e->tensor.dtype,
                       .n_dims = 1,
                       .dims = r->shapes[c],
                       .n_bytes = r->base.chunks[c].n_elems,
                       .data = data};
}

static dw_status encode(const group *g, dw_error *err)
{
    const run *r = g->r;
    dw_tensor base[GROUP_CHUNKS], next[GROUP_CHUNKS];
    dw_delta *delta;
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.n_threads = r->options->n_threads;
    options.update_base = true;
    options.base_digests = r->digests + g->first;
    for (size_t i = 0; i < g->n; i++) {
        base[i] =
            chunk_tensor(r, g->first + i, quant_model_elems(&r->base, g->first + i));
        next[i] = chunk_tensor(r, g->first + i, g->at[i]);
    }
    dw_status status = dw_delta_diff(&delta, base, next, g->n, &options, err);
    if (status == DW_OK)
        dw_delta_close(delta);
    return status;
}

/* ---- whole passes ---- */

static void copy_once(run *r)
{
    const quant_timing start = quant_start();
    bench_workload_reset(&r->w);
    quant_keep_better(&r->best.copy, start);
}

static dw_status quantise_once(run *r, unsigned n_threads, quant_timing *best,
                               dw_error *err)
{
    dw_status status = DW_OK;
    const quant_timing start = quant_start();
    for (size_t c = 0; status == DW_OK && c < r->base.n_chunks; c += GROUP_CHUNKS) {
        group g = group_at(r, c);
        status = quantise(&g, n_threads, err);
    }
    quant_keep_better(best, start);
    return status;
}

static dw_status encode_once(run *r, dw_error *err)
{
    dw_status status = DW_OK;
    uint8_t *at = r->before;
    for (size_t c = 0; c < r->base.n_chunks; at += r->base.chunks[c++].n_elems)
        memcpy(quant_model_elems(&r->base, c), at, r->base.chunks[c].n_elems);
    const quant_timing start = quant_start();
    for (size_t c = 0; status == DW_OK && c < r->base.n_chunks; c += GROUP_CHUNKS) {
        group g = group_at(r, c);
        status = quantise(&g, r->options->n_threads, err);
        if (status == DW_OK)
            status = encode(&g, err);
    }
    quant_keep_better(&r->best.encode, start);
    return status;
}

static dw_status encode_bf16_once(run *r, dw_error *err)
{
    dw_diff_options options;
    dw_delta *delta;
    dw_digest *digests = calloc(r->n_source, sizeof *digests); /* any will do */
    if (!digests)
        return dw_fail_memory(err, NULL);
    dw_diff_options_init(&options);
    options.n_threads = r->options->n_threads;
    options.base_digests = digests;
    const quant_timing start = quant_start();
    dw_status status =
        dw_delta_diff(&delta, r->source_old, r->source, r->n_source, &options, err);
    quant_keep_better(&r->best.bf16, start);
    if (status == DW_OK)
        dw_delta_close(delta);
    free(digests);
    return status;
}

/* ---- preparing ---- */

static dw_status open_workload(run *r, dw_error *err)
{
    const quant_options *o = r->options;
    dw_quant_plan *plan = NULL;
    size_t n;
    dw_status status = o->trace
                           ? bench_workload_trace(&r->w, o->trace, 1, o->n_bytes, err)
                           : bench_workload_synthetic(&r->w, o->n_bytes, err);
    if (status == DW_OK)
        status = quant_pick(&r->plan, &r->source, &r->n_source, r->w.new_, r->w.n_tensors,
                            o->scheme, err);
    if (status == DW_OK)
        status = quant_pick(&plan, &r->source_old, &n, r->w.old, r->w.n_tensors,
                            o->scheme, err);
    dw_quant_plan_free(plan);
    if (status == DW_OK)
        status = quant_model_open(&r->base, r->plan, CHUNK_ELEMS, err);
    return status;
}

static dw_status prepare(run *r, dw_error *err)
{
    dw_status status = open_workload(r, err);
    if (status == DW_OK)
        status = quant_model_fill(&r->base, r->source_old, r->options->n_threads, err);
    if (status != DW_OK)
        return status;
    uint64_t n_elems = 0, n_largest = 0;
    for (size_t c = 0; c < r->base.n_chunks; c++) {
        n_elems += r->base.chunks[c].n_elems;
        if (r->base.chunks[c].n_elems > n_largest)
            n_largest = r->base.chunks[c].n_elems;
    }
    for (size_t i = 0; i < r->n_source; i++)
        r->n_bytes += r->source[i].n_bytes;
    r->before = malloc(n_elems);
    r->scratch = malloc(n_largest * GROUP_CHUNKS);
    r->digests = calloc(r->base.n_chunks, sizeof *r->digests);
    r->names = calloc(r->base.n_chunks, NAME_BYTES);
    r->shapes = calloc(r->base.n_chunks, sizeof *r->shapes);
    if (!r->before || !r->scratch || !r->digests || !r->names || !r->shapes)
        return dw_fail_memory(err, NULL);
    memset(r->scratch, 0, n_largest * GROUP_CHUNKS);
    uint8_t *at = r->before;
    for (size_t c = 0; c < r->base.n_chunks; at += r->base.chunks[c++].n_elems) {
        memcpy(at, quant_model_elems(&r->base, c), r->base.chunks[c].n_elems);
        snprintf(r->names + c * NAME_BYTES, NAME_BYTES, "%08zu", c);
        r->shapes[c][0] = r->base.chunks[c].n_elems;
    }
    return DW_OK;
}

static void release(run *r)
{
    quant_model_release(&r->base);
    dw_quant_plan_free(r->plan);
    free(r->source);
    free(r->source_old);
    free(r->before);
    free(r->scratch);
    free(r->digests);
    free(r->names);
    free(r->shapes);
    bench_workload_release(&r->w);
}

static dw_status measure_publish(run *r, dw_error *err)
{
    dw_tensor *tensors;
    dw_quant_plan *plan;
    size_t n;
    dw_status status = quant_pick(&plan, &tensors, &n, r->w.base, r->w.n_tensors,
                                  r->options->scheme, err);
    if (status != DW_OK)
        return status;
    status = quant_measure_publish(&r->best.publish, &r->w, tensors, n, r->options, err);
    dw_quant_plan_free(plan);
    free(tensors);
    return status;
}

static quant_rate rate_of(uint64_t n_bytes, quant_timing best)
{
    return (quant_rate){(double)n_bytes / best.wall, (double)n_bytes / best.cpu};
}

dw_status quant_measure_speed(quant_speed *out, const quant_options *options,
                              dw_error *err)
{
    run r = {.options = options};
    dw_status status = prepare(&r, err);
    /* in turn, so that a disturbance of the machine affects all */
    for (unsigned i = 0; status == DW_OK && i < options->n_rounds; i++) {
        copy_once(&r);
        status = quantise_once(&r, 1, &r.best.quantise_1, err);
        if (status == DW_OK)
            status = quantise_once(&r, options->n_threads, &r.best.quantise, err);
        if (status == DW_OK)
            status = encode_once(&r, err);
        if (status == DW_OK)
            status = encode_bf16_once(&r, err);
    }
    if (status == DW_OK)
        status = measure_publish(&r, err);
    if (status == DW_OK) {
        *out = (quant_speed){
            .copy = rate_of(r.w.n_bytes, r.best.copy),
            .quantise_1 = rate_of(r.n_bytes, r.best.quantise_1),
            .quantise = rate_of(r.n_bytes, r.best.quantise),
            .encode = rate_of(r.n_bytes, r.best.encode),
            .publish = rate_of(r.n_bytes, r.best.publish),
            .bf16 = rate_of(r.n_bytes, r.best.bf16),
            .n_bytes = r.n_bytes,
            .kind = r.w.kind,
        };
    }
    release(&r);
    return status;
}
