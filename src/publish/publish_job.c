/* One publish after the other, on the publisher's own thread. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "codec/digest.h"
#include "publish/publisher.h"

dw_ticket_fate *dw_job_fate(dw_publisher *p, uint64_t ticket)
{
    return &p->fates[ticket % DW_KEPT_TICKETS];
}

int dw_job_stop(void *publisher, uint64_t n_done, uint64_t n_total)
{
    dw_publisher *p = publisher;
    if (!p->has_thread) { /* still opening, on the caller's thread */
        const dw_progress *watch = &p->options.progress;
        return watch->report ? watch->report(watch->context, n_done, n_total) : 0;
    }
    pthread_mutex_lock(&p->lock);
    bool stop = p->cancel;
    pthread_mutex_unlock(&p->lock);
    return stop;
}

static void on_captured(void *publisher)
{
    dw_publisher *p = publisher;
    pthread_mutex_lock(&p->lock);
    dw_job_fate(p, p->ticket)->captured = true;
    if (p->phase == DW_JOB_ENCODING)
        p->phase = DW_JOB_UPLOADING;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* Finds out where the stream stands, where that was left open. */
static dw_status settle_past(dw_publisher *p, dw_error *err)
{
    if (p->fenced)
        return dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                       "another writer took over the stream; open it again to take it "
                       "back");
    dw_status status = dw_commit_settle(p, err);
    if (status == DW_OK && p->baseline_lost) {
        status = dw_baseline_catch_up(p, err);
        if (status == DW_OK && p->options.rank == 0)
            (void)dw_hint_load(p, NULL);
    }
    return status;
}

static dw_status upload(dw_publisher *p, const char *write_id, dw_error *err)
{
    dw_live_choose(p);
    const dw_progress stop = {dw_job_stop, p};
    const dw_encode_version version = {
        .pieces = &p->pieces,
        .base = p->base,
        .next = p->next,
        .base_digests = p->pieces.digests,
        .next_digests = p->pieces.next,
        .from = p->head.version,
        .to = p->head.version + 1,
        .store = p->store,
        .write_id = write_id,
        .max_object_bytes = p->options.max_object_bytes,
        .spool_dir = p->options.spool_dir,
        .n_threads = p->options.n_threads,
        .stop = &stop,
        .captured = on_captured,
        .captured_context = p,
    };
    return dw_encode_upload(&p->part, &version, err);
}

/* From here on the job can no longer be given up. False where it was. */
static bool enter_commit(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    bool go = !p->cancel;
    p->committing = go;
    pthread_mutex_unlock(&p->lock);
    return go;
}

static dw_status commit_whole(dw_publisher *p, const char *write_id,
                              dw_position *position, dw_error *err)
{
    dw_commit_record commit = {.step = p->step,
                               .notes = p->notes,
                               .content = DW_CONTENT_DELTA,
                               .n_changed = p->part.n_changed,
                               .objects = p->part.objects};
    memcpy(commit.write_id, write_id, sizeof commit.write_id);
    commit.state = dw_pieces_state(&p->pieces, p->pieces.next);
    commit.suspect_from = dw_sweep_suspect_from(p);
    return dw_commit_create(p, &commit, position, err);
}

void dw_job_report(const dw_publisher *p, const dw_position *position,
                   dw_publish_report *report)
{
    report->version = position->version;
    report->state = position->state;
    report->unchanged = report->n_changed == 0 && !report->restarted;
    report->diff_ms = p->part.diff_ms;
    report->upload_ms = p->part.upload_ms;
    report->total_ms = dw_clock_ms() - p->t_start;
}

void dw_job_move_on(dw_publisher *p, const dw_position *position)
{
    p->suspect_from = 0;
    dw_baseline_advance(p, position, &p->part);
    dw_uploaded_release(&p->part);
}

static dw_status fail_cancelled(const dw_publisher *p, dw_error *err)
{
    return dw_fail(err, DW_CANCELLED, dw_store_url(p->store),
                   "given up for a newer version");
}

/* The newest version does not decode, so this one holds the whole model. */
static dw_status run_restart(dw_publisher *p, dw_position *position,
                             dw_publish_report *report, dw_error *err)
{
    dw_restart r;
    dw_commit_record commit = {.step = p->step, .notes = p->notes};
    dw_status status = dw_restart_open(&r, p, err);
    for (size_t t = 0; status == DW_OK && t < p->pieces.n_table; t++)
        status = dw_live_read(p, t, r.model.tensors[t].data, err);
    /* its upload takes long: if newer versions made it give up, it would never end */
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
        *position = p->head;
        dw_job_report(p, position, report);
    }
    dw_restart_close(&r);
    return status;
}

/* A version failed its proof: if the baseline is damaged, it is repaired now. */
static void examine_baseline(dw_publisher *p)
{
    bool damaged;
    if (dw_sweep_all(p, &damaged, NULL) != DW_OK)
        dw_baseline_lose(p); /* the next publish tries again */
}

