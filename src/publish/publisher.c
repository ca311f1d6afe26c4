/* A publisher: its thread, the calls of its caller, opening and closing.
 *
 * A call of dw_publisher_publish is a job. Its phase, under the lock:
 *
 *          submit               captured               the outcome is known
 *     IDLE ──────▶ ENCODING ───────────────▶ UPLOADING ──────────────────▶ IDLE
 *                  weights are read          the caller may change them
 *
 * What a job can do follows from two states, which outlive it:
 *
 *     the baseline (baseline.c)                    the claim (commits.c)
 *
 *            a version is not applied,                     a reply is lost
 *     READY ───────────────────────▶ BEHIND         HELD ─────────────────▶ OPEN
 *       ▲     or it is damaged        │ │ ▲           ▲                      │
 *       └─────────────────────────────┘ │ │           └──────────────────────┘
 *             catch_up                  ▼ │               resolve
 *                                      BROKEN       FENCED, from both: another writer
 *     a version does not decode: the next one       took over. Final
 *     restarts the stream
 *
 * A publish begins with resolve_past, the only way back to READY and HELD. If a job
 * fails, baseline and head stay, so the next version covers it.
 */
#include "publish/publisher.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/options.h"
#include "codec/digest.h"
#include "publish/restart.h"
#include "store/store.h"

#define SLICE_MS 100 /* between two calls of a progress function */
#define SAY_AGAIN_MS 1000

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
    uint64_t version = p->commits.head.version;
    pthread_mutex_unlock(&p->lock);
    return version;
}

/* ---- whether the weights are the newest version ---- */

/* The digest of piece I of the caller's weights, as they are published. */
static dw_status digest_live(dw_digest *out, dw_publisher *p, size_t i, dw_error *err)
{
    const size_t t = p->pieces.cut.items[i].tensor;
    dw_tensor piece = p->live.views[i];
    uint16_t *rounded = NULL;
    dw_status status = DW_OK;
    if (p->live.source.read) {
        status = dw_live_make_piece(p, i, err);
        piece = p->live.chosen[i];
    } else if (piece.dtype != p->pieces.table[t].dtype) {
        piece = p->pieces.shapes.tensors[i];
        rounded = dw_alloc((size_t)piece.n_bytes);
        if (!rounded)
            return dw_fail_memory(err, NULL);
        const dw_tensor *from = &p->live.views[i];
        status =
            dw_place_round((dw_place){NULL, rounded},
                           (dw_place){from->device, from->data}, piece.n_bytes / 2, err);
        piece.data = rounded;
    }
    if (status == DW_OK)
        status = dw_digest_tensors(out, NULL, &piece, 1, p->options.n_threads, NULL, err);
    dw_free(rounded);
    return status;
}

static dw_status compare_live(dw_publisher *p, bool *is_current, dw_error *err)
{
    *is_current = false;
    if (p->baseline.state != DW_BASE_READY || p->commits.claim != DW_CLAIM_HELD)
        return DW_OK;
    *is_current = true;
    for (size_t i = 0; *is_current && i < p->pieces.cut.n; i++) {
        dw_digest digest = 0;
        dw_status status = digest_live(&digest, p, i, err);
        if (status != DW_OK)
            return status;
        *is_current = digest == p->baseline.digests[i];
    }
    return DW_OK;
}

/* ---- the publisher's thread ---- */

dw_status dw_job_open(dw_publisher *p, dw_error *err)
{
    p->job.unchanged = dw_alloc_zeroed(p->pieces.n_table, sizeof *p->job.unchanged);
    return p->job.unchanged ? DW_OK : dw_fail_memory(err, NULL);
}

static void close_job(dw_job *job)
{
    dw_uploaded_release(&job->part);
    dw_free(job->step);
    dw_free(job->notes);
    dw_free(job->unchanged);
}

static dw_ticket_fate *fate_of(dw_publisher *p, uint64_t ticket)
{
    return &p->job.fates[ticket % DW_KEPT_TICKETS];
}

