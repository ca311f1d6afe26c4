#include "publish/publisher.h"

#include <limits.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/options.h"
#include "store/store.h"
#include "inner.h"

/* ---- opening and closing ---- */

static bool copy_text(const char **text)
{
    if (*text)
        *text = dw_copy_string(*text);
    return *text != NULL;
}

static bool note_valid(const char *text)
{
    return !text || (strlen(text) <= DW_MAX_NOTE && dw_utf8_valid(text));
}

static dw_status check_notes(const dw_publisher *p, const char *step, const char *notes,
                             dw_error *err)
{
    if (note_valid(step) && note_valid(notes))
        return DW_OK;
    return dw_fail(err, DW_INVALID, dw_store_url(p->store),
                   "step and notes must be UTF-8 of at most %d bytes", DW_MAX_NOTE);
}

static dw_status copy_options(dw_publisher *p, const dw_publish_options *given,
                              dw_error *err)
{
    dw_publish_options *o = &p->options, taken;
    dw_status status = DW_OPTIONS_TAKE(dw_publish_options, &taken, given, err);
    if (status != DW_OK)
        return status; /* O has no strings to free */
    *o = taken;
    if (!o->spool_dir)
        o->spool_dir = o->baseline_dir;
    const char **texts[] = {&o->base_name,  &o->base, &o->baseline_dir,
                            &o->spool_dir,  &o->job,  &o->first_step,
                            &o->first_notes};
    bool good = true;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const bool wanted = *texts[i] != NULL;
        good = copy_text(texts[i]) == wanted && good;
    }
    if (!good)
        return dw_fail_memory(err, NULL);
    status = check_notes(p, o->first_step, o->first_notes, err);
    if (status == DW_OK && !note_valid(o->base_name))
        status = dw_fail(err, DW_INVALID, dw_store_url(p->store),
                         "the name of the base must be UTF-8 of at most %d bytes",
                         DW_MAX_NOTE);
    if (status == DW_OK && o->has_files)
        status = dw_file_set_copy(&p->files.wanted, o->files, o->n_files, err);
    o->files = NULL;
    if (status != DW_OK)
        return status;
    status = dw_origin_take(&p->job.source, o->first_source, err);
    if (status != DW_OK)
        return status;
    if (o->max_object_bytes == 0)
        o->max_object_bytes = DW_OBJECT_BYTES;
    if (o->n_ranks == 0)
        o->n_ranks = 1;
    p->sharded = o->n_ranks > 1 || o->shards;
    if (o->rank >= o->n_ranks || (o->n_ranks > 1 && (!o->job || !*o->job)) ||
        (o->n_ranks > 1 && !o->shards))
        return dw_fail(
            err, DW_INVALID, NULL,
            "a sharded publish needs a rank below n_ranks, shards, and the name "
            "of the job");
    if (o->baseline_memory != DW_BASELINE_DEVICE &&
        o->baseline_memory != DW_BASELINE_HOST)
        return dw_fail(err, DW_INVALID, NULL,
                       "`baseline_memory` is DW_BASELINE_DEVICE or DW_BASELINE_HOST");
    if (o->quantize && o->quantize->scheme != DW_QUANT_NONE && o->first == DW_FIRST_BASE)
        return dw_fail(err, DW_INVALID, NULL,
                       "a quantised stream cannot start from a base: followers would "
                       "need the quantised checkpoint. Upload version 0");
    /* ranks that skip different steps would rarely meet */
    if (p->sharded)
        o->when_busy = DW_BUSY_WAIT;
    return o->fold_every == 1
               ? dw_fail(err, DW_INVALID, NULL, "a fold must span 2 versions or more")
               : DW_OK;
}

dw_publisher *dw_publisher_new(dw_store *store)
{
    dw_publisher *p = dw_alloc_zeroed(1, sizeof *p);
    if (!p || !dw_condition_init(&p->changed)) {
        dw_free(p);
        return NULL;
    }
    pthread_mutex_init(&p->lock, NULL);
    dw_hint_init(&p->hint);
    p->upkeep.due_since = DW_NO_VERSION;
    p->store = store;
    p->commits.head.version = DW_NO_VERSION;
    return p;
}

void dw_publisher_free(dw_publisher *p)
{
    dw_version_files_close(&p->files);
    dw_hint_release(&p->hint);
    dw_stream_close(p->stream);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    dw_free(p);
}

dw_status dw_publisher_open(dw_publisher **out, dw_store *store, const dw_tensor *tensors,
                            size_t n_tensors, const dw_publish_options *options,
                            dw_error *err)
{
    *out = NULL;
    dw_error unwanted = {0};
    err = err ? err : &unwanted; /* other ranks hear of it too */
    dw_publisher *p = dw_publisher_new(store);
    if (!p)
        return dw_fail_memory(err, NULL);
    dw_status status = copy_options(p, options, err);
    if (status == DW_OK)
        status = dw_publisher_begin(p, tensors, n_tensors, err);
    p->version = p->commits.head.version;
    /* only this thread calls it: the others, which start now, do not see it */
    const dw_progress progress = p->options.progress;
    p->options.progress = (dw_progress){0};
    if (status == DW_OK)
        status = dw_job_start(p, err);
    if (status == DW_OK)
        status = dw_upkeep_start(p, err);
    if (status == DW_OK && p->options.publish_changed && !p->sharded)
        status = dw_publisher_publish_changed(p, &progress, err);
    p->options.shards = NULL; /* they belong to the caller of open */
    p->options.as_bf16 = NULL;
    p->options.quantize = NULL;
    p->options.first_source = NULL;
    if (status == DW_OK) {
        *out = p;
    } else {
        dw_ranks_leave(p, err);
        dw_publisher_close(p);
    }
    return status;
}

