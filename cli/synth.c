#include "synth.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "synth_model.h"

#define BETA        0.9f       /* AdamW's first */
#define SPREAD      0.32f      /* of the momentum: the mean update is a quarter of lr */
#define CHUNK_ELEMS (1u << 18) /* what a thread takes at a time */
#define MAX_THREADS 64

struct synth_run {
    synth_options options;
    synth_model model;
    uint64_t step;
    dw_tensor *now;    /* [tensors] */
    dw_tensor *before; /* [tensors] */
    uint64_t *first;   /* [tensors] where each begins in the arrays below */
    float *master;     /* [elements] */
    float *momentum;   /* [elements] */
    uint8_t *changed;  /* [elements] whether it changed in the step before */
    uint8_t *weights;  /* [elements] of the dtype: what `now` points into */
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

/* About normal, mean 0, deviation 1: three uniform numbers of 21 bits have together a
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
        /* twice three uniforms reach farther into the tails */
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
    atomic_ullong next; /* element to take from */
} sweep;

typedef struct worker {
    sweep *sweep;
    synth_step_stats stats;
    pthread_t thread;
} worker;

/* The tensor that element I is of. */
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

static void *work(void *argument)
{
    worker *w = argument;
    synth_run *run = w->sweep->run;
    const uint64_t n_elems = run->model.n_elems;
    for (;;) {
        uint64_t begin = atomic_fetch_add(&w->sweep->next, CHUNK_ELEMS);
        if (begin >= n_elems)
            return NULL;
        uint64_t end = n_elems - begin < CHUNK_ELEMS ? n_elems : begin + CHUNK_ELEMS;
        while (begin < end) { /* a chunk may hold ends and beginnings of tensors */
            chunk c = {find_tensor(run, begin), begin, end};
            uint64_t tensor_end =
                run->first[c.tensor] + run->model.tensors[c.tensor].n_elems;
            c.end = tensor_end < end ? tensor_end : end;
            synth_step_stats stats = step_chunk(run, c);
            w->stats.n_changed += stats.n_changed;
            w->stats.n_one_ulp += stats.n_one_ulp;
            w->stats.n_again += stats.n_again;
            begin = c.end;
        }
    }
}

static unsigned count_threads(const synth_run *run)
{
    long n = run->options.n_threads ? (long)run->options.n_threads
                                    : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (unsigned)n;
}

static synth_step_stats sweep_all(synth_run *run)
{
    sweep s = {.run = run};
    worker workers[MAX_THREADS] = {0};
    unsigned n_started = 1, n_threads = count_threads(run);
    for (unsigned i = 0; i < n_threads; i++)
        workers[i].sweep = &s;
    /* a thread that cannot be had is done without */
    while (n_started < n_threads && pthread_create(&workers[n_started].thread, NULL, work,
                                                   &workers[n_started]) == 0)
        n_started++;
    work(&workers[0]);
    synth_step_stats stats = workers[0].stats;
    for (unsigned i = 1; i < n_started; i++) {
        pthread_join(workers[i].thread, NULL);
        stats.n_changed += workers[i].stats.n_changed;
        stats.n_one_ulp += workers[i].stats.n_one_ulp;
        stats.n_again += workers[i].stats.n_again;
    }
    return stats;
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
        run->now[i] = (dw_tensor){t->name, run->options.dtype, t->n_dims,
                                  t->dims, t->n_elems * width, run->weights + at * width,
                                  0};
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
        return cli_error_set(err, DW_NO_MEMORY, "synth", "out of memory");
    run->options = *options;
    dw_status status = synth_model_init(&run->model, options->n_params, err);
    if (status == DW_OK && !allocate(run))
        status = cli_error_set(err, DW_NO_MEMORY, "synth",
                               "out of memory: a run takes about %u bytes a parameter",
                               9 + dw_dtype_bits(options->dtype) / 4);
    if (status != DW_OK) {
        synth_run_free(run);
        return status;
    }
    lay_out_tensors(run);
    sweep_all(run); /* step 0: the base */
    *out = run;
    return DW_OK;
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

synth_step_stats synth_run_step(synth_run *run)
{
    run->step++;
    return sweep_all(run);
}
