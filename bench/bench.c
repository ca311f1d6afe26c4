#include "bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "measure.h"

typedef struct run {
    bench_report *report;
    const bench_options *options;
    bench_workload w;
    dw_digest *digests; /* of OLD */
} run;

static double better(double best, double seconds)
{
    return best == 0 || seconds < best ? seconds : best;
}

static void measure_copy(run *r)
{
    double best = 0;
    for (unsigned i = 0; i < r->options->n_rounds; i++) {
        double start = bench_seconds();
        memcpy(r->w.base[0].data, r->w.old[0].data, r->w.n_bytes);
        best = better(best, bench_seconds() - start);
    }
    r->report->copy_rate = (double)r->w.n_bytes / best;
}

static dw_status measure_digest(run *r, dw_error *err)
{
    double best = 0;
    dw_status status = DW_OK;
    for (unsigned i = 0; status == DW_OK && i < r->options->n_rounds; i++) {
        double start = bench_seconds();
        status = dw_digest_tensors(r->digests, NULL, r->w.old, r->w.n_tensors,
                                   r->options->n_threads, NULL, err);
        best = better(best, bench_seconds() - start);
    }
    r->report->digest_rate = (double)r->w.n_bytes / best;
    return status;
}

static dw_status encode_once(run *r, dw_delta **delta, double *seconds, dw_error *err)
{
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.n_threads = r->options->n_threads;
    options.base_digests = r->digests;
    options.update_base = true;
    bench_workload_reset(&r->w);
    double start = bench_seconds();
    dw_status status =
        dw_delta_diff(delta, r->w.base, r->w.new_, r->w.n_tensors, &options, err);
    *seconds = bench_seconds() - start;
    return status;
}

static dw_status measure_encode(run *r, dw_delta **delta, dw_error *err)
{
    double best = 0, seconds;
    dw_status status = DW_OK;
    for (unsigned i = 0; status == DW_OK && i < r->options->n_rounds; i++) {
        dw_delta_close(*delta);
        *delta = NULL;
        status = encode_once(r, delta, &seconds, err);
        best = better(best, seconds);
    }
    if (status != DW_OK)
        return status;
    r->report->encode_rate = (double)r->w.n_bytes / best;
    r->report->equal = memcmp(r->w.base[0].data, r->w.new_[0].data, r->w.n_bytes) == 0;
    dw_delta_info info;
    dw_delta_get_info(*delta, &info);
    r->report->n_elems = info.n_model_elems;
    r->report->n_changed = info.n_changed;
    r->report->delta_bytes = info.n_bytes;

    /* memory in a round of its own: watching costs time */
    dw_delta *again = NULL;
    bench_peak *peak = bench_peak_start();
    status = encode_once(r, &again, &seconds, err);
    uint64_t most = bench_peak_stop(peak);
    r->report->encode_memory = most > info.n_bytes ? most - info.n_bytes : 0;
    dw_delta_close(again);
    return status;
}

static dw_status measure_apply(run *r, const dw_delta *delta, dw_error *err)
{
    const dw_apply_options options = {.n_threads = r->options->n_threads,
                                      .base_digests = r->digests};
    double stage_best = 0, scatter_best = 0;
    dw_status status = DW_OK;
    for (unsigned i = 0; status == DW_OK && i < r->options->n_rounds; i++) {
        dw_patch *patch = NULL;
        bench_workload_reset(&r->w);
        double start = bench_seconds();
        status = dw_delta_stage(&patch, delta, r->w.base, r->w.n_tensors, &options, err);
        stage_best = better(stage_best, bench_seconds() - start);
        if (status == DW_OK) {
            start = bench_seconds();
            status = dw_patch_apply(patch, r->w.base, r->w.n_tensors,
                                    r->options->n_threads, err);
            scatter_best = better(scatter_best, bench_seconds() - start);
        }
        dw_patch_free(patch);
    }
    if (status != DW_OK)
        return status;
    r->report->equal &= memcmp(r->w.base[0].data, r->w.new_[0].data, r->w.n_bytes) == 0;
    r->report->stage_rate = (double)r->w.n_bytes / stage_best;
    r->report->scatter_seconds = scatter_best;

    bench_workload_reset(&r->w);
    bench_peak *peak = bench_peak_start();
    status = dw_delta_apply(delta, r->w.base, r->w.n_tensors, &options, err);
    r->report->apply_memory = bench_peak_stop(peak);
    r->report->equal &= memcmp(r->w.base[0].data, r->w.new_[0].data, r->w.n_bytes) == 0;
    return status;
}

