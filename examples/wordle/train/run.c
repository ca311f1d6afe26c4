#include "run.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "program.h"

enum {
    SLICE_MS = 500,
    STOP_GRACE_MS = 3000, /* for a version in progress */
    AGAIN_MS = 1000,
    SAY_EVERY_MS = 5000,
    MAX_SKIPPED = 10,
};

/* ---- metrics ---- */

double run_seconds(const run *r)
{
    return (double)(program_clock_ms() - r->began_ms) / 1000;
}

void run_put(json_t *line, const char *name, double number)
{
    json_object_set_new(line, name, isfinite(number) ? json_real(number) : json_null());
}

void run_log(run *r, const char *event, json_t *line)
{
    json_t *all = json_pack("{s:s, s:f}", "event", event, "t", run_seconds(r));
    if (all && line)
        json_object_update(all, line);
    char *text = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(6));
    if (text) {
        fprintf(r->log, "%s\n", text);
        fflush(r->log);
    }
    free(text);
    json_decref(line);
    json_decref(all);
}

void run_say(run *r, bool often, const char *format, ...)
{
    const uint64_t now_ms = program_clock_ms();
    if (r->log == stdout ||
        (often && r->said_ms != 0 && now_ms - r->said_ms < SAY_EVERY_MS))
        return;
    r->said_ms = now_ms;
    va_list list;
    va_start(list, format);
    printf("%4.0f s  ", run_seconds(r));
    vprintf(format, list);
    printf("\n");
    va_end(list);
    fflush(stdout);
}

/* ---- opening ---- */

static dw_status open_stream(run *r, const char *url, const char *state_dir,
                             dw_error *err)
{
    char baseline[sizeof r->state_path];
    dw_publish_options options;
    dw_publish_options_init(&options);
    snprintf(baseline, sizeof baseline, "%.*s/baseline", (int)(sizeof baseline - 10),
             state_dir);
    options.baseline_dir = baseline; /* a start after a kill reads nothing back */
    options.n_threads = 1;
    options.first_step = "0";
    /* A step of such a small model is a large part of it, so anchors are rare. */
    options.anchor_factor = 4;
    dw_status status = dw_store_open(&r->store, url, NULL, err);
    return status == DW_OK ? dw_publisher_open(&r->publisher, r->store,
                                               model_trainer_weights(r->trainer),
                                               MODEL_TENSORS, &options, err)
                           : status;
}

dw_status run_open(run *r, const char *store, const char *state_dir, const char *metrics,
                   uint64_t seed, dw_error *err)
{
    *r = (run){.began_ms = program_clock_ms()};
    if (snprintf(r->state_path, sizeof r->state_path, "%s/state.safetensors",
                 state_dir) >= (int)sizeof r->state_path)
        return wordle_fail(err, DW_INVALID, state_dir, "is too long a path");
    if (mkdir(state_dir, 0777) != 0 && errno != EEXIST)
        return wordle_fail(err, DW_IO, state_dir, "cannot be made: %s", strerror(errno));
    r->log = metrics ? fopen(metrics, "a") : stdout;
    if (!r->log)
        return wordle_fail(err, DW_IO, metrics, "cannot be appended to");
    r->trainer = model_trainer_new(seed);
    if (!r->trainer)
        return wordle_fail(err, DW_NO_MEMORY, "the model", "out of memory");
    const bool resumed = access(r->state_path, F_OK) == 0;
    dw_status status =
        resumed ? model_trainer_load(r->trainer, r->state_path, err) : DW_OK;
    if (status == DW_OK)
        status = open_stream(r, store, state_dir, err);
    if (status != DW_OK)
        return status;
    run_log(r, "start",
            json_pack("{s:s, s:i, s:b, s:I}", "stream",
                      dw_publisher_stream_id(r->publisher), "params", MODEL_PARAMS,
                      "resumed", resumed, "trained",
                      (json_int_t)model_trainer_steps(r->trainer)));
    if (resumed || dw_publisher_version(r->publisher) > 0)
        status = run_publish(r, resumed ? "resumed" : "begun",
                             model_trainer_steps(r->trainer), err);
    return status == DW_OK ? run_settle(r, err) : status;
}

void run_close(run *r)
{
    dw_publisher_close(r->publisher);
    dw_store_close(r->store);
    model_trainer_free(r->trainer);
    if (r->log && r->log != stdout)
        fclose(r->log);
}

dw_status run_save(run *r, dw_error *err)
{
    return model_trainer_save(r->trainer, r->state_path, err);
}

/* ---- publishing ---- */