void dw_publisher_close(dw_publisher *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    dw_job_stop(p);
    dw_ranks_leave(p, NULL);
    dw_upkeep_stop(p);
    dw_job_close(&p->job);
    dw_ranks_close(&p->ranks);
    dw_captures_close(&p->captures);
    dw_baseline_close(&p->baseline);
    dw_live_close(&p->live);
    dw_free((char *)p->options.base_name);
    dw_free((char *)p->options.base);
    dw_free((char *)p->options.baseline_dir);
    dw_free((char *)p->options.spool_dir);
    dw_free((char *)p->options.job);
    dw_free((char *)p->options.first_step);
    dw_free((char *)p->options.first_notes);
    dw_pieces_release(&p->pieces);
    dw_publisher_free(p);
}

dw_status dw_publisher_fail_fenced(const dw_publisher *p, dw_error *err)
{
    return dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                   "another writer took over the stream. This one has stopped writing; "
                   "open the stream again to take it back");
}

void dw_publisher_fence(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    p->fenced = true;
    pthread_mutex_unlock(&p->lock);
}

bool dw_publisher_is_closing(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    const bool is_closing = p->closing;
    pthread_mutex_unlock(&p->lock);
    return is_closing;
}

const char *dw_publisher_stream_id(const dw_publisher *p)
{
    return p->stream->record.stream;
}

bool dw_publisher_created(const dw_publisher *p)
{
    return p->created;
}

uint64_t dw_publisher_version(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    uint64_t version = p->version;
    pthread_mutex_unlock(&p->lock);
    return version;
}

/* ---- the caller's side ---- */

/* Whether the step is a version already: then ranks need not begin it together. */
static bool is_committed(const dw_publisher *p, const dw_publish_note *note)
{
    uint64_t turn;
    return dw_turn_of_step(&turn, note->step) && turn == p->ranks.committed;
}

/* What must happen on the caller's thread: the source of the weights begins, and weights
 * on devices start to be read (capture.h). SO_FAR is the status of this call, and the
 * other ranks hear if it failed. FATE takes the outcome of the version, if it fails here.
 * The lock is held on entry and on return. If the baseline is lost and cannot be read
 * back, nothing is read: the version fails, and its error says why. */
static dw_status hold_weights(dw_publisher *p, const dw_publish_note *note,
                              dw_status so_far, dw_ticket_fate *fate, dw_error *err)
{
    dw_status status = so_far;
    while (p->busy)
        pthread_cond_wait(&p->changed, &p->lock);
    p->busy = true;
    pthread_mutex_unlock(&p->lock);
    p->captures.is_held = false;
    if (p->baseline.is_lost || p->commits.in_doubt)
        (void)dw_job_resolve_past(p, NULL); /* the publisher's thread tries again */
    if (!is_committed(p, note))
        fate->status =
            dw_live_begin(p, 2 * p->job.turn, note->unchanged, so_far, &fate->error);
    if (status == DW_OK && p->captures.n > 0 &&
        (!p->baseline.is_lost || p->baseline.is_broken))
        status = dw_captures_hold(p, note, err);
    pthread_mutex_lock(&p->lock);
    p->busy = false;
    pthread_cond_broadcast(&p->changed);
    return status;
}

/* Checks NOTE. FILES, to be released in any case, takes its companion files. */
static dw_status take_note(const dw_publisher *p, const dw_publish_note *note,
                           dw_file_set *files, dw_error *err)
{
    dw_status status = check_notes(p, note->step, note->notes, err);
    if (status == DW_OK && note->has_files)
        status = dw_file_set_copy(files, note->files, note->n_files, err);
    return status == DW_OK ? dw_file_set_quantize(files, p->live.quant.plan, err)
                           : status;
}

