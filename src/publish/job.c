/* The publisher's thread: one publish after the other. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "store/store.h"
#include "publish/publisher.h"
#include "publish/ranks.h"
#include "publish/restart.h"

dw_status dw_job_open(dw_publisher *p, dw_error *err)
{
    p->job.unchanged = dw_alloc_zeroed(p->pieces.n_table, sizeof *p->job.unchanged);
    return p->job.unchanged ? DW_OK : dw_fail_memory(err, NULL);
}

void dw_job_close(dw_job *job)
{
    dw_uploaded_release(&job->part);
    dw_free(job->step);
    dw_free(job->notes);
    dw_free(job->unchanged);
}

dw_ticket_fate *dw_job_fate(dw_publisher *p, uint64_t ticket)
{
    return &p->job.fates[ticket % DW_KEPT_TICKETS];
}

dw_ticket_fate *dw_job_find(dw_publisher *p, uint64_t ticket)
{
    dw_ticket_fate *fate = dw_job_fate(p, ticket);
    return ticket != 0 && fate->ticket == ticket ? fate : NULL;
}

dw_status dw_job_fail_ticket(const dw_publisher *p, uint64_t ticket, dw_error *err)
{
    return dw_fail(err, DW_INVALID, dw_store_url(p->store),
                   "ticket %" PRIu64 " is unknown: only the last %d are kept", ticket,
                   DW_KEPT_TICKETS);
}

int dw_job_cancelled(void *publisher, uint64_t n_done, uint64_t n_total)
{
    dw_publisher *p = publisher;
    if (!p->job.has_thread) { /* still in open, on the caller's thread */
        const dw_progress *watch = &p->options.progress;
        return watch->report ? watch->report(watch->context, n_done, n_total) : 0;
    }
    pthread_mutex_lock(&p->lock);
    bool stop = p->job.cancel;
    pthread_mutex_unlock(&p->lock);
    return stop;
}

