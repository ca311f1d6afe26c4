#include "synth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/parallel.h"
#include "synth_model.h"

#define BETA        0.9f       /* AdamW's first beta */
#define SPREAD      0.32f      /* of the momentum: the mean update is a quarter of lr */
#define CHUNK_ELEMS (1u << 18) /* elements that a thread processes at a time */

struct synth_run {
    synth_options options;
    synth_model model;
    uint64_t step;
    dw_tensor *now;    /* [tensors] */
    dw_tensor *before; /* [tensors] */
    uint64_t *first;   /* [tensors] the first element of each in the arrays below */
    float *master;     /* [elements] */
    float *momentum;   /* [elements] */
    uint8_t *changed;  /* [elements] whether it changed in the step before */
    uint8_t *weights;  /* [elements] of the dtype: the memory of `now` */
    uint8_t *weights_before;
};

/* ---- noise ---- */

static uint64_t mix(uint64_t x) /* splitmix64's */
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t key_of(uint64_t seed, uint64_t step, uint64_t tensor)
{
    return mix(mix(mix(seed + 0x9e3779b97f4a7c15u) + step) + tensor);
}

static uint64_t draw(uint64_t key, uint64_t i)
{
    return mix(key + i * 0x9e3779b97f4a7c15u);
}

/* About normal, mean 0, deviation 1: the sum of three uniform 21-bit numbers has a
 * deviation of half their range. */
static float normal(uint64_t bits)
{
    const uint64_t mask = (1u << 21) - 1;
    int64_t sum = (int64_t)((bits & mask) + (bits >> 21 & mask) + (bits >> 42 & mask));
    return (float)(sum - 3 * (1 << 20)) * (2.0f / (1 << 21));
}

/* ---- elements ---- */

