#include "bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "measure.h"

/* Seconds, the best of all rounds so far. */
typedef struct best_times {
    double copy, digest, encode, stage, scatter;
} best_times;

typedef struct run {
    bench_report *report;
    const bench_options *options;
    bench_workload w;
    dw_digest *digests; /* of OLD */
    best_times best;
} run;

static void keep_better(double *best, double seconds)
{
    if (*best == 0 || seconds < *best)
        *best = seconds;
}

/* Makes BASE equal to OLD again: the memcpy that everything else is compared with. */
static void copy_once(run *r)
{
    double start = bench_seconds();
    bench_workload_reset(&r->w);
    keep_better(&r->best.copy, bench_seconds() - start);
}

static dw_status digest_once(run *r, dw_error *err)
{
    double start = bench_seconds();
    dw_status status = dw_digest_tensors(r->digests, NULL, r->w.old, r->w.n_tensors,
                                         r->options->n_threads, NULL, err);
    keep_better(&r->best.digest, bench_seconds() - start);
    return status;
}

static dw_status encode_once(run *r, dw_delta **delta, dw_error *err)
{
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.n_threads = r->options->n_threads;
    options.base_digests = r->digests;
    options.update_base = true;
    copy_once(r);
    double start = bench_seconds();
    dw_status status =
        dw_delta_diff(delta, r->w.base, r->w.new_, r->w.n_tensors, &options, err);
    keep_better(&r->best.encode, bench_seconds() - start);
    return status;
}

static dw_apply_options apply_options(const run *r)
{
    return (dw_apply_options){.struct_bytes = sizeof(dw_apply_options),
                              .n_threads = r->options->n_threads,
                              .base_digests = r->digests};
}

static dw_status apply_once(run *r, const dw_delta *delta, dw_error *err)
{
    const dw_apply_options options = apply_options(r);
    dw_patch *patch = NULL;
    copy_once(r);
    double start = bench_seconds();
    dw_status status =
        dw_delta_stage(&patch, delta, r->w.base, r->w.n_tensors, &options, err);
    keep_better(&r->best.stage, bench_seconds() - start);
    if (status == DW_OK) {
        start = bench_seconds();
        status =
            dw_patch_apply(patch, r->w.base, r->w.n_tensors, r->options->n_threads, err);
        keep_better(&r->best.scatter, bench_seconds() - start);
    }
    dw_patch_free(patch);
    return status;
}

static bool base_is_new(const run *r)
{
    return memcmp(r->w.base[0].data, r->w.new_[0].data, r->w.n_bytes) == 0;
}

/* Runs all of them in turn, round after round, so that a disturbance of the machine
 * affects all. */
static dw_status measure_rounds(run *r, dw_delta **delta, dw_error *err)
{
    dw_status status = DW_OK;
    bool equal = true;
    for (unsigned i = 0; status == DW_OK && i < r->options->n_rounds; i++) {
        dw_delta_close(*delta);
        *delta = NULL;
        status = digest_once(r, err);
        if (status == DW_OK)
            status = encode_once(r, delta, err);
        equal &= status == DW_OK && base_is_new(r);
        if (status == DW_OK)
            status = apply_once(r, *delta, err);
        equal &= status == DW_OK && base_is_new(r);
    }
    if (status != DW_OK)
        return status;
    dw_delta_info info;
    dw_delta_get_info(*delta, &info);
    bench_report *report = r->report;
    const double n_bytes = (double)r->w.n_bytes;
    report->equal = equal;
    report->n_elems = info.n_model_elems;
    report->n_changed = info.n_changed;
    report->delta_bytes = info.n_bytes;
    report->copy_rate = n_bytes / r->best.copy;
    report->digest_rate = n_bytes / r->best.digest;
    report->encode_rate = n_bytes / r->best.encode;
    report->stage_rate = n_bytes / r->best.stage;
    report->scatter_seconds = r->best.scatter;
    return DW_OK;
}

/* Measures memory in separate rounds, because watching costs time. */
static dw_status measure_memory(run *r, const dw_delta *delta, dw_error *err)
{
    dw_delta *again = NULL;
    bench_peak *peak = bench_peak_start();
    dw_status status = encode_once(r, &again, err);
    uint64_t most = bench_peak_stop(peak);
    dw_delta_close(again);
    r->report->encode_memory =
        most > r->report->delta_bytes ? most - r->report->delta_bytes : 0;
    if (status != DW_OK)
        return status;
    const dw_apply_options options = apply_options(r);
    bench_workload_reset(&r->w);
    peak = bench_peak_start();
    status = dw_delta_apply(delta, r->w.base, r->w.n_tensors, &options, err);
    r->report->apply_memory = bench_peak_stop(peak);
    r->report->equal &= status == DW_OK && base_is_new(r);
    return status;
}

/* Goes one step further: AFTER with the trace's file, BEFORE with the diff. */
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

/* Adds up the bytes of the files of all steps of the trace. */
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

static dw_status measure_peers(run *r, void (*report_phase)(const char *), dw_error *err)
{
    static const char *const names[BENCH_PEERS] = {"XOR + zstd-1 (slime)",
                                                   "u8 gaps + values + zstd-1 (PULSE)",
                                                   "TRL raw", "TRL gap"};
    dw_status status = DW_OK;
    for (unsigned i = 0; status == DW_OK && i < BENCH_PEERS; i++) {
        bench_peer_result best = {0}, result = {0};
        report_phase(names[i]);
        for (unsigned round = 0; status == DW_OK && round < r->options->n_rounds;
             round++) {
            unsigned n_threads = r->options->n_threads;
            status = i == 0   ? bench_peer_xor(&result, &r->w, n_threads, err)
                     : i == 1 ? bench_peer_gaps(&result, &r->w, n_threads, err)
                              : bench_peer_trl(&result, &r->w,
                                               i == 2 ? DW_CODEC_RAW : DW_CODEC_GAP,
                                               n_threads, err);
            keep_better(&best.encode_seconds, result.encode_seconds);
            keep_better(&best.apply_seconds, result.apply_seconds);
            best.n_bytes = result.n_bytes;
            best.equal = (round == 0 || best.equal) && result.equal;
        }
        r->report->peers[i].name = names[i];
        r->report->peers[i].result = best;
    }
    return status;
}

static void report_nothing(const char *phase)
{
    (void)phase;
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
                    void (*report_phase)(const char *phase), dw_error *err)
{
    run r = {.report = out, .options = options};
    unsigned n_steps = options->trace ? bench_trace_steps(options->trace) : 0;
    *out = (bench_report){0};
    report_phase = report_phase ? report_phase : report_nothing;
    report_phase("preparing the weights");
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
        report_phase("memcpy, digest, encode, decode, scatter");
        status = measure_rounds(&r, &delta, err);
    }
    if (status == DW_OK) {
        report_phase("memory");
        status = measure_memory(&r, delta, err);
    }
    if (status == DW_OK)
        status = measure_peers(&r, report_phase, err);
    if (status == DW_OK && options->trace) {
        report_phase("the steps of the trace");
        status = measure_steps(&r, n_steps, err);
    }
    dw_delta_close(delta);
    free(r.digests);
    bench_workload_release(&r.w);
    return status;
}