static dw_ticket_fate *find_fate(dw_publisher *p, uint64_t ticket)
{
    dw_ticket_fate *fate = fate_of(p, ticket);
    return ticket != 0 && fate->ticket == ticket ? fate : NULL;
}

static dw_status fail_ticket(const dw_publisher *p, uint64_t ticket, dw_error *err)
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

/* For dw_progress: the same, and notes how far the job is. */
static int on_compared(void *publisher, uint64_t n_done, uint64_t n_total)
{
    dw_publisher *p = publisher;
    pthread_mutex_lock(&p->lock);
    p->job.progress = (dw_publish_progress){.n_compared = n_done, .n_weights = n_total};
    pthread_mutex_unlock(&p->lock);
    return dw_job_cancelled(p, n_done, n_total);
}

static void on_captured(void *publisher)
{
    dw_publisher *p = publisher;
    pthread_mutex_lock(&p->lock);
    fate_of(p, p->job.ticket)->captured = true;
    if (p->job.captured_us == 0)
        p->job.captured_us = dw_clock_us() - p->job.t_start_us;
    if (p->job.phase == DW_JOB_ENCODING)
        p->job.phase = DW_JOB_UPLOADING;
    p->job.progress.n_encoded = 0;
    for (size_t i = 0; i < p->job.part.objects.n; i++) {
        dw_delta_info info;
        dw_delta_get_info(p->job.part.deltas[i], &info);
        p->job.progress.n_encoded += info.n_bytes;
    }
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

static dw_status take_origin(dw_origin *out, const dw_version_source *given,
                             dw_error *err)
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

static dw_status take_turn(dw_publisher *p, const char *step, dw_error *err)
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

static dw_status submit(dw_publisher *p, uint64_t *ticket, const dw_publish_note *note,
                        dw_error *err)
{
    dw_job *job = &p->job;
    dw_status status = take_origin(&job->source, note->source, err);
    if (status != DW_OK)
        return status;
    if (!replace_text(&job->step, note->step) || !replace_text(&job->notes, note->notes))
        return dw_fail_memory(err, NULL);
    for (size_t t = 0; t < p->pieces.n_table; t++)
        job->unchanged[t] = note->unchanged && note->unchanged[p->live.number[t]];
    dw_file_set_move(&p->files.wanted, &p->files.pending);
    *ticket = ++job->ticket;
    job->n_covered = job->n_merged; /* what comes now is for the version after it */
    job->held_ms = job->waited_ms;
    job->n_merged = job->waited_ms = 0;
    *fate_of(p, *ticket) = (dw_ticket_fate){.ticket = *ticket};
    job->t_start_us = dw_clock_us();
    job->captured_us = 0;
    job->phase = DW_JOB_ENCODING;
    pthread_cond_broadcast(&p->changed);
    return DW_OK;
}

static void cancel_job(dw_publisher *p)
{
    dw_job *job = &p->job;
    if ((job->phase == DW_JOB_ENCODING || job->phase == DW_JOB_UPLOADING) &&
        !job->committing)
        job->cancel = true;
}

/* Makes this thread the owner of the baseline. */
static void take_baseline(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->busy)
        pthread_cond_wait(&p->changed, &p->lock);
    p->busy = true;
    pthread_mutex_unlock(&p->lock);
}

