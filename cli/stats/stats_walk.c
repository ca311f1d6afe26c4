#include <stdlib.h>
#include <string.h>

#include <deltawire/delta.h>

#include "base/error.h"
#include "base/parallel.h"
#include "stats.h"
#include "stats_entropy.h"

#define BATCH_BYTES (256u << 20) /* weights that are encoded at a time */
#define COPY_BYTES  (UINT64_C(16) << 20)

/* ---- progress ---- */

static int report_phase(void *context, uint64_t done, uint64_t total)
{
    stats_bar *bar = context;
    double part = total > 0 ? (double)done / (double)total : 0;
    uint64_t now = bar->done + (uint64_t)((part < 1 ? part : 1) * (double)bar->share);
    return cli_progress_report(&bar->bar, now, bar->total);
}

/* Begins the next phase, which is SHARE of the total. The result is valid until the next
 * phase. */
static dw_progress start_phase(stats_bar *bar, uint64_t share)
{
    bar->done += bar->share;
    bar->share = share;
    return (dw_progress){report_phase, bar};
}

/* ---- copying ---- */

typedef struct copy_job {
    const stats_model *model;
    size_t n_pieces;
    struct piece {
        size_t tensor;
        uint64_t first, n;
    } * pieces;
} copy_job;

static dw_status copy_piece(void *context, size_t i, unsigned worker, dw_error *err)
{
    const copy_job *job = context;
    const struct piece *p = &job->pieces[i];
    (void)worker, (void)err;
    memcpy(job->model->tensors[p->tensor].then + p->first,
           job->model->tensors[p->tensor].now + p->first, (size_t)p->n);
    return DW_OK;
}

static uint64_t piece_bytes(const void *context, size_t i)
{
    return ((const copy_job *)context)->pieces[i].n;
}

/* `then` becomes the first version too. */
static dw_status copy_first(const stats_model *model, unsigned n_threads,
                            const dw_progress *progress, dw_error *err)
{
    copy_job job = {.model = model};
    const size_t n_most = (size_t)(model->n_bytes / COPY_BYTES) + model->n_tensors + 1;
    job.pieces = calloc(n_most, sizeof *job.pieces);
    if (!job.pieces)
        return dw_fail_memory(err, "");
    for (size_t i = 0; i < model->n_tensors; i++) {
        const uint64_t n_bytes = model->now[i].n_bytes;
        for (uint64_t at = 0; at < n_bytes; at += COPY_BYTES)
            job.pieces[job.n_pieces++] = (struct piece){
                i, at, n_bytes - at < COPY_BYTES ? n_bytes - at : COPY_BYTES};
    }
    const dw_parallel_progress bar = {*progress, model->n_bytes, piece_bytes};
    dw_status status = dw_parallel(dw_worker_count(n_threads, job.n_pieces), job.n_pieces,
                                   copy_piece, &job, &bar, err);
    free(job.pieces);
    return status;
}

/* ---- the codec's bytes ---- */

/* The state of a walk. */
typedef struct walk {
    stats_report *report;
    stats_model *model;
    const stats_source *source;
    unsigned n_threads;
    stats_bar bar;
    dw_digest *digests;     /* [n_tensors] of `then` */
    dw_digest *new_digests; /* [n_tensors] */
    uint64_t *class_bytes;  /* [n_tensors] */
    stats_step_counts counts;
} walk;

static size_t batch_end(const stats_model *model, size_t first)
{
    uint64_t n_bytes = 0;
    size_t end = first;
    while (end < model->n_tensors && (end == first || n_bytes < BATCH_BYTES))
        n_bytes += model->now[end++].n_bytes;
    return end;
}

/* Finds the bytes of each tensor by name; unchanged tensors are not in the delta. Both
 * lists usually have the same order, so each search begins where the last one ended. */
static void note_sizes(walk *w, const dw_delta *delta, size_t first, size_t end)
{
    dw_delta_info info;
    size_t at = first;
    dw_delta_get_info(delta, &info);
    for (size_t d = 0; d < info.n_tensors; d++) {
        dw_delta_tensor_info t;
        dw_delta_tensor(delta, d, &t);
        for (size_t n = 0; n < end - first; n++, at = at + 1 < end ? at + 1 : first)
            if (strcmp(w->model->now[at].name, t.name) == 0) {
                w->class_bytes[at] = t.n_bytes;
                break;
            }
    }
}

static dw_status encode_batch(walk *w, size_t first, size_t end, dw_error *err)
{
    dw_diff_options options;
    dw_delta *delta;
    dw_diff_options_init(&options);
    options.n_threads = w->n_threads;
    options.base_digests = w->digests + first;
    options.new_digests = w->new_digests + first;
    options.progress = cli_signal_hook();
    dw_status status = dw_delta_diff(&delta, w->model->then + first,
                                     w->model->now + first, end - first, &options, err);
    if (status != DW_OK)
        return status;
    note_sizes(w, delta, first, end);
    dw_delta_close(delta);
    return DW_OK;
}

