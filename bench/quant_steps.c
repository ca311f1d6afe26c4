/* How many bytes a training step takes, quantised and not. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "quant_bench.h"

dw_status quant_pick(dw_quant_plan **plan, dw_tensor **subset, size_t *n,
                     const dw_tensor *tensors, size_t n_tensors, dw_quant_scheme scheme,
                     dw_error *err)
{
    dw_quant_options options;
    dw_quant_options_init(&options);
    options.scheme = scheme;
    *subset = NULL;
    *n = 0;
    dw_status status = dw_quant_plan_make(plan, tensors, n_tensors, NULL, &options, err);
    if (status != DW_OK)
        return status;
    *subset = calloc((*plan)->n_weights, sizeof **subset);
    for (size_t i = 0; *subset && i < (*plan)->n_entries; i++)
        if ((*plan)->entries[i].role == DW_QUANT_WEIGHT)
            (*subset)[(*n)++] = tensors[(*plan)->entries[i].source];
    dw_quant_plan_free(*plan);
    *plan = NULL;
    if (!*subset)
        return dw_fail_memory(err, NULL);
    status = dw_quant_plan_make(plan, *subset, *n, NULL, &options, err);
    if (status != DW_OK) {
        free(*subset);
        *subset = NULL;
    }
    return status;
}

/* Encodes NEXT against BASE, and updates BASE. */
static dw_status diff(dw_delta **delta, const dw_tensor *base, const dw_tensor *next,
                      size_t n, unsigned n_threads, dw_error *err)
{
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.n_threads = n_threads;
    options.update_base = true;
    return dw_delta_diff(delta, base, next, n, &options, err);
}

/* Two copies of the trace's model, one step apart, and both quantised. */
typedef struct versions {
    bench_model old, new_;
    dw_tensor *old_subset, *new_subset;
    size_t n;
    dw_quant_plan *old_plan, *plan;
    quant_model old_quant, new_quant;
} versions;

static dw_status open_versions(versions *v, const quant_options *o, dw_error *err)
{
    size_t n;
    dw_status status = bench_model_open(&v->old, o->trace, err);
    if (status == DW_OK)
        status = bench_model_open(&v->new_, o->trace, err);
    if (status == DW_OK)
        status = quant_pick(&v->old_plan, &v->old_subset, &n, v->old.tensors,
                            v->old.n_tensors, o->scheme, err);
    if (status == DW_OK)
        status = quant_pick(&v->plan, &v->new_subset, &v->n, v->new_.tensors,
                            v->new_.n_tensors, o->scheme, err);
    if (status == DW_OK)
        status = quant_model_open(&v->old_quant, v->plan, 1 << 20, err);
    if (status == DW_OK)
        status = quant_model_open(&v->new_quant, v->plan, 1 << 20, err);
    if (status == DW_OK)
        status = quant_model_fill(&v->old_quant, v->old_subset, o->n_threads, err);
    if (status == DW_OK)
        status = quant_model_fill(&v->new_quant, v->old_subset, o->n_threads, err);
    return status;
}

static void release_versions(versions *v)
{
    quant_model_release(&v->old_quant);
    quant_model_release(&v->new_quant);
    dw_quant_plan_free(v->old_plan);
    dw_quant_plan_free(v->plan);
    free(v->old_subset);
    free(v->new_subset);
    bench_model_release(&v->old);
    bench_model_release(&v->new_);
}

static dw_status measure_bf16(quant_step *out, const versions *v, const quant_options *o,
                              dw_error *err)
{
    dw_delta *delta;
    dw_delta_info info;
    dw_status status =
        diff(&delta, v->old_subset, v->new_subset, v->n, o->n_threads, err);
    if (status != DW_OK)
        return status;
    dw_delta_get_info(delta, &info);
    out->n_elems = info.n_model_elems;
    out->bf16_changed = info.n_changed;
    out->bf16_bytes = info.n_bytes;
    dw_delta_close(delta);
    return DW_OK;
}

static dw_status measure_quantised(quant_step *out, versions *v, const quant_options *o,
                                   dw_error *err)
{
    dw_delta *delta;
    dw_delta_info info;
    dw_status status = quant_model_fill(&v->new_quant, v->new_subset, o->n_threads, err);
    if (status == DW_OK)
        status = diff(&delta, v->old_quant.tensors, v->new_quant.tensors,
                      v->plan->n_entries, o->n_threads, err);
    if (status != DW_OK)
        return status;
    dw_delta_get_info(delta, &info);
    out->n_scales = info.n_model_elems - out->n_elems;
    out->bytes = info.n_bytes;
    for (size_t i = 0; i < info.n_tensors; i++) {
        dw_delta_tensor_info t;
        dw_delta_tensor(delta, i, &t);
        *(t.dtype == DW_F32 ? &out->scales_changed : &out->changed) += t.n_changed;
    }
    dw_delta_close(delta);
    return DW_OK;
}

dw_status quant_measure_steps(const quant_options *options,
                              void (*step)(void *context, unsigned i,
                                           const quant_step *figures),
                              void *context, dw_error *err)
{
    versions v = {0};
    const unsigned n_steps = bench_trace_steps(options->trace);
    dw_status status = open_versions(&v, options, err);
    for (unsigned i = 1; status == DW_OK && i <= n_steps; i++) {
        quant_step figures = {0};
        status = bench_model_step(&v.new_, options->trace, i, err);
        if (status == DW_OK)
            status = measure_bf16(&figures, &v, options, err);
        if (status == DW_OK)
            status = measure_quantised(&figures, &v, options, err);
        if (status == DW_OK)
            step(context, i, &figures);
    }
    release_versions(&v);
    return status;
}