static uint32_t float_bits(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static uint16_t round_to_bf16(float v)
{
    uint32_t bits = float_bits(v);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Bit patterns as numbers that ascend with the value: neighbours differ by one. */
static int64_t ordinal(uint32_t bits, unsigned n_bits)
{
    uint32_t sign = 1u << (n_bits - 1);
    return bits & sign ? -(int64_t)(bits & (sign - 1)) : (int64_t)bits;
}

/* ---- chunks of one tensor ---- */

/* A piece of work: elements [begin, end) of a tensor, by number in the arrays. */
typedef struct chunk {
    size_t tensor;
    uint64_t begin, end;
} chunk;

static void start_chunk(synth_run *run, chunk c)
{
    const synth_tensor *t = &run->model.tensors[c.tensor];
    const uint64_t weights_key = key_of(run->options.seed, 0, 2 * c.tensor);
    const uint64_t momentum_key = key_of(run->options.seed, 0, 2 * c.tensor + 1);
    for (uint64_t i = c.begin; i < c.end; i++) {
        /* two sums of three uniforms reach farther into the tails */
        float deviate =
            normal(draw(weights_key, 2 * i)) + normal(draw(weights_key, 2 * i + 1));
        run->master[i] = t->mean + t->sigma * 0.70710678f * deviate;
        run->momentum[i] = SPREAD * normal(draw(momentum_key, i));
    }
}

static void round_chunk(synth_run *run, chunk c)
{
    if (run->options.dtype == DW_F32) {
        memcpy(run->weights + 4 * c.begin, run->master + c.begin, 4 * (c.end - c.begin));
        return;
    }
    uint16_t *weights = (uint16_t *)run->weights;
    for (uint64_t i = c.begin; i < c.end; i++)
        weights[i] = round_to_bf16(run->master[i]);
}

static void move_chunk(synth_run *run, chunk c)
{
    const uint64_t key = key_of(run->options.seed, run->step, c.tensor);
    const float noise = SPREAD * sqrtf(1 - BETA * BETA);
    const float lr = (float)run->options.lr;
    for (uint64_t i = c.begin; i < c.end; i++) {
        run->momentum[i] = BETA * run->momentum[i] + noise * normal(draw(key, i));
        run->master[i] -= lr * run->momentum[i];
    }
}

static uint32_t load(const synth_run *run, const uint8_t *weights, uint64_t i)
{
    return run->options.dtype == DW_F32 ? ((const uint32_t *)weights)[i]
                                        : ((const uint16_t *)weights)[i];
}

static synth_step_stats compare_chunk(synth_run *run, chunk c)
{
    const unsigned n_bits = dw_dtype_bits(run->options.dtype);
    synth_step_stats stats = {0};
    for (uint64_t i = c.begin; i < c.end; i++) {
        uint32_t old = load(run, run->weights_before, i),
                 new = load(run, run->weights, i);
        bool changed = old != new;
        if (changed) {
            int64_t move = ordinal(new, n_bits) - ordinal(old, n_bits);
            stats.n_changed++;
            stats.n_one_ulp += move == 1 || move == -1;
            stats.n_again += run->changed[i];
        }
        run->changed[i] = changed;
    }
    return stats;
}

static synth_step_stats step_chunk(synth_run *run, chunk c)
{
    const size_t width = dw_dtype_bits(run->options.dtype) / 8;
    memcpy(run->weights_before + width * c.begin, run->weights + width * c.begin,
           width * (c.end - c.begin));
    if (run->step == 0)
        start_chunk(run, c);
    else
        move_chunk(run, c);
    round_chunk(run, c);
    return run->step == 0 ? (synth_step_stats){0} : compare_chunk(run, c);
}

/* ---- all chunks, on several threads ---- */

typedef struct sweep {
    synth_run *run;
    synth_step_stats *stats; /* [workers] */
} sweep;

/* The tensor of element I. */
static size_t find_tensor(const synth_run *run, uint64_t i)
{
    size_t low = 0, high = run->model.n_tensors;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (run->first[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void add_stats(synth_step_stats *sum, const synth_step_stats *stats)
{
    sum->n_changed += stats->n_changed;
    sum->n_one_ulp += stats->n_one_ulp;
    sum->n_again += stats->n_again;
}

/* Processes CHUNK_ELEMS elements, which may belong to several tensors. */
static dw_status sweep_chunk(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)err;
    const sweep *s = context;
    synth_run *run = s->run;
    uint64_t at = (uint64_t)i * CHUNK_ELEMS;
    const uint64_t n_left = run->model.n_elems - at;
    const uint64_t end = at + (n_left < CHUNK_ELEMS ? n_left : CHUNK_ELEMS);
    while (at < end) {
        const size_t tensor = find_tensor(run, at);
        const uint64_t tensor_end =
            run->first[tensor] + run->model.tensors[tensor].n_elems;
        const chunk c = {tensor, at, tensor_end < end ? tensor_end : end};
        const synth_step_stats stats = step_chunk(run, c);
        add_stats(&s->stats[worker], &stats);
        at = c.end;
    }
    return DW_OK;
}

static uint64_t bytes_of(const void *context, size_t i)
{
    const sweep *s = context;
    (void)i;
    return (uint64_t)CHUNK_ELEMS * dw_dtype_bits(s->run->options.dtype) / 8;
}

static dw_status sweep_all(synth_run *run, synth_step_stats *out, dw_error *err)
{
    const size_t n_chunks =
        (size_t)((run->model.n_elems + CHUNK_ELEMS - 1) / CHUNK_ELEMS);
    const unsigned n_workers = dw_worker_count(run->options.n_threads, n_chunks);
    sweep s = {run, calloc(n_workers, sizeof *s.stats)};
    *out = (synth_step_stats){0};
    const dw_parallel_progress progress = {run->options.progress,
                                           n_chunks * bytes_of(&s, 0), bytes_of};
    dw_status status =
        s.stats ? dw_parallel(n_workers, n_chunks, sweep_chunk, &s, &progress, err)
                : dw_fail_memory(err, "synth");
    for (unsigned i = 0; status == DW_OK && i < n_workers; i++)
        add_stats(out, &s.stats[i]);
    free(s.stats);
    return status;
}

/* ---- the run ---- */

static bool allocate(synth_run *run)
{
    const size_t n_tensors = run->model.n_tensors;
    const size_t n_elems = (size_t)run->model.n_elems;
    const size_t width = dw_dtype_bits(run->options.dtype) / 8;
    run->now = calloc(n_tensors, sizeof *run->now);
    run->before = calloc(n_tensors, sizeof *run->before);
    run->first = calloc(n_tensors, sizeof *run->first);
    run->master = calloc(n_elems, sizeof *run->master);
    run->momentum = calloc(n_elems, sizeof *run->momentum);
    run->changed = calloc(n_elems, 1);
    run->weights = calloc(n_elems, width);
    run->weights_before = calloc(n_elems, width);
    return run->now && run->before && run->first && run->master && run->momentum &&
           run->changed && run->weights && run->weights_before;
}

static void lay_out_tensors(synth_run *run)
{
    const size_t width = dw_dtype_bits(run->options.dtype) / 8;
    uint64_t at = 0;
    for (size_t i = 0; i < run->model.n_tensors; i++) {
        const synth_tensor *t = &run->model.tensors[i];
        run->first[i] = at;
        run->now[i] = (dw_tensor){t->name,
                                  run->options.dtype,
                                  t->n_dims,
                                  t->dims,
                                  t->n_elems * width,
                                  run->weights + at * width,
                                  0,
                                  NULL};
        run->before[i] = run->now[i];
        run->before[i].data = run->weights_before + at * width;
        at += t->n_elems;
    }
}

dw_status synth_run_new(synth_run **out, const synth_options *options, dw_error *err)
{
    *out = NULL;
    synth_run *run = calloc(1, sizeof *run);
    if (!run)
        return dw_fail_memory(err, "synth");
    run->options = *options;
    dw_status status = synth_model_init(&run->model, options->n_params, err);
    if (status == DW_OK && !allocate(run))
        status = dw_fail(err, DW_NO_MEMORY, "synth",
                         "out of memory: a run takes about %u bytes a parameter",
                         9 + dw_dtype_bits(options->dtype) / 4);
    if (status != DW_OK) {
        synth_run_free(run);
        return status;
    }
    lay_out_tensors(run);
    synth_step_stats none;
    status = sweep_all(run, &none, err); /* step 0: the base */
    if (status == DW_OK)
        *out = run;
    else
        synth_run_free(run);
    return status;
}

void synth_run_free(synth_run *run)
{
    if (!run)
        return;
    synth_model_release(&run->model);
    free(run->now);
    free(run->before);
    free(run->first);
    free(run->master);
    free(run->momentum);
    free(run->changed);
    free(run->weights);
    free(run->weights_before);
    free(run);
}

const dw_tensor *synth_run_tensors(const synth_run *run, size_t *n_tensors)
{
    *n_tensors = run->model.n_tensors;
    return run->now;
}

const dw_tensor *synth_run_before(const synth_run *run)
{
    return run->before;
}

dw_status synth_run_step(synth_run *run, synth_step_stats *out, dw_error *err)
{
    run->step++;
    return sweep_all(run, out, err);
}
