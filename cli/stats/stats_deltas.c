#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "fail.h"
#include "stats_source.h"

static dw_status first(void *context, stats_model *model, const dw_progress *progress,
                       dw_error *err)
{
    const stats_deltas *self = context;
    uint64_t n_done = 0;
    for (size_t i = 0; i < model->n_tensors; i++) {
        const dw_tensor *from = &self->weights.tensors[i];
        if (from->n_bytes > 0)
            memcpy(model->now[i].data, from->data, (size_t)from->n_bytes);
        n_done += from->n_bytes;
        if (progress->report(progress->context, n_done, model->n_bytes) != 0)
            return dw_fail(err, DW_CANCELLED, "", "stopped");
    }
    return DW_OK;
}

static dw_status next(void *context, stats_model *model, const dw_digest *digests,
                      stats_step *step, const dw_progress *progress, dw_error *err)
{
    stats_deltas *self = context;
    const dw_delta *delta = self->deltas[self->at].delta;
    dw_delta_info info;
    dw_apply_options options;
    dw_delta_get_info(delta, &info);
    step->path = self->paths[self->at];
    step->from = info.base_version;
    step->to = info.new_version;
    step->n_bytes = info.n_bytes;
    step->n_objects = 1;
    dw_apply_options_init(&options);
    options.n_threads = self->n_threads;
    options.base_digests = digests;
    options.progress = *progress;
    dw_status status = dw_delta_apply(delta, model->now, model->n_tensors, &options, err);
    if (status == DW_OK)
        self->at++;
    return status;
}

int stats_deltas_open(stats_source *out, stats_deltas *self, const cli_session *s)
{
    int exit_code = cli_weights_open(&self->weights, s, self->base);
    if (exit_code != 0)
        return exit_code;
    self->deltas = calloc(self->n_paths, sizeof *self->deltas);
    if (!self->deltas)
        return cli_fail_as(s, "no memory", "", "out of memory", NULL);
    for (size_t i = 0; i < self->n_paths; i++) {
        dw_error err;
        if (dw_delta_open(&self->deltas[i].delta, self->paths[i], &err) != DW_OK)
            return cli_fail(s, &err, self->paths[i], NULL);
    }
    *out = (stats_source){.self = self, .first = first, .next = next};
    out->n_steps = self->n_paths;
    out->tensors = self->weights.tensors;
    out->n_tensors = self->weights.n_tensors;
    return 0;
}

void stats_deltas_close(stats_deltas *self)
{
    for (size_t i = 0; self->deltas && i < self->n_paths; i++)
        dw_delta_close(self->deltas[i].delta);
    free(self->deltas);
    cli_weights_close(&self->weights);
}
