#include "train_run.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"
#include "program.h"

enum {
    SLICE_MS = 500,
    STOP_GRACE_MS = 3000, /* for a version in progress */
    FINISH_TRIES = 5,
    FINISH_PAUSE_MS = 1000,
    MAX_SKIPPED = 10,
};

/* ---- opening ---- */

static dw_status make_dir(const char *path, dw_error *err)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return DW_OK;
    return wordle_fail(err, DW_IO, path, "cannot be made: %s", strerror(errno));
}

static dw_status load_model(train_run *run, dw_error *err)
{
    dw_checkpoint *ckpt = NULL;
    dw_status status =
        dw_checkpoint_open(&ckpt, run->options->model_dir, DW_CHECKPOINT_READ, err);
    if (status == DW_OK) {
        size_t n;
        const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n);
        status = qwen_trainer_load(run->trainer, tensors, n, err);
    }
    dw_checkpoint_close(ckpt);
    return status;
}

static dw_status open_model(train_run *run, dw_error *err)
{
    const train_options *o = run->options;
    qwen_config config;
    dw_status status = qwen_config_read(&config, o->model_dir, err);
    if (status == DW_OK)
        status = tokenizer_open(&run->tok, o->model_dir, err);
    if (status == DW_OK)
        status = qwen_trainer_new(&run->trainer, &config, o->n_threads, err);
    if (status != DW_OK)
        return status;
    run->n_vocab = config.n_vocab;
    run->resumed = access(run->state_path, F_OK) == 0;
    return run->resumed ? qwen_trainer_load_state(run->trainer, run->state_path, err)
                        : load_model(run, err);
}

static dw_status open_stream(train_run *run, dw_error *err)
{
    char baseline[sizeof run->state_path];
    snprintf(baseline, sizeof baseline, "%.*s/baseline",
             (int)(sizeof baseline - sizeof "/baseline"), run->options->state_dir);
    size_t n;
    const dw_tensor *weights = qwen_trainer_weights(run->trainer, &n);
    for (size_t i = 0; i < n; i++)
        run->n_elems += weights[i].n_bytes * 8 / dw_dtype_bits(weights[i].dtype);
    return versions_open(&run->stream, run->options->store, baseline, weights, n, err);
}

dw_status train_run_open(train_run *run, const train_options *options, dw_error *err)
{
    *run = (train_run){.options = options};
    if (snprintf(run->state_path, sizeof run->state_path, "%s/state.safetensors",
                 options->state_dir) >= (int)sizeof run->state_path)
        return wordle_fail(err, DW_INVALID, options->state_dir, "is too long a path");
    dw_status status = make_dir(options->state_dir, err);
    if (status == DW_OK)
        status = metrics_open(&run->log, options->metrics, err);
    if (status == DW_OK)
        status = open_model(run, err);
    if (status == DW_OK)
        status = open_stream(run, err);
    if (status == DW_OK && (run->resumed || versions_newest(run->stream) > 0))
        status = train_run_publish(run, run->resumed ? "resumed" : "begun",
                                   qwen_trainer_steps(run->trainer), err);
    json_t *line = json_pack(
        "{s:s, s:I, s:b, s:I}", "stream", run->stream ? versions_stream(run->stream) : "",
        "params", (json_int_t)run->n_elems, "resumed", run->resumed, "trained",
        (json_int_t)(run->trainer ? qwen_trainer_steps(run->trainer) : 0));
    if (status == DW_OK)
        status = train_run_settle(run, line, err);
    if (status == DW_OK)
        metrics_write(run->log, "start", json_incref(line));
    json_decref(line);
    return status;
}

void train_run_close(train_run *run)
{
    versions_close(run->stream);
    qwen_trainer_free(run->trainer);
    tokenizer_close(run->tok);
    metrics_close(run->log);
}

/* ---- saving and publishing ---- */

dw_status train_run_save(train_run *run, dw_error *err)
{
    return qwen_trainer_save_state(run->trainer, run->state_path, err);
}

/* Notes that the current weights are, or will be, VERSION. */
static void note_version(train_run *run, uint64_t version)
{
    const size_t at = version % TRAIN_KEPT_VERSIONS;
    run->published[at].version = version;
    run->published[at].steps = qwen_trainer_steps(run->trainer);
}

static dw_status begin_version(train_run *run, dw_error *err)
{
    note_version(run, versions_newest(run->stream) + 1);
    return versions_begin(run->stream, run->step_name, err);
}

dw_status train_run_publish(train_run *run, const char *kind, uint64_t number,
                            dw_error *err)
{
    snprintf(run->step_name, sizeof run->step_name, "%s %" PRIu64, kind, number);
    run->unsettled = true;
    return begin_version(run, err);
}