dw_status dw_publisher_publish(dw_publisher *p, uint64_t *ticket,
                               const dw_publish_note *given, dw_error *err)
{
    *ticket = DW_TICKET_SKIPPED;
    dw_publish_note note = {0};
    dw_file_set files = {0};
    const bool is_held = p->captures.n > 0 || p->live.source.begin;
    dw_status status = DW_OPTIONS_TAKE(dw_publish_note, &note, given, err);
    if (status == DW_OK)
        status = take_note(p, &note, &files, err);
    pthread_mutex_lock(&p->lock);
    if (status == DW_OK)
        dw_file_set_move(&p->files.pending, &files);
    dw_file_set_release(&files);
    if (status != DW_OK && !is_held) {
        pthread_mutex_unlock(&p->lock);
        return status;
    }
    if (p->job.phase != DW_JOB_IDLE && p->options.when_busy == DW_BUSY_SKIP) {
        pthread_mutex_unlock(&p->lock);
        return status;
    }
    while (p->job.phase != DW_JOB_IDLE) {
        if (p->options.when_busy == DW_BUSY_FOLD)
            dw_job_cancel(p);
        pthread_cond_wait(&p->changed, &p->lock);
    }
    if (status == DW_OK && p->fenced)
        status = dw_publisher_fail_fenced(p, err);
    if (status == DW_OK)
        status = dw_job_take_turn(p, note.step, err);
    dw_ticket_fate fate = {.captured = true, .done = true};
    if (is_held)
        status = hold_weights(p, &note, status, &fate, err);
    const bool restarts = p->captures.n > 0 && p->baseline.is_broken;
    if (status == DW_OK)
        status = dw_job_submit(p, ticket, &note, err);
    if (status == DW_OK && fate.status != DW_OK) { /* nothing is left to do */
        fate.ticket = *ticket;
        *dw_job_fate(p, *ticket) = fate;
        p->job.phase = DW_JOB_IDLE;
    }
    while (status == DW_OK && restarts && !dw_job_fate(p, *ticket)->captured)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return status;
}

static struct timespec after_ms(unsigned timeout_ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* Waits for one change; not 0 if END has passed. The lock is held. */
static int wait_changed(dw_publisher *p, unsigned timeout_ms, const struct timespec *end)
{
    return timeout_ms == UINT_MAX ? pthread_cond_wait(&p->changed, &p->lock)
                                  : pthread_cond_timedwait(&p->changed, &p->lock, end);
}

/* Waits until the weights of TICKET are captured or, with UNTIL_DONE, its outcome is
 * known; or until the time is over. NULL if the ticket is unknown. The lock is held. */
static dw_ticket_fate *wait_for(dw_publisher *p, uint64_t ticket, bool until_done,
                                unsigned timeout_ms)
{
    const struct timespec end = after_ms(timeout_ms);
    dw_ticket_fate *fate;
    int over = 0;
    while ((fate = dw_job_find(p, ticket)) &&
           !(until_done ? fate->done : fate->captured) && over == 0)
        over = wait_changed(p, timeout_ms, &end);
    return fate;
}

dw_status dw_publisher_captured(dw_publisher *p, uint64_t ticket, unsigned timeout_ms,
                                bool *done, dw_error *err)
{
    pthread_mutex_lock(&p->lock);
    const dw_ticket_fate *fate = wait_for(p, ticket, false, timeout_ms);
    if (done)
        *done = fate && fate->captured;
    pthread_mutex_unlock(&p->lock);
    return fate ? DW_OK : dw_job_fail_ticket(p, ticket, err);
}

dw_status dw_publisher_wait(dw_publisher *p, uint64_t ticket, unsigned timeout_ms,
                            bool *done, dw_publish_report *report, dw_error *err)
{
    pthread_mutex_lock(&p->lock);
    const dw_ticket_fate *fate = wait_for(p, ticket, true, timeout_ms);
    const bool over = fate && fate->done;
    dw_status status;
    if (!fate) {
        status = dw_job_fail_ticket(p, ticket, err);
    } else if (!over) {
        status = dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                         "the version is not committed yet");
    } else {
        status = fate->status;
        if (status != DW_OK && err)
            *err = fate->error;
        if (status == DW_OK && report)
            *report = fate->report;
    }
    if (done)
        *done = over;
    pthread_mutex_unlock(&p->lock);
    return status;
}

static bool is_idle(const dw_publisher *p)
{
    return p->job.phase == DW_JOB_IDLE;
}

/* Waits until IS_REACHED returns true. False if the time is over first. */
static bool wait_until(dw_publisher *p, bool (*is_reached)(const dw_publisher *p),
                       unsigned timeout_ms)
{
    const struct timespec end = after_ms(timeout_ms);
    pthread_mutex_lock(&p->lock);
    while (!is_reached(p) && wait_changed(p, timeout_ms, &end) == 0)
        ;
    const bool reached = is_reached(p);
    pthread_mutex_unlock(&p->lock);
    return reached;
}

bool dw_publisher_idle(dw_publisher *p, unsigned timeout_ms)
{
    return wait_until(p, is_idle, timeout_ms);
}

static bool is_drained(const dw_publisher *p)
{
    return is_idle(p) && !p->busy && dw_upkeep_is_idle(p);
}

bool dw_publisher_drained(dw_publisher *p, unsigned timeout_ms)
{
    return wait_until(p, is_drained, timeout_ms);
}

void dw_publisher_cancel(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    dw_job_cancel(p);
    pthread_mutex_unlock(&p->lock);
}

dw_status dw_publisher_drain(dw_publisher *p, dw_error *err)
{
    dw_publisher_drained(p, UINT_MAX);
    return dw_upkeep_take_fault(p, err);
}
