/* Measures how fast this machine stores changes. An engine pauses for these stores. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <deltawire/delta.h>

#include "base/error.h"
#include "progress_bar.h"
#include "stats.h"

#define N_ELEMS    (UINT64_C(1) << 25) /* of 2 bytes each: larger than the caches */
#define MIN_ROUNDS 5
#define T_ROUNDS                                                                         \
    0.15 /* seconds; the best round counts, because other processes use the machine too  \
          */
#define MAX_DENSITY 0.5

static uint64_t mix(uint64_t x) /* splitmix64's */
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Changes at random positions with this density: the gaps are geometric. */
static void change_some(uint16_t *weights, double density)
{
    const double scale = 1 / log1p(-density);
    uint64_t state = 1;
    for (double at = 0;;) {
        state += 0x9e3779b97f4a7c15u;
        double u = ((double)(mix(state) >> 11) + 0.5) / (double)(UINT64_C(1) << 53);
        at += 1 + floor(log(u) * scale);
        if (at > (double)N_ELEMS)
            return;
        weights[(uint64_t)at - 1] ^= 1;
    }
}

static dw_status time_stores(double *out, const dw_tensor *old, const dw_tensor *new,
                             unsigned n_threads, dw_error *err)
{
    dw_diff_options diff;
    dw_apply_options apply;
    dw_delta *delta = NULL;
    dw_patch *patch = NULL;
    dw_diff_options_init(&diff);
    dw_apply_options_init(&apply);
    diff.n_threads = apply.n_threads = n_threads;
    diff.progress = apply.progress = cli_signal_hook();
    dw_status status = dw_delta_diff(&delta, old, new, 1, &diff, err);
    if (status == DW_OK)
        status = dw_delta_stage(&patch, delta, old, 1, &apply, err);
    double best = INFINITY;
    const double t_end = cli_now() + T_ROUNDS;
    for (int i = 0; status == DW_OK && (i < MIN_ROUNDS || cli_now() < t_end); i++) {
        double start = cli_now();
        status = dw_patch_apply(patch, old, 1, n_threads, err);
        best = fmin(best, cli_now() - start);
    }
    if (status == DW_OK)
        *out = (double)dw_patch_changed(patch) / best;
    dw_patch_free(patch);
    dw_delta_close(delta);
    return status;
}

dw_status stats_scatter_measure(double *out, double density, unsigned n_threads,
                                dw_error *err)
{
    const uint64_t dims[1] = {N_ELEMS};
    dw_tensor old = {.name = "scatter", .dtype = DW_BF16, .n_dims = 1, .dims = dims};
    old.n_bytes = 2 * N_ELEMS;
    /* plain memory: a mapped file would cost time in the system */
    uint8_t *room = malloc((size_t)(2 * old.n_bytes));
    if (!room)
        return dw_fail_memory(err, "");
    uint16_t *weights = (uint16_t *)room;
    for (uint64_t i = 0; i < N_ELEMS; i += 4) {
        uint64_t bits = mix(i) & 0x007f007f007f007fu;
        for (unsigned j = 0; j < 4; j++)
            weights[i + j] = (uint16_t)(0x3c00 | (bits >> 16 * j & 0x7f));
    }
    dw_tensor new = old;
    old.data = room;
    new.data = room + old.n_bytes;
    memcpy(new.data, old.data, (size_t)old.n_bytes);
    /* enough changes to measure */
    change_some(new.data, fmin(fmax(density, 1e-5), MAX_DENSITY));
    dw_status status = time_stores(out, &old, &new, n_threads, err);
    free(room);
    return status;
}