uint64_t train_run_lag(const train_run *run, uint64_t version)
{
    const size_t at = version % TRAIN_KEPT_VERSIONS;
    return run->published[at].version == version
               ? qwen_trainer_steps(run->trainer) - run->published[at].steps
               : UINT64_MAX;
}

static dw_status settle_within(train_run *run, unsigned timeout_ms, json_t *line,
                               dw_error *err)
{
    bool committed;
    dw_publish_report report;
    dw_error why = {0};
    dw_status status =
        versions_settle(run->stream, timeout_ms, &committed, &report, &why);
    if (status != DW_OK) {
        if (err)
            *err = why;
        return status;
    }
    char state[17] = "";
    if (committed) {
        run->unsettled = false;
        note_version(run, report.version);
        json_object_del(line, "publish_error"); /* of an earlier try */
        snprintf(state, sizeof state, "%016" PRIx64, report.state);
        json_t *published = json_pack(
            "{s:I, s:I, s:I, s:I, s:I, s:s}", "version", (json_int_t)report.version,
            "changed", (json_int_t)report.n_changed, "bytes", (json_int_t)report.n_bytes,
            "full_bytes", (json_int_t)(2 * run->n_elems), "publish_ms",
            (json_int_t)report.total_ms, "state", state);
        json_object_update(line, published);
        json_decref(published);
    } else if (!versions_under_way(run->stream) && why.text[0]) {
        json_object_set_new(line, "publish_error", json_string(why.text));
    }
    return DW_OK;
}

dw_status train_run_settle(train_run *run, json_t *line, dw_error *err)
{
    uint64_t stopped_ms = 0;
    dw_status status = DW_OK;
    while (status == DW_OK && versions_under_way(run->stream)) {
        status = settle_within(run, SLICE_MS, line, err);
        if (!train_run_stopped(run))
            continue;
        if (stopped_ms == 0)
            stopped_ms = program_clock_ms();
        if (program_clock_ms() - stopped_ms >= STOP_GRACE_MS)
            versions_cancel(run->stream);
    }
    return status;
}

dw_status train_run_publish_again(train_run *run, json_t *line, dw_error *err)
{
    dw_status status = settle_within(run, 0, line, err);
    if (status == DW_OK && run->unsettled && !versions_under_way(run->stream))
        status = begin_version(run, err);
    return status;
}

dw_status train_run_finish(train_run *run, json_t *line, dw_error *err)
{
    dw_status status = train_run_settle(run, line, err);
    for (int try = 0; status == DW_OK && run->unsettled && try < FINISH_TRIES; try++) {
        run->stopped = run->stopped || program_take_end(FINISH_PAUSE_MS);
        if (run->stopped)
            break;
        status = begin_version(run, err);
        if (status == DW_OK)
            status = train_run_settle(run, line, err);
    }
    if (status == DW_OK && run->unsettled && !run->stopped) {
        const char *why = json_string_value(json_object_get(line, "publish_error"));
        return wordle_fail(err, DW_UNAVAILABLE, run->options->store,
                           "the last version cannot be published: %s",
                           why ? why : "no reason is known");
    }
    return status;
}

dw_status train_run_step(train_run *run, float lr, bool publish, const char *kind,
                         uint64_t number, double *norm, json_t *line, dw_error *err)
{
    const qwen_adamw adamw = {lr, 0.9f, 0.95f, 1e-8f, 0.0f, 1.0f};
    dw_status status = train_run_settle(run, line, err);
    if (status != DW_OK)
        return status;
    *norm = (double)qwen_trainer_step(run->trainer, &adamw);
    run->n_skipped = isfinite(*norm) ? 0 : run->n_skipped + 1;
    if (run->n_skipped >= MAX_SKIPPED)
        return wordle_fail(err, DW_INVALID, kind,
                           "the gradients of %d steps in a row are no numbers: a smaller "
                           "learning rate may help",
                           MAX_SKIPPED);
    return publish ? train_run_publish(run, kind, number, err) : DW_OK;
}

dw_status train_run_save_if_due(train_run *run, dw_error *err)
{
    return qwen_trainer_steps(run->trainer) % run->options->save_every == 0
               ? train_run_save(run, err)
               : DW_OK;
}

bool train_run_stopped(train_run *run)
{
    run->stopped = run->stopped || program_take_end(0);
    return run->stopped;
}

dw_status train_run_digest(const train_run *run, char out[17], dw_error *err)
{
    size_t n;
    const dw_tensor *weights = qwen_trainer_weights(run->trainer, &n);
    dw_digest state, *digests = malloc(n * sizeof *digests);
    if (!digests)
        return wordle_fail(err, DW_NO_MEMORY, "digests", "out of memory");
    dw_status status = dw_digest_tensors(digests, &state, weights, n, 1, NULL, err);
    if (status == DW_OK)
        snprintf(out, 17, "%016" PRIx64, state);
    free(digests);
    return status;
}