/* One step further: AFTER by the trace's file, BEFORE by the diff. */
static dw_status measure_step(run *r, const bench_model *before, bench_model *after,
                              unsigned step, dw_error *err)
{
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.n_threads = r->options->n_threads;
    options.update_base = true;
    options.base_version = step - 1;
    options.new_version = step;
    dw_status status = bench_model_step(after, r->options->trace, step, err);
    if (status != DW_OK)
        return status;
    dw_delta *delta;
    status = dw_delta_diff(&delta, before->tensors, after->tensors, after->n_tensors,
                           &options, err);
    if (status != DW_OK)
        return status;
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    r->report->step_bytes += info.n_bytes;
    r->report->step_changes += info.n_changed;
    r->report->n_steps++;
    dw_delta_close(delta);
    return DW_OK;
}

/* Bytes of all steps of the trace, files whole. */
static dw_status measure_steps(run *r, unsigned n_steps, dw_error *err)
{
    bench_model before, after = {0};
    dw_status status = bench_model_open(&before, r->options->trace, err);
    if (status == DW_OK)
        status = bench_model_open(&after, r->options->trace, err);
    for (unsigned step = 1; status == DW_OK && step <= n_steps; step++)
        status = measure_step(r, &before, &after, step, err);
    bench_model_release(&before);
    bench_model_release(&after);
    return status;
}

static dw_status measure_peers(run *r, void (*say)(const char *), dw_error *err)
{
    static const char *const names[BENCH_PEERS] = {"XOR + zstd-1 (slime)",
                                                   "u8 gaps + values + zstd-1 (PULSE)",
                                                   "TRL raw", "TRL gap"};
    dw_status status = DW_OK;
    for (unsigned i = 0; status == DW_OK && i < BENCH_PEERS; i++) {
        bench_peer_result best = {0}, result = {0};
        say(names[i]);
        for (unsigned round = 0; status == DW_OK && round < r->options->n_rounds;
             round++) {
            unsigned n_threads = r->options->n_threads;
            status = i == 0   ? bench_peer_xor(&result, &r->w, n_threads, err)
                     : i == 1 ? bench_peer_gaps(&result, &r->w, n_threads, err)
                              : bench_peer_trl(&result, &r->w,
                                               i == 2 ? DW_CODEC_RAW : DW_CODEC_GAP,
                                               n_threads, err);
            result.encode_seconds = better(best.encode_seconds, result.encode_seconds);
            result.apply_seconds = better(best.apply_seconds, result.apply_seconds);
            best = result;
        }
        r->report->peers[i].name = names[i];
        r->report->peers[i].result = best;
    }
    return status;
}

static void say_nothing(const char *what)
{
    (void)what;
}

static dw_status prepare(run *r, unsigned n_steps, dw_error *err)
{
    const bench_options *o = r->options;
    if (!o->trace)
        return bench_workload_synthetic(&r->w, o->n_bytes, err);
    if (n_steps == 0)
        return dw_fail(err, DW_NOT_FOUND, o->trace,
                       "no deltas/step_000001.safetensors: not a trace");
    unsigned step = o->step < n_steps ? o->step : n_steps;
    return bench_workload_trace(&r->w, o->trace, step, o->n_bytes, err);
}

dw_status bench_run(bench_report *out, const bench_options *options,
                    void (*say)(const char *what), dw_error *err)
{
    run r = {.report = out, .options = options};
    unsigned n_steps = options->trace ? bench_trace_steps(options->trace) : 0;
    *out = (bench_report){0};
    say = say ? say : say_nothing;
    say("preparing the weights");
    dw_status status = prepare(&r, n_steps, err);
    if (status != DW_OK)
        return status;
    out->kind = r.w.kind;
    out->n_bytes = r.w.n_bytes;
    dw_delta *delta = NULL;
    r.digests = calloc(r.w.n_tensors, sizeof *r.digests);
    if (!r.digests)
        status = dw_fail_memory(err, NULL);
    if (status == DW_OK) {
        say("memcpy");
        measure_copy(&r);
        say("digest");
        status = measure_digest(&r, err);
    }
    if (status == DW_OK) {
        say("diff and encode");
        status = measure_encode(&r, &delta, err);
    }
    if (status == DW_OK) {
        say("decode and scatter");
        status = measure_apply(&r, delta, err);
    }
    if (status == DW_OK)
        status = measure_peers(&r, say, err);
    if (status == DW_OK && options->trace) {
        say("the steps of the trace");
        status = measure_steps(&r, n_steps, err);
    }
    dw_delta_close(delta);
    free(r.digests);
    bench_workload_release(&r.w);
    return status;
}