static void release_baseline(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    p->busy = false;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* Finds out what became of an earlier commit, and lets the baseline catch up. For the
 * owner of the baseline. */
static dw_status resolve_past(dw_publisher *p, dw_error *err)
{
    dw_status status = dw_commit_resolve(p, err);
    if (p->baseline.state == DW_BASE_READY && !dw_baseline_is_whole(p))
        dw_baseline_lose(p);
    if (status == DW_OK && p->baseline.state != DW_BASE_READY) {
        status = dw_baseline_catch_up(p, err);
        if (status == DW_OK && p->options.rank == 0)
            (void)dw_hint_load(&p->hint, p->stream, p->commits.head.version, NULL);
    }
    return status;
}

static dw_status upload(dw_publisher *p, const char *write_id, dw_error *err)
{
    dw_live_choose(p);
    const dw_progress stop = {dw_job_cancelled, p}, compared = {on_compared, p};
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
        .t_start_us = p->job.t_start_us,
        .stop = &stop,
        .compared = &compared,
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

dw_times dw_job_times(const dw_publisher *p)
{
    dw_times times = p->job.part.times;
    times.us[DW_CAPTURED] = p->job.captured_us;
    return times;
}

static dw_status commit_whole(dw_publisher *p, const char *write_id,
                              dw_position *position, dw_publish_report *report,
                              dw_error *err)
{
    dw_commit_record commit = {.step = p->job.step,
                               .notes = p->job.notes,
                               .content = DW_CONTENT_DELTA,
                               .n_changed = p->job.part.n_changed,
                               .times = dw_job_times(p),
                               .objects = p->job.part.objects};
    memcpy(commit.write_id, write_id, sizeof commit.write_id);
    commit.state = dw_pieces_state(&p->pieces, p->job.part.digests);
    commit.suspect_from = report->suspect_from = dw_sweep_suspect_from(p);
    report->n_changed = commit.n_changed;
    report->n_objects = commit.objects.n;
    report->n_bytes = dw_objects_bytes(&commit.objects);
    return dw_commit_create(p, &commit, position, err);
}

static void fill_report(const dw_publisher *p, const dw_position *position,
                        dw_publish_report *report)
{
    report->version = position->version;
    report->state = position->state;
    report->unchanged = report->n_changed == 0 && !report->restarted;
    report->n_not_finite = p->job.part.n_wild;
    report->times = dw_job_times(p);
    report->times.us[DW_COMMITTED] = dw_clock_us() - p->job.t_start_us;
    report->n_file_bytes = p->files.n_stored_bytes;
}

static void move_on(dw_publisher *p, const dw_position *position)
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
        fill_report(p, position, report);
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
    return dw_captures_are_current(p) && p->baseline.state == DW_BASE_BROKEN &&
           p->commits.claim == DW_CLAIM_HELD;
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
        status = compare_live(p, &is_current, err);
    on_captured(p);
    if (status != DW_OK)
        return status;
    *position = p->commits.head;
    fill_report(p, position, report);
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
        status = resolve_past(p, err);
    if (status == DW_OK && p->options.n_ranks > 1) {
        p->job.is_repeat = p->ranks.committed == p->job.turn;
        if (p->job.is_repeat)
            return find_repeated(p, position, report, err);
        status = dw_ranks_say_begun(p, err);
    }
    if (status == DW_OK &&
        (p->captures.n > 0 ? is_held_restart : p->baseline.state == DW_BASE_BROKEN))
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
    on_captured(p); /* also after a failure: the weights are not read again */
    if (p->baseline.state == DW_BASE_READY) { /* otherwise it may not even be open */
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
        status = commit_whole(p, write_id, position, report, err);
    }
    if (status == DW_OK)
        fill_report(p, position, report);
    return status;
}

/* The job became no version: the next one covers it, and what it covered. */
static void merge_job(dw_job *job)
{
    job->n_merged += job->n_covered + 1;
    job->waited_ms += job->held_ms;
}

static void finish_job(dw_publisher *p, dw_status status, const dw_error *error,
                       const dw_publish_report *report)
{
    dw_ticket_fate *fate = fate_of(p, p->job.ticket);
    fate->captured = true;
    fate->done = true;
    fate->status = status;
    fate->error = *error;
    fate->report = *report;
    fate->report.n_merged = p->job.n_covered;
    fate->report.waited_ms = p->job.held_ms;
    if (status != DW_OK)
        merge_job(&p->job);
    fate->report.upkeep_behind = dw_upkeep_behind(p);
    fate->report.removal_denied = p->upkeep.denied;
    if (status == DW_OK)
        p->ranks.committed = p->job.turn;
    p->job.committing = false;
    p->job.cancel = false;
    p->job.phase = DW_JOB_IDLE;
}

/* The work after a commit: the baseline moves, and then may be used by a call; meanwhile
 * the hint is put, and upkeep asked. At last the sweep. */
static void follow_up(dw_publisher *p, const dw_position *position,
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
    move_on(p, position);
    release_baseline(p);
    if (p->options.rank == 0)
        status = dw_hint_commit(&p->hint, p->stream, position->version, report->n_bytes,
                                report->n_objects, &error);
    dw_upkeep_note(p, status, &error);
    dw_upkeep_ask(p);
    take_baseline(p);
    dw_upkeep_note(p, dw_sweep_share(p, &error), &error);
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
    /* the ranks may disagree on the outcome: each reads the stream before it goes on */
    if (status != DW_OK && p->sharded)
        dw_claim_doubt(p);
    pthread_mutex_lock(&p->lock);
    finish_job(p, status, &error, &report);
    if (status != DW_OK || p->job.is_repeat)
        return;
    p->job.is_followed_up = false;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    follow_up(p, &position, &report);
    pthread_mutex_lock(&p->lock);
    p->job.is_followed_up = true;
}

/* A call needs the baseline, which is not ready. It waits only as long as it may. */
static void do_resolve(dw_publisher *p)
{
    pthread_mutex_unlock(&p->lock);
    (void)resolve_past(p, NULL); /* the job tries again, and reports why it fails */
    pthread_mutex_lock(&p->lock);
    p->job.phase = DW_JOB_IDLE;
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

static bool has_work(const dw_publisher *p)
{
    return p->closing || (!p->busy && (p->job.phase == DW_JOB_ENCODING ||
                                       p->job.phase == DW_JOB_RESOLVING));
}

bool dw_publisher_has_work(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    const bool result = has_work(p);
    pthread_mutex_unlock(&p->lock);
    return result;
}

/* Waits for one change. Other ranks that have not heard of a failure wait for this one, so
 * it tells them again now and then. The lock is held. */
static void wait_for_work(dw_publisher *p)
{
    const struct timespec end = after_ms(SAY_AGAIN_MS);
    if (!p->ranks.is_unheard) {
        pthread_cond_wait(&p->changed, &p->lock);
    } else if (wait_changed(p, SAY_AGAIN_MS, &end) != 0 && !has_work(p)) {
        pthread_mutex_unlock(&p->lock);
        dw_ranks_say_again(p);
        pthread_mutex_lock(&p->lock);
    }
}

static void *run(void *publisher)
{
    dw_publisher *p = publisher;
    const dw_job_phase *phase = &p->job.phase;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!has_work(p))
            wait_for_work(p);
        if (p->closing && *phase != DW_JOB_ENCODING)
            break;
        p->busy = true;
        if (*phase == DW_JOB_ENCODING)
            do_job(p);
        else
            do_resolve(p);
        p->busy = false;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static dw_status start_thread(dw_publisher *p, dw_error *err)
{
    p->job.has_thread = pthread_create(&p->job.thread, NULL, run, p) == 0;
    return p->job.has_thread ? DW_OK
                             : dw_fail(err, DW_NO_MEMORY, NULL, "cannot start a thread");
}

static void stop_thread(dw_publisher *p)
{
    if (p->job.has_thread)
        pthread_join(p->job.thread, NULL);
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
 * The lock is held on entry and on return, and nobody owns the baseline. If that could
 * not catch up, nothing is read: the version fails, and its error says why. */
static dw_status hold_weights(dw_publisher *p, const dw_publish_note *note,
                              dw_status so_far, dw_ticket_fate *fate, dw_error *err)
{
    dw_status status = so_far;
    p->busy = true;
    pthread_mutex_unlock(&p->lock);
    p->captures.is_held = false;
    if (!is_committed(p, note))
        fate->status =
            dw_live_begin(p, 2 * p->job.turn, note->unchanged, so_far, &fate->error);
    if (status == DW_OK && p->captures.n > 0 && p->baseline.state != DW_BASE_BEHIND)
        status = dw_captures_hold(p, note, err);
    pthread_mutex_lock(&p->lock);
    p->busy = false;
    pthread_cond_broadcast(&p->changed);
    return status;
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

/* Whether a publish can begin. A call that reads weights itself, IS_HELD, needs a
 * baseline that nobody uses, and lets the publisher's thread get it ready: once,
 * *HAS_TRIED. */
static bool may_begin(dw_publisher *p, bool is_held, bool *has_tried)
{
    if (p->job.phase != DW_JOB_IDLE || (is_held && p->busy))
        return false;
    if (!is_held || *has_tried ||
        (p->baseline.state == DW_BASE_READY && p->commits.claim != DW_CLAIM_OPEN))
        return true;
    *has_tried = true;
    p->job.phase = DW_JOB_RESOLVING;
    pthread_cond_broadcast(&p->changed);
    return false;
}

/* Waits for the version before, at most `max_wait_ms`; of ranks, none begins unless all
 * can. SO_FAR is the status of this call: after a failure it does not begin. *IS_FREE:
 * whether the publish can begin. The lock is held on entry and on return, not while it
 * asks. */
static dw_status wait_for_before(dw_publisher *p, const dw_publish_note *note,
                                 dw_status so_far, bool is_held, bool *is_free,
                                 dw_error *err)
{
    const dw_publish_options *o = &p->options;
    const bool agrees = o->n_ranks > 1 && o->agree && o->max_wait_ms != UINT_MAX;
    const unsigned limit_ms = o->n_ranks > 1 && !o->agree ? UINT_MAX : o->max_wait_ms;
    const uint64_t start = dw_clock_ms();
    dw_status status = DW_OK;
    bool has_tried = false;
    p->n_waiting++;
    while (!(*is_free = may_begin(p, is_held, &has_tried)) && status == DW_OK) {
        const uint64_t waited_ms = dw_clock_ms() - start;
        if (limit_ms != UINT_MAX && waited_ms >= limit_ms)
            break;
        if (o->when_busy == DW_BUSY_FOLD)
            cancel_job(p);
        unsigned ms = SLICE_MS;
        if (limit_ms != UINT_MAX && limit_ms - waited_ms < ms)
            ms = (unsigned)(limit_ms - waited_ms);
        const struct timespec end = after_ms(ms);
        (void)wait_changed(p, ms, &end);
        pthread_mutex_unlock(&p->lock);
        if (note->progress.report &&
            note->progress.report(note->progress.context, 0, 0) != 0)
            status = dw_fail(err, DW_CANCELLED, dw_store_url(p->store),
                             "cancelled while waiting for the version before");
        pthread_mutex_lock(&p->lock);
    }
    p->n_waiting--;
    p->job.waited_ms += dw_clock_ms() - start;
    if (!agrees)
        return status;
    uint32_t is_busy = !*is_free || status != DW_OK || so_far != DW_OK;
    pthread_mutex_unlock(&p->lock);
    dw_error fault; /* a rank ended: the version fails, and its error names the rank */
    if (o->agree(o->agree_context, &is_busy, 1, &fault) != DW_OK)
        is_busy = 0;
    pthread_mutex_lock(&p->lock);
    *is_free = *is_free && is_busy == 0;
    return status;
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
    bool is_free = status == DW_OK || is_held || p->options.agree;
    if (is_free) { /* also after a fault: the other ranks wait for this one */
        const dw_status waited = wait_for_before(p, &note, status, is_held, &is_free,
                                                 status == DW_OK ? err : NULL);
        is_free = is_free && waited == DW_OK && (status == DW_OK || is_held);
        status = status == DW_OK ? waited : status;
    }
    if (!is_free) {
        p->job.n_merged += status == DW_OK;
        pthread_mutex_unlock(&p->lock);
        return status;
    }
    if (status == DW_OK)
        status = dw_claim_check(p, err);
    if (status == DW_OK)
        status = take_turn(p, note.step, err);
    dw_ticket_fate fate = {.captured = true, .done = true};
    if (is_held)
        status = hold_weights(p, &note, status, &fate, err);
    const bool restarts = p->captures.n > 0 && p->baseline.state == DW_BASE_BROKEN;
    if (status == DW_OK)
        status = submit(p, ticket, &note, err);
    if (status == DW_OK && fate.status != DW_OK) { /* nothing is left to do */
        fate.ticket = *ticket;
        *fate_of(p, *ticket) = fate;
        merge_job(&p->job);
        p->job.phase = DW_JOB_IDLE;
    }
    while (status == DW_OK && restarts && !fate_of(p, *ticket)->captured)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return status;
}

/* Waits until the weights of TICKET are captured or, with UNTIL_DONE, its outcome is
 * known; or until the time is over. NULL if the ticket is unknown. The lock is held. */
static dw_ticket_fate *wait_for(dw_publisher *p, uint64_t ticket, bool until_done,
                                unsigned timeout_ms)
{
    const struct timespec end = after_ms(timeout_ms);
    dw_ticket_fate *fate;
    int over = 0;
    while ((fate = find_fate(p, ticket)) && !(until_done ? fate->done : fate->captured) &&
           over == 0)
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
    return fate ? DW_OK : fail_ticket(p, ticket, err);
}

dw_status dw_publisher_wait(dw_publisher *p, uint64_t ticket, unsigned timeout_ms,
                            bool *done, dw_publish_report *report, dw_error *err)
{
    pthread_mutex_lock(&p->lock);
    const dw_ticket_fate *fate = wait_for(p, ticket, true, timeout_ms);
    const bool over = fate && fate->done;
    dw_status status;
    if (!fate) {
        status = fail_ticket(p, ticket, err);
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

static bool is_drained(const dw_publisher *p)
{
    return p->job.phase == DW_JOB_IDLE && p->job.is_followed_up && !p->busy &&
           dw_upkeep_is_idle(p);
}

void dw_publisher_progress(dw_publisher *p, dw_publish_progress *out)
{
    pthread_mutex_lock(&p->lock);
    *out = p->job.progress;
    pthread_mutex_unlock(&p->lock);
}

bool dw_publisher_drained(dw_publisher *p, unsigned timeout_ms)
{
    const struct timespec end = after_ms(timeout_ms);
    pthread_mutex_lock(&p->lock);
    while (!is_drained(p) && wait_changed(p, timeout_ms, &end) == 0)
        ;
    const bool drained = is_drained(p);
    pthread_mutex_unlock(&p->lock);
    return drained;
}

void dw_publisher_cancel(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    cancel_job(p);
    pthread_mutex_unlock(&p->lock);
}

dw_status dw_publisher_drain(dw_publisher *p, dw_error *err)
{
    dw_publisher_drained(p, UINT_MAX);
    return dw_upkeep_take_fault(p, err);
}

/* Waits for the version in progress, and makes this thread the owner of the baseline. */
static void begin(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->job.phase != DW_JOB_IDLE)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
    take_baseline(p);
}

dw_status dw_publisher_is_current(dw_publisher *p, bool *is_current, dw_error *err)
{
    *is_current = false;
    begin(p);
    dw_status status = dw_live_begin(p, 2 * p->job.turn + 1, NULL, DW_OK, err);
    if (status == DW_OK)
        status = compare_live(p, is_current, err);
    release_baseline(p);
    return status;
}

dw_status dw_publisher_state(dw_publisher *p, dw_digest *state, dw_error *err)
{
    if (p->sharded)
        return dw_fail(err, DW_INVALID, NULL,
                       "the shards of one rank have no state of a version");
    dw_digest *digests = dw_alloc_array(p->pieces.cut.n + 1, sizeof *digests);
    if (!digests)
        return dw_fail_memory(err, NULL);
    begin(p);
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < p->pieces.cut.n; i++)
        status = digest_live(&digests[i], p, i, err);
    if (status == DW_OK)
        *state = dw_pieces_state(&p->pieces, digests);
    release_baseline(p);
    dw_free(digests);
    return status;
}

/* Waits for the version of TICKET. */
static dw_status wait_committed(dw_publisher *p, uint64_t ticket,
                                const dw_progress *progress, dw_error *err)
{
    for (bool done = false;;) {
        dw_status status = dw_publisher_wait(p, ticket, SLICE_MS, &done, NULL, err);
        if (done || status != DW_UNAVAILABLE)
            return status;
        if (progress->report && progress->report(progress->context, 0, 0) != 0)
            dw_publisher_cancel(p);
    }
}

static dw_status publish_changed(dw_publisher *p, const dw_progress *progress,
                                 dw_error *err)
{
    bool is_current = true;
    uint64_t ticket = DW_TICKET_SKIPPED;
    const dw_publish_note note = {.struct_bytes = sizeof note,
                                  .step = p->options.first_step,
                                  .notes = p->options.first_notes,
                                  .source = p->options.first_source};
    dw_status status = dw_publisher_is_current(p, &is_current, err);
    if (status != DW_OK || is_current)
        return status;
    status = dw_publisher_publish(p, &ticket, &note, err);
    return status == DW_OK ? wait_committed(p, ticket, progress, err) : status;
}

/* ---- opening and closing ---- */

static bool copy_text(const char **text)
{
    if (*text)
        *text = dw_copy_string(*text);
    return *text != NULL;
}

/* "none" is what torchrun sets if nobody names the job. */
static const char *job_of_environment(void)
{
    const char *run = getenv("TORCHELASTIC_RUN_ID");
    if (!run || !*run || strcmp(run, "none") == 0)
        run = getenv("SLURM_JOB_ID");
    return run ? run : "";
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
    const char *start = o->start ? o->start : o->job;
    const bool is_start_named = start && *start;
    if (!o->job)
        o->job = job_of_environment();
    const char **texts[] = {&o->base_name, &o->base,  &o->baseline_dir, &o->spool_dir,
                            &o->job,       &o->start, &o->first_step,   &o->first_notes};
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
    status = take_origin(&p->job.source, o->first_source, err);
    if (status != DW_OK)
        return status;
    if (o->max_object_bytes == 0)
        o->max_object_bytes = DW_OBJECT_BYTES;
    if (o->n_ranks == 0)
        o->n_ranks = 1;
    p->sharded = o->n_ranks > 1 || o->shards;
    if (o->rank >= o->n_ranks || (o->n_ranks > 1 && (!is_start_named || !o->shards)))
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
    /* ranks that cancel different steps would rarely meet */
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
    p->job.is_followed_up = true;
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
    /* only this thread calls it: the others, which start now, do not see it */
    const dw_progress progress = p->options.progress;
    p->options.progress = (dw_progress){0};
    if (status == DW_OK)
        status = start_thread(p, err);
    if (status == DW_OK)
        status = dw_upkeep_start(p, err);
    if (status == DW_OK && p->options.publish_changed && !p->sharded)
        status = publish_changed(p, &progress, err);
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
    stop_thread(p);
    dw_ranks_leave(p, NULL);
    dw_upkeep_stop(p);
    close_job(&p->job);
    dw_ranks_close(&p->ranks);
    dw_captures_close(&p->captures);
    dw_baseline_close(&p->baseline);
    dw_live_close(&p->live);
    dw_free((char *)p->options.base_name);
    dw_free((char *)p->options.base);
    dw_free((char *)p->options.baseline_dir);
    dw_free((char *)p->options.spool_dir);
    dw_free((char *)p->options.job);
    dw_free((char *)p->options.start);
    dw_free((char *)p->options.first_step);
    dw_free((char *)p->options.first_notes);
    dw_pieces_release(&p->pieces);
    dw_publisher_free(p);
}
