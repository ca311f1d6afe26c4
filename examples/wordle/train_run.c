#include "train_run.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fail.h"

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
    if (status == DW_OK && run->resumed)
        status = train_run_publish(run, "resumed", qwen_trainer_steps(run->trainer), err);
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

dw_status train_run_publish(train_run *run, const char *kind, uint64_t number,
                            dw_error *err)
{
    char step[64];
    snprintf(step, sizeof step, "%s %" PRIu64, kind, number);
    return versions_begin(run->stream, step, err);
}

dw_status train_run_settle(train_run *run, json_t *line, dw_error *err)
{
    bool committed;
    dw_publish_report report;
    dw_error why = {0};
    dw_status status = versions_settle(run->stream, &committed, &report, &why);
    if (status != DW_OK) {
        if (err)
            *err = why;
        return status;
    }
    char state[17] = "";
    if (committed) {
        snprintf(state, sizeof state, "%016" PRIx64, report.state);
        json_t *published = json_pack(
            "{s:I, s:I, s:I, s:I, s:I, s:s}", "version", (json_int_t)report.version,
            "changed", (json_int_t)report.n_changed, "bytes", (json_int_t)report.n_bytes,
            "full_bytes", (json_int_t)(2 * run->n_elems), "publish_ms",
            (json_int_t)report.total_ms, "state", state);
        json_object_update(line, published);
        json_decref(published);
    } else if (why.text[0]) {
        json_object_set_new(line, "publish_error", json_string(why.text));
    }
    return DW_OK;
}

dw_status train_run_step(train_run *run, float lr, bool publish, const char *kind,
                         uint64_t number, double *norm, json_t *line, dw_error *err)
{
    const qwen_adamw adamw = {lr, 0.9f, 0.95f, 1e-8f, 0.0f, 1.0f};
    dw_status status = train_run_settle(run, line, err);
    if (status != DW_OK)
        return status;
    *norm = (double)qwen_trainer_step(run->trainer, &adamw);
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
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    if (!run->stopped)
        run->stopped = sigtimedwait(&set, NULL, &(struct timespec){0}) > 0;
    return run->stopped;
}

dw_status train_run_digest(const train_run *run, char out[17], dw_error *err)
{
    size_t n;
    const dw_tensor *weights = qwen_trainer_weights(run->trainer, &n);
    dw_digest digests[1024], state;
    if (n > sizeof digests / sizeof digests[0])
        return wordle_fail(err, DW_UNSUPPORTED, "the model", "has too many tensors");
    dw_status status = dw_digest_tensors(digests, &state, weights, n, 1, NULL, err);
    if (status == DW_OK)
        snprintf(out, 17, "%016" PRIx64, state);
    return status;
}