static dw_status encode(walk *w, const dw_progress *progress, dw_error *err)
{
    const size_t n_tensors = w->model->n_tensors;
    dw_status status = DW_OK;
    memset(w->class_bytes, 0, n_tensors * sizeof *w->class_bytes);
    for (size_t first = 0, end; status == DW_OK && first < n_tensors; first = end) {
        end = batch_end(w->model, first);
        status = encode_batch(w, first, end, err);
        progress->report(progress->context, end, n_tensors);
    }
    if (status == DW_OK)
        memcpy(w->digests, w->new_digests, n_tensors * sizeof *w->digests);
    return status;
}

/* ---- sums ---- */

static void add_step(walk *w, size_t i)
{
    stats_report *r = w->report;
    stats_step *step = &r->steps[i];
    for (size_t g = 0; g < w->model->n_groups; g++) {
        stats_counts_add(&step->sum, &w->counts.groups[g]);
        stats_counts_add(&r->groups[g], &w->counts.groups[g]);
    }
    stats_counts_add(&r->total, &step->sum);
    uint64_t n = step->sum.n_changed;
    for (unsigned f = 0; f < STATS_N_FOLDS; f++) {
        if (f > 0)
            n += step->sum.n_quiet[f - 1];
        step->n_union[f] = i + 1 >= (1u << f) ? n : 0;
    }
    r->n_steps = i + 1;
}

/* ---- the walk ---- */

static dw_status walk_first(walk *w, dw_error *err)
{
    const uint64_t n_bytes = w->model->n_bytes;
    dw_progress hook = start_phase(&w->bar, n_bytes);
    dw_status status = w->source->first(w->source->self, w->model, &hook, err);
    hook = start_phase(&w->bar, n_bytes);
    if (status == DW_OK)
        status = copy_first(w->model, w->n_threads, &hook, err);
    hook = start_phase(&w->bar, n_bytes);
    if (status == DW_OK)
        status = dw_digest_tensors(w->digests, NULL, w->model->now, w->model->n_tensors,
                                   w->n_threads, &hook, err);
    return status;
}

static dw_status walk_step(walk *w, size_t i, dw_error *err)
{
    const uint64_t n_bytes = w->model->n_bytes;
    const size_t n_groups = w->model->n_groups;
    dw_status status = cli_check_signal(err);
    dw_progress hook = start_phase(&w->bar, n_bytes);
    if (status == DW_OK)
        status = w->source->next(w->source->self, w->model, w->digests,
                                 &w->report->steps[i], &hook, err);
    hook = start_phase(&w->bar, n_bytes);
    if (status == DW_OK)
        status = encode(w, &hook, err);
    hook = start_phase(&w->bar, n_bytes);
    memset(w->counts.groups, 0, n_groups * sizeof *w->counts.groups);
    if (status == DW_OK)
        status = stats_count_step(w->model, (unsigned)i, w->class_bytes, w->n_threads,
                                  &hook, &w->counts, err);
    if (status == DW_OK)
        add_step(w, i);
    return status;
}

static bool walk_allocate(walk *w)
{
    const size_t n = w->model->n_tensors + 1, n_groups = w->model->n_groups + 1;
    stats_report *r = w->report;
    w->digests = calloc(n, sizeof *w->digests);
    w->new_digests = calloc(n, sizeof *w->new_digests);
    w->class_bytes = calloc(n, sizeof *w->class_bytes);
    w->counts.groups = calloc(n_groups, sizeof *w->counts.groups);
    r->groups = calloc(n_groups, sizeof *r->groups);
    r->steps = calloc(w->source->n_steps, sizeof *r->steps);
    r->exponents = calloc(STATS_N_KINDS, sizeof *r->exponents);
    w->counts.exponents = r->exponents;
    return w->digests && w->new_digests && w->class_bytes && w->counts.groups &&
           r->groups && r->steps && r->exponents;
}

dw_status stats_walk(stats_report *report, stats_model *model, const stats_source *source,
                     const char *work_dir, const cli_session *s, dw_error *err)
{
    walk *w = calloc(1, sizeof *w);
    if (!w)
        return dw_fail_memory(err, "");
    dw_status status =
        stats_model_init(model, source->tensors, source->n_tensors, work_dir, err);
    report->model = model;
    *w = (walk){.report = report, .model = model, .source = source};
    w->n_threads = s->n_threads;
    w->bar.bar = cli_progress_start(s, "walking");
    w->bar.total = (3 + 3 * source->n_steps) * model->n_bytes;
    if (status == DW_OK && !walk_allocate(w))
        status = dw_fail_memory(err, "");
    if (status == DW_OK)
        status = walk_first(w, err);
    for (size_t i = 0; status == DW_OK && i < source->n_steps; i++)
        status = walk_step(w, i, err);
    cli_progress_end(&w->bar.bar);
    free(w->digests);
    free(w->new_digests);
    free(w->class_bytes);
    free(w->counts.groups);
    free(w);
    return status;
}

void stats_report_release(stats_report *report)
{
    free(report->steps);
    free(report->groups);
    free(report->exponents);
    free(report->shortcuts);
    *report = (stats_report){0};
}