/* Notes that the current weights are, or will be, VERSION. */
static void note_version(run *r, uint64_t version)
{
    const size_t at = version % RUN_KEPT_VERSIONS;
    r->published[at].version = version;
    r->published[at].steps = model_trainer_steps(r->trainer);
}

static dw_status begin_version(run *r, dw_error *err)
{
    const dw_publish_note note = {.struct_bytes = sizeof note, .step = r->step_name};
    note_version(r, dw_publisher_version(r->publisher) + 1);
    dw_status status = dw_publisher_publish(r->publisher, &r->ticket, &note, err);
    r->under_way = status == DW_OK;
    return status;
}

dw_status run_publish(run *r, const char *kind, uint64_t number, dw_error *err)
{
    snprintf(r->step_name, sizeof r->step_name, "%s %" PRIu64, kind, number);
    return begin_version(r, err);
}

static void log_version(run *r, const dw_publish_report *report)
{
    char state[17];
    snprintf(state, sizeof state, "%016" PRIx64, report->state);
    r->n_sent++;
    r->n_bytes += report->n_bytes;
    r->n_changed += report->n_changed;
    run_log(r, "version",
            json_pack("{s:I, s:s, s:I, s:I, s:i, s:I, s:s}", "version",
                      (json_int_t)report->version, "of", r->step_name, "changed",
                      (json_int_t)report->n_changed, "bytes", (json_int_t)report->n_bytes,
                      "full_bytes", 2 * MODEL_PARAMS, "publish_ms",
                      (json_int_t)(report->times.us[DW_COMMITTED] / 1000), "state",
                      state));
}

/* The version failed. Begins it again, unless nothing would be better then. */
static dw_status try_again(run *r, dw_status status, const dw_error *why, dw_error *err)
{
    if (status != DW_UNAVAILABLE && status != DW_IO && status != DW_CANCELLED) {
        *err = *why;
        return status;
    }
    run_log(r, "trouble",
            json_pack("{s:s, s:s}", "where", why->where, "text", why->text));
    run_say(r, true, "%s: %s", why->where, why->text);
    r->stopped = r->stopped || program_take_end(AGAIN_MS);
    return r->stopped ? DW_OK : begin_version(r, err);
}

dw_status run_settle(run *r, dw_error *err)
{
    uint64_t stopped_ms = 0;
    dw_status status = DW_OK;
    while (status == DW_OK && r->under_way) {
        bool done = false;
        dw_publish_report report;
        dw_error why = {0};
        status =
            dw_publisher_wait(r->publisher, r->ticket, SLICE_MS, &done, &report, &why);
        r->under_way = status == DW_UNAVAILABLE && !done;
        if (status == DW_OK) {
            note_version(r, report.version);
            log_version(r, &report);
        } else if (!r->under_way) {
            status = try_again(r, status, &why, err);
        } else {
            status = DW_OK;
            if (run_stopped(r) && stopped_ms == 0)
                stopped_ms = program_clock_ms();
            if (r->stopped && program_clock_ms() - stopped_ms >= STOP_GRACE_MS)
                dw_publisher_cancel(r->publisher);
        }
    }
    return status;
}

/* ---- steps ---- */

dw_status run_step(run *r, float lr, bool publish, const char *kind, uint64_t number,
                   double *norm, dw_error *err)
{
    dw_status status = run_settle(r, err);
    if (status != DW_OK)
        return status;
    *norm = (double)model_trainer_step(r->trainer, lr);
    r->n_skipped = isfinite(*norm) ? 0 : r->n_skipped + 1;
    if (r->n_skipped >= MAX_SKIPPED)
        return wordle_fail(err, DW_INVALID, kind,
                           "the gradients of %d steps in a row are no numbers: a smaller "
                           "learning rate may help",
                           MAX_SKIPPED);
    if (publish)
        status = run_publish(r, kind, number, err);
    if (status == DW_OK && model_trainer_steps(r->trainer) % RUN_SAVE_EVERY == 0)
        status = run_save(r, err);
    return status;
}

uint64_t run_lag(const run *r, uint64_t version)
{
    const size_t at = version % RUN_KEPT_VERSIONS;
    return r->published[at].version == version
               ? model_trainer_steps(r->trainer) - r->published[at].steps
               : UINT64_MAX;
}

bool run_stopped(run *r)
{
    r->stopped = r->stopped || program_take_end(0);
    return r->stopped;
}

dw_status run_digest(const run *r, char out[17], dw_error *err)
{
    dw_digest state, each[MODEL_TENSORS];
    dw_status status = dw_digest_tensors(each, &state, model_trainer_weights(r->trainer),
                                         MODEL_TENSORS, 1, NULL, err);
    if (status == DW_OK)
        snprintf(out, 17, "%016" PRIx64, state);
    return status;
}
