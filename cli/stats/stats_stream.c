#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "stats_source.h"
#include "stream_info.h"

#define DEFAULT_STEPS 16

/* ---- which versions ---- */

static dw_status find_range(stats_stream *self, dw_error *err)
{
    dw_stream *stream = self->stream.stream;
    uint64_t head, floor;
    dw_status status = dw_stream_head(stream, &head, err);
    if (status == DW_OK)
        status = dw_stream_floor(stream, &floor, err);
    if (status != DW_OK)
        return status;
    if (self->to == DW_NO_VERSION)
        self->to = head;
    if (self->to > head)
        return dw_fail(err, DW_NOT_FOUND, self->stream.url,
                       "there is no version %" PRIu64 " yet: the newest is %" PRIu64,
                       self->to, head);
    if (self->from == DW_NO_VERSION) {
        self->from = self->to > DEFAULT_STEPS ? self->to - DEFAULT_STEPS : 0;
        self->from = self->from < floor ? floor : self->from;
    }
    if (self->from < floor)
        return dw_fail(err, DW_NOT_FOUND, self->stream.url,
                       "version %" PRIu64 " was collected: the stream keeps "
                       "version %" PRIu64 " and those after it",
                       self->from, floor);
    if (self->from < self->to)
        return DW_OK;
    return dw_fail(err, DW_NOT_FOUND, self->stream.url,
                   "no step between version %" PRIu64 " and version %" PRIu64
                   ": there is nothing to compare",
                   self->from, self->to);
}

/* ---- walking ---- */

static dw_status first(void *context, stats_model *model, const dw_progress *progress,
                       dw_error *err)
{
    stats_stream *self = context;
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = model->now;
    options.n_tensors = model->n_tensors;
    options.tensors_empty = true;
    options.base = self->base;
    options.spool_dir = self->work_dir;
    options.trust = cli_keys_trust(&self->stream.keys);
    options.n_threads = self->n_threads;
    options.open_store = cli_store_open_fork;
    self->fork_opener = (cli_fork_opener){self->stream.url, &self->stream.options};
    options.open_context = &self->fork_opener;
    dw_status status =
        dw_follower_open(&self->follower, self->stream.store, &options, err);
    if (status == DW_OK)
        status = dw_follower_sync(self->follower, self->from, progress, NULL, err);
    self->at = self->from;
    return status;
}

static dw_status next(void *context, stats_model *model, const dw_digest *digests,
                      stats_step *step, const dw_progress *progress, dw_error *err)
{
    stats_stream *self = context;
    dw_version_info info;
    (void)model, (void)digests; /* the follower has its own */
    dw_status status = dw_stream_version(self->stream.stream, self->at + 1, &info, err);
    if (status != DW_OK)
        return status;
    step->from = self->at;
    step->to = self->at + 1;
    step->n_bytes = info.n_bytes;
    step->n_objects = info.n_objects;
    status = dw_follower_sync(self->follower, step->to, progress, NULL, err);
    if (status == DW_OK)
        self->at++;
    return status;
}

int stats_stream_open(stats_source *out, stats_stream *self, const cli_session *s)
{
    dw_error err;
    int exit_code = cli_stream_open(&self->stream, s);
    if (exit_code != 0)
        return exit_code;
    if (find_range(self, &err) != DW_OK)
        return cli_stream_fail(s, &err, self->stream.url);
    *out = (stats_source){.self = self, .first = first, .next = next};
    out->n_steps = (size_t)(self->to - self->from);
    out->tensors = dw_stream_tensors(self->stream.stream, &out->n_tensors);
    return 0;
}

void stats_stream_close(stats_stream *self)
{
    dw_follower_close(self->follower);
    cli_stream_close(&self->stream);
}

/* ---- shortcuts ---- */

/* The deltas that the shortcut replaces, as far as they were walked. */
static stats_shortcut measure(const dw_edge *edge, const stats_report *r)
{
    stats_shortcut shortcut = {.edge = *edge};
    for (size_t i = 0; i < r->n_steps; i++) {
        const stats_step *step = &r->steps[i];
        if (step->to > edge->to ||
            (edge->from != DW_NO_VERSION && step->from < edge->from))
            continue;
        shortcut.n_deltas++;
        shortcut.n_delta_bytes += step->n_bytes;
    }
    return shortcut;
}

dw_status stats_stream_shortcuts(stats_report *report, stats_stream *self, dw_error *err)
{
    dw_edge *edges;
    size_t n_edges;
    dw_status status = cli_copy_shortcuts(self->stream.stream, self->from, self->to,
                                          &edges, &n_edges, err);
    if (status != DW_OK)
        return status;
    report->shortcuts = calloc(n_edges + 1, sizeof *report->shortcuts);
    if (!report->shortcuts)
        status = dw_fail_memory(err, "");
    for (size_t i = 0; report->shortcuts && i < n_edges; i++) {
        const dw_edge *edge = &edges[i];
        const bool anchor = edge->from == DW_NO_VERSION;
        if (edge->to > self->from && edge->to <= self->to &&
            (anchor || edge->from >= self->from))
            report->shortcuts[report->n_shortcuts++] = measure(edge, report);
    }
    free(edges);
    return status;
}