static void on_captured(void *publisher)
{
    dw_publisher *p = publisher;
    pthread_mutex_lock(&p->lock);
    dw_job_fate(p, p->job.ticket)->captured = true;
    if (p->job.phase == DW_JOB_ENCODING)
        p->job.phase = DW_JOB_UPLOADING;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static bool replace_text(char **text, const char *new_text)
{
    char *copy = dw_copy_string(new_text ? new_text : "");
    if (!copy)
        return false;
    dw_free(*text);
    *text = copy;
    return true;
}

dw_status dw_origin_take(dw_origin *out, const dw_version_source *given, dw_error *err)
{
    *out = (dw_origin){0};
    if (!given)
        return DW_OK;
    uint8_t id[(DW_ID_TEXT - 1) / 2];
    if (!given->stream || !given->commit_sha256 || given->version == DW_NO_VERSION ||
        !dw_hex_decode(id, sizeof id, given->stream))
        return dw_fail(err, DW_INVALID, NULL,
                       "the source of a version is the id of a stream, a version and the "
                       "hash of its commit");
    memcpy(out->stream, given->stream, sizeof out->stream);
    out->version = given->version;
    memcpy(out->commit_sha256, given->commit_sha256, sizeof out->commit_sha256);
    return DW_OK;
}

dw_status dw_job_take_turn(dw_publisher *p, const char *step, dw_error *err)
{
    uint64_t turn;
    if (p->options.n_ranks == 1)
        return DW_OK;
    if (!dw_turn_of_step(&turn, step))
        return dw_fail(
            err, DW_INVALID, dw_store_url(p->store),
            "ranks publish one `step` together: give a number below 10^15 that is the "
            "same on all of them, and goes up");
    if (turn < p->job.turn)
        return dw_fail(err, DW_INVALID, dw_store_url(p->store),
                       "step %s comes after step %s: steps of ranks go up. To go back, "
                       "open the stream again on all ranks",
                       step, p->job.step);
    p->job.turn = turn;
    return DW_OK;
}

dw_status dw_job_submit(dw_publisher *p, uint64_t *ticket, const dw_publish_note *note,
                        dw_error *err)
{
    dw_job *job = &p->job;
    dw_status status = dw_origin_take(&job->source, note->source, err);
    if (status != DW_OK)
        return status;
    if (!replace_text(&job->step, note->step) || !replace_text(&job->notes, note->notes))
        return dw_fail_memory(err, NULL);
    for (size_t t = 0; t < p->pieces.n_table; t++)
        job->unchanged[t] = note->unchanged && note->unchanged[p->live.number[t]];
    dw_file_set_move(&p->files.wanted, &p->files.pending);
    *ticket = ++job->ticket;
    *dw_job_fate(p, *ticket) = (dw_ticket_fate){.ticket = *ticket};
    job->t_start = dw_clock_ms();
    job->phase = DW_JOB_ENCODING;
    pthread_cond_broadcast(&p->changed);
    return DW_OK;
}

void dw_job_cancel(dw_publisher *p)
{
    dw_job *job = &p->job;
    if ((job->phase == DW_JOB_ENCODING || job->phase == DW_JOB_UPLOADING) &&
        !job->committing)
        job->cancel = true;
}

dw_status dw_job_resolve_past(dw_publisher *p, dw_error *err)
{
    pthread_mutex_lock(&p->lock);
    const bool fenced = p->fenced;
    pthread_mutex_unlock(&p->lock);
    if (fenced)
        return dw_publisher_fail_fenced(p, err);
    dw_status status = dw_commit_resolve(p, err);
    if (!p->baseline.is_lost && !dw_baseline_is_whole(p))
        dw_baseline_lose(p);
    if (status == DW_OK && p->baseline.is_lost) {
        status = dw_baseline_catch_up(p, err);
        if (status == DW_OK && p->options.rank == 0)
            (void)dw_hint_load(&p->hint, p->stream, p->commits.head.version, NULL);
    }
    return status;
}

static dw_status upload(dw_publisher *p, const char *write_id, dw_error *err)
{
    dw_live_choose(p);
    const dw_progress stop = {dw_job_cancelled, p};
    const dw_delta_spec version = {
        .pieces = &p->pieces,
        .base = p->baseline.views,
        .next = p->live.chosen,
        .base_digests = p->baseline.digests,
        .load = p->live.source.read ? dw_live_load : NULL,
        .load_context = p,
        .captures = p->captures.n > 0 ? &p->captures : NULL,
        .from = p->commits.head.version,
        .to = p->commits.head.version + 1,
        .store = p->store,
        .write_id = write_id,
        .max_object_bytes = p->options.max_object_bytes,
        .spool_dir = p->options.spool_dir,
        .n_threads = p->options.n_threads,
        .stop = &stop,
        .captured = on_captured,
        .captured_context = p,
    };
    return dw_delta_upload(&p->job.part, &version, err);
}

/* From here on the job cannot be cancelled. False if it was cancelled before. */
static bool enter_commit(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    bool go = !p->job.cancel;
    p->job.committing = go;
    pthread_mutex_unlock(&p->lock);
    return go;
}

static dw_status commit_whole(dw_publisher *p, const char *write_id,
                              dw_position *position, dw_error *err)
{
    dw_commit_record commit = {.step = p->job.step,
                               .notes = p->job.notes,
                               .content = DW_CONTENT_DELTA,
                               .n_changed = p->job.part.n_changed,
                               .objects = p->job.part.objects};
    memcpy(commit.write_id, write_id, sizeof commit.write_id);
    commit.state = dw_pieces_state(&p->pieces, p->job.part.digests);
    commit.suspect_from = dw_sweep_suspect_from(p);
    return dw_commit_create(p, &commit, position, err);
}

void dw_job_report(const dw_publisher *p, const dw_position *position,
                   dw_publish_report *report)
{
    report->version = position->version;
    report->state = position->state;
    report->unchanged = report->n_changed == 0 && !report->restarted;
    report->diff_ms = p->job.part.diff_ms;
    report->upload_ms = p->job.part.upload_ms;
    report->total_ms = dw_clock_ms() - p->job.t_start;
    report->n_file_bytes = p->files.n_stored_bytes;
}

void dw_job_move_on(dw_publisher *p, const dw_position *position)
{
    dw_sweep_forget_suspects(p);
    dw_baseline_advance(p, position, &p->job.part);
    dw_uploaded_release(&p->job.part);
}

static dw_status fail_cancelled(const dw_publisher *p, dw_error *err)
{
    return dw_fail(err, DW_CANCELLED, dw_store_url(p->store),
                   "the version was cancelled before its commit");
}

/* The head does not decode, so this version is a restart: it holds the whole model. */
static dw_status run_restart(dw_publisher *p, dw_position *position,
                             dw_publish_report *report, dw_error *err)
{
    dw_restart r;
    dw_commit_record commit = {.step = p->job.step, .notes = p->job.notes};
    dw_status status = dw_restart_open(&r, p, err);
    for (size_t t = 0; status == DW_OK && t < p->pieces.n_table; t++)
        status = dw_live_read(p, t, (dw_place){NULL, r.model.tensors[t].data}, err);
    /* the upload takes long: if each newer version cancelled it, none would succeed */
    if (status == DW_OK && !enter_commit(p))
        status = fail_cancelled(p, err);
    on_captured(p);
    if (status == DW_OK)
        status = dw_restart_digest(&r, p, err);
    if (status == DW_OK)
        status = dw_restart_upload(&r, p, err);
    if (status == DW_OK)
        status = dw_live_confirm(p, err);
    if (status == DW_OK) {
        report->restarted = true;
        report->suspect_from = commit.suspect_from = dw_sweep_suspect_from(p);
        report->n_objects = r.objects.n;
        report->n_bytes = dw_objects_bytes(&r.objects);
        status = dw_restart_commit(&r, p, &commit, err);
    }
    if (status == DW_OK) {
        *position = p->commits.head;
        dw_job_report(p, position, report);
    }
    dw_restart_close(&r);
    return status;
}

/* A version failed its proof. If the baseline is damaged, repairs it. */
static void examine_baseline(dw_publisher *p)
{
    bool damaged;
    if (dw_sweep_all(p, &damaged, NULL) != DW_OK)
        dw_baseline_lose(p); /* the next publish tries again */
}

/* Whether the version is a restart, and the caller waits until it has read the weights on
 * devices. Not if the baseline became broken after the caller went on. */
static bool restarts_held(const dw_publisher *p)
{
    return dw_captures_are_current(p) && p->baseline.is_broken && !p->commits.in_doubt;
}

/* Waits until the weights on devices were read. */
static dw_status capture_devices(dw_publisher *p, dw_error *err)
{
    if (p->captures.n == 0)
        return DW_OK;
    dw_status status = dw_captures_wait(p, err);
    if (!p->captures.has_host && !restarts_held(p))
        on_captured(p);
    return status;
}

/* The caller publishes a step that is the newest version: a commit whose reply was lost,
 * for instance. */
static dw_status find_repeated(dw_publisher *p, dw_position *position,
                               dw_publish_report *report, dw_error *err)
{
    bool is_current = false;
    dw_status status = DW_OK;
    if (p->captures.n == 0) /* weights on devices may have changed since the call */
        status = dw_publisher_compare(p, &is_current, err);
    on_captured(p);
    if (status != DW_OK)
        return status;
    *position = p->commits.head;
    dw_job_report(p, position, report);
    return is_current ? DW_OK
                      : dw_fail(err, DW_INVALID, dw_store_url(p->store),
                                "step %s is version %" PRIu64
                                " already: other weights need a higher step",
                                p->job.step, position->version);
}

/* Makes the version and commits it. */
static dw_status run_job(dw_publisher *p, dw_position *position,
                         dw_publish_report *report, dw_error *err)
{
    char write_id[DW_ID_TEXT];
    dw_uploaded_release(&p->job.part);
    dw_ranks_begin(p, p->job.turn);
    dw_live_note_unchanged(p, p->job.unchanged);
    /* with devices, the publish has just tried to let it catch up */
    const bool is_held_restart = restarts_held(p);
    dw_status status = capture_devices(p, err);
    if (status == DW_OK && !is_held_restart)
        status = dw_job_resolve_past(p, err);
    if (status == DW_OK && p->options.n_ranks > 1) {
        p->job.is_repeat = p->ranks.committed == p->job.turn;
        if (p->job.is_repeat)
            return find_repeated(p, position, report, err);
        status = dw_ranks_say_begun(p, err);
    }
    if (status == DW_OK && (p->captures.n > 0 ? is_held_restart : p->baseline.is_broken))
        return run_restart(p, position, report, err);
    if (status == DW_OK)
        status = dw_captures_check(p, err);
    if (status == DW_OK)
        status = dw_captures_encode(p, err);
    if (status == DW_OK)
        status =
            p->sharded ? dw_rank_write_id(write_id, p, err) : dw_random_id(write_id, err);
    if (status == DW_OK)
        status = upload(p, write_id, err);
    on_captured(p);             /* also after a failure: the weights are not read again */
    if (!p->baseline.is_lost) { /* otherwise it may not even be open */
        if (!dw_baseline_is_whole(p))
            dw_baseline_lose(p);
        else if (status == DW_CORRUPT)
            examine_baseline(p);
    }
    if (status == DW_OK)
        status = dw_live_confirm(p, err);
    if (status != DW_OK)
        return status;
    if (p->sharded) {
        status = dw_receipts_exchange(p, &p->job.part, position, report, err);
    } else {
        if (!enter_commit(p))
            return fail_cancelled(p, err);
        status = commit_whole(p, write_id, position, err);
        report->n_changed = p->job.part.n_changed;
        report->n_objects = p->job.part.objects.n;
        report->n_bytes = dw_objects_bytes(&p->job.part.objects);
        report->suspect_from = dw_sweep_suspect_from(p);
    }
    if (status == DW_OK)
        dw_job_report(p, position, report);
    return status;
}

void dw_job_finish(dw_publisher *p, dw_status status, const dw_error *error,
                   const dw_publish_report *report)
{
    dw_ticket_fate *fate = dw_job_fate(p, p->job.ticket);
    fate->captured = true;
    fate->done = true;
    fate->status = status;
    fate->error = *error;
    fate->report = *report;
    if (status == DW_OK)
        p->version = report->version;
    fate->report.upkeep_behind = dw_upkeep_behind(p);
    /* the ranks may disagree on the outcome: each reads the stream before it goes on */
    if (p->sharded && status != DW_OK)
        p->commits.in_doubt = true;
    if (status == DW_OK)
        p->ranks.committed = p->job.turn;
    p->job.committing = false;
    p->job.cancel = false;
    p->job.phase = DW_JOB_IDLE;
}

void dw_job_follow_up(dw_publisher *p, const dw_position *position,
                      const dw_publish_report *report)
{
    dw_error error = {0};
    dw_status status = DW_OK;
    if (report->restarted) {
        dw_sweep_forget_suspects(p);
        (void)dw_hint_load(&p->hint, p->stream, p->commits.head.version, NULL);
        (void)dw_hint_put(&p->hint, p->stream, NULL);
        if (!dw_publisher_is_closing(p)) /* otherwise the next publisher does it */
            status = dw_baseline_catch_up(p, &error);
        dw_upkeep_note(p, status, &error);
        return;
    }
    dw_job_move_on(p, position);
    status = dw_sweep_share(p, &error);
    if (p->options.rank == 0) {
        dw_status put =
            dw_hint_commit(&p->hint, p->stream, position->version, report->n_bytes,
                           report->n_objects, status == DW_OK ? &error : NULL);
        status = status == DW_OK ? put : status;
    }
    dw_upkeep_note(p, status, &error);
    dw_upkeep_ask(p);
}

/* Does one job. The lock is held on entry and on return. The next job is accepted as soon
 * as this one is committed, and starts when the baseline has moved. */
static void do_job(dw_publisher *p)
{
    dw_error error = {0};
    dw_position position;
    dw_publish_report report = {0};
    pthread_mutex_unlock(&p->lock);
    dw_status status = run_job(p, &position, &report, &error);
    dw_captures_end(p);
    if (status == DW_IO) /* versions come first: the next one may have room */
        dw_upkeep_give_up(p);
    if (status != DW_OK)
        dw_ranks_say_failed(p, &error);
    pthread_mutex_lock(&p->lock);
    dw_job_finish(p, status, &error, &report);
    if (status != DW_OK || p->job.is_repeat)
        return;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    dw_job_follow_up(p, &position, &report);
    pthread_mutex_lock(&p->lock);
}

static void *run(void *publisher)
{
    dw_publisher *p = publisher;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while ((p->busy || p->job.phase != DW_JOB_ENCODING) && !p->closing)
            pthread_cond_wait(&p->changed, &p->lock);
        if (p->closing && p->job.phase != DW_JOB_ENCODING)
            break;
        p->busy = true;
        do_job(p);
        p->busy = false;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

dw_status dw_job_start(dw_publisher *p, dw_error *err)
{
    p->job.has_thread = pthread_create(&p->job.thread, NULL, run, p) == 0;
    return p->job.has_thread ? DW_OK
                             : dw_fail(err, DW_NO_MEMORY, NULL, "cannot start a thread");
}

void dw_job_stop(dw_publisher *p)
{
    if (p->job.has_thread)
        pthread_join(p->job.thread, NULL);
}