/* Up to the commit; or, where the caller carries the receipts, up to its own. */
static dw_status run_job(dw_publisher *p, dw_position *position,
                         dw_publish_report *report, dw_error *err)
{
    char write_id[DW_ID_TEXT];
    dw_uploaded_release(&p->part);
    dw_live_tell(p, p->unchanged);
    dw_status status = settle_past(p, err);
    if (status == DW_OK && p->broken)
        return run_restart(p, position, report, err);
    if (status == DW_OK)
        status =
            p->sharded ? dw_rank_write_id(write_id, p, err) : dw_random_id(write_id, err);
    if (status == DW_OK)
        status = upload(p, write_id, err);
    on_captured(p);          /* whatever became of it, the weights are read no more */
    if (!p->baseline_lost) { /* else it may not even be open */
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
        status = dw_receipt_make(p, err);
        if (status != DW_OK || p->options.receipts == DW_RECEIPTS_CALLER)
            return status;
        status = dw_receipts_exchange(p, &p->part.objects, position, report, err);
    } else {
        if (!enter_commit(p))
            return fail_cancelled(p, err);
        status = commit_whole(p, write_id, position, err);
        report->n_changed = p->part.n_changed;
        report->n_objects = p->part.objects.n;
        report->n_bytes = dw_objects_bytes(&p->part.objects);
        report->suspect_from = dw_sweep_suspect_from(p);
    }
    if (status == DW_OK)
        dw_job_report(p, position, report);
    return status;
}

void dw_job_finish(dw_publisher *p, dw_status status, const dw_error *error,
                   const dw_publish_report *report)
{
    dw_ticket_fate *fate = dw_job_fate(p, p->ticket);
    fate->captured = true;
    fate->done = true;
    fate->status = status;
    fate->error = *error;
    fate->report = *report;
    if (status == DW_OK)
        p->version = report->version;
    fate->report.upkeep_dropped = p->upkeep.n_dropped;
    fate->report.upkeep_behind = status == DW_OK && p->upkeep.version != DW_NO_VERSION
                                     ? p->version - p->upkeep.version
                                     : 0;
    /* the ranks may have heard different things: each looks before the next round */
    if (p->sharded && status != DW_OK)
        p->unsettled = true;
    p->round++;
    p->committing = false;
    p->cancel = false;
}

void dw_job_follow_up(dw_publisher *p, const dw_position *position,
                      const dw_publish_report *report)
{
    dw_error error = {0};
    dw_status status = DW_OK;
    if (report->restarted) {
        p->suspect_from = 0;
        (void)dw_hint_load(p, NULL);
        (void)dw_hint_put(p, NULL);
        if (!dw_publisher_is_closing(p)) /* else the next publisher does it */
            status = dw_baseline_catch_up(p, &error);
        dw_upkeep_note(p, status, &error);
        return;
    }
    dw_job_move_on(p, position);
    status = dw_sweep_share(p, &error);
    if (p->options.rank == 0) {
        dw_status put = dw_hint_commit(p, report->n_bytes, report->n_objects,
                                       status == DW_OK ? &error : NULL);
        status = status == DW_OK ? put : status;
    }
    dw_upkeep_note(p, status, &error);
    if (!p->baseline_lost)
        dw_upkeep_ask(p);
}

/* Does one job; called and left with the lock held. The next job is accepted as soon as
 * this one is committed, and begins when the baseline has moved. */
static void do_job(dw_publisher *p)
{
    dw_error error = {0};
    dw_position position;
    dw_publish_report report = {0};
    pthread_mutex_unlock(&p->lock);
    dw_status status = run_job(p, &position, &report, &error);
    if (status == DW_IO) /* versions come first: the next one may have room */
        (void)dw_held_give_up_copy(&p->upkeep.held);
    pthread_mutex_lock(&p->lock);
    if (status == DW_OK && p->sharded && p->options.receipts == DW_RECEIPTS_CALLER) {
        p->phase = DW_JOB_UPLOADED;
        return;
    }
    dw_job_finish(p, status, &error, &report);
    p->phase = DW_JOB_IDLE;
    if (status != DW_OK)
        return;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    dw_job_follow_up(p, &position, &report);
    pthread_mutex_lock(&p->lock);
}

/* Upkeep found that the baseline is not the version that it should be. If it is damaged,
 * it is repaired, and a later version makes what was not made. Called and left with the
 * lock held. */
static void examine_doubt(dw_publisher *p)
{
    dw_upkeep *u = &p->upkeep;
    dw_error error = u->doubt_error;
    dw_status status = u->doubt;
    bool damaged = false;
    pthread_mutex_unlock(&p->lock);
    if (!p->baseline_lost) {
        dw_error found = {0};
        dw_status swept = dw_sweep_all(p, &damaged, &found);
        if (swept != DW_OK || damaged) {
            status = swept;
            error = found;
        }
    }
    dw_upkeep_note(p, status, &error);
    pthread_mutex_lock(&p->lock);
    u->doubt = DW_OK;
}

/* Whether there is something to do, and the baseline is free; the lock is held. */
static bool has_work(const dw_publisher *p)
{
    return !p->busy && (p->phase == DW_JOB_ENCODING || p->upkeep.doubt != DW_OK);
}

void *dw_job_loop(void *publisher)
{
    dw_publisher *p = publisher;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!has_work(p) && !p->closing)
            pthread_cond_wait(&p->changed, &p->lock);
        if (p->closing && p->phase != DW_JOB_ENCODING)
            break;
        p->busy = true;
        if (p->upkeep.doubt != DW_OK)
            examine_doubt(p);
        else
            do_job(p);
        p->busy = false;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}
