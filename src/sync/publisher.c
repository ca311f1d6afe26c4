#include "sync/publisher.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "store/store.h"

#define OBJECT_BYTES (32u << 20)
#define ANCHOR_BYTES (4ull << 30)

void dw_publish_options_init(dw_publish_options *options)
{
    *options = (dw_publish_options){.fork_version = DW_LATEST,
                                    .folds = {4, 16, 64, 0},
                                    .anchor_factor = 0.1,
                                    .n_ranks = 1};
}

/* ---- opening and closing ---- */

static bool copy_text(const char **text)
{
    if (*text)
        *text = dw_copy_string(*text);
    return *text != NULL;
}

static dw_status copy_options(dw_publisher *p, const dw_publish_options *given,
                              dw_error *err)
{
    if (given)
        p->options = *given;
    else
        dw_publish_options_init(&p->options);
    dw_publish_options *o = &p->options;
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
    if (o->max_object_bytes == 0)
        o->max_object_bytes = OBJECT_BYTES;
    if (o->max_anchor_bytes == 0)
        o->max_anchor_bytes = ANCHOR_BYTES;
    if (o->n_ranks == 0)
        o->n_ranks = 1;
    p->sharded = o->n_ranks > 1 || o->shards;
    if (o->rank >= o->n_ranks || (o->n_ranks > 1 && (!o->job || !*o->job)) ||
        (o->n_ranks > 1 && !o->shards))
        return dw_fail(
            err, DW_INVALID, NULL,
            "a sharded publish needs a rank below n_ranks, shards, and the name "
            "of the job");
    /* skipped on one rank and not on another, the rounds would never meet again */
    if (p->sharded)
        o->when_busy = DW_BUSY_WAIT;
    for (size_t i = 0, before = 1; i < DW_MAX_FOLDS; i++) {
        if (o->folds[i] == 0)
            continue;
        if (o->folds[i] <= before || o->folds[i] % before != 0)
            return dw_fail(err, DW_INVALID, NULL,
                           "folds must be of 2 versions or more, each a multiple of the "
                           "one before");
        before = o->folds[i];
    }
    return DW_OK;
}

static void *work(void *publisher);

static dw_status start_thread(dw_publisher *p, dw_error *err)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    p->has_thread = pthread_create(&p->thread, NULL, work, p) == 0;
    return p->has_thread ? DW_OK
                         : dw_fail(err, DW_NO_MEMORY, NULL, "cannot start a thread");
}

dw_status dw_publisher_open(dw_publisher **out, dw_store *store, const dw_tensor *tensors,
                            size_t n_tensors, const dw_publish_options *options,
                            dw_error *err)
{
    *out = NULL;
    dw_publisher *p = dw_alloc_zeroed(1, sizeof *p);
    if (!p)
        return dw_fail_memory(err, NULL);
    p->store = store;
    p->head.version = DW_NO_VERSION;
    p->anchor = DW_NO_VERSION;
    dw_status status = copy_options(p, options, err);
    if (status == DW_OK)
        status = dw_publisher_begin(p, tensors, n_tensors, err);
    if (status == DW_OK)
        status = start_thread(p, err);
    p->options.shards = NULL; /* the caller's, for the call alone */
    p->options.progress = (dw_progress){0};
    p->version = p->head.version;
    if (status == DW_OK)
        *out = p;
    else
        dw_publisher_close(p);
    return status;
}

void dw_publisher_close(dw_publisher *p)
{
    if (!p)
        return;
    if (p->has_thread) {
        pthread_mutex_lock(&p->lock);
        p->closing = true;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
        pthread_mutex_destroy(&p->lock);
        pthread_cond_destroy(&p->changed);
    }
    dw_after_close(p);
    dw_uploaded_release(&p->part);
    dw_writer_release(&p->receipt);
    dw_writer_release(&p->outcome);
    dw_follower_close(p->baseline);
    dw_pieces_release(&p->pieces);
    dw_stream_close(p->stream);
    dw_free(p->live_data);
    dw_free(p->live);
    dw_free(p->base_data);
    dw_free(p->base);
    dw_free(p->memory);
    dw_free(p->step);
    dw_free(p->notes);
    dw_free((char *)p->options.base_name);
    dw_free((char *)p->options.base);
    dw_free((char *)p->options.baseline_dir);
    dw_free((char *)p->options.spool_dir);
    dw_free((char *)p->options.job);
    dw_free((char *)p->options.first_step);
    dw_free((char *)p->options.first_notes);
    dw_free(p);
}

const char *dw_publisher_stream(const dw_publisher *p)
{
    return p->stream->record.stream;
}

uint64_t dw_publisher_version(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    uint64_t version = p->version;
    pthread_mutex_unlock(&p->lock);
    return version;
}

/* ---- the job, on the publisher's thread ---- */

static dw_ticket_fate *fate_of(dw_publisher *p, uint64_t ticket)
{
    return &p->fates[ticket % DW_KEPT_TICKETS];
}

int dw_publisher_stop(void *publisher, uint64_t n_done, uint64_t n_total)
{
    (void)n_done;
    (void)n_total;
    dw_publisher *p = publisher;
    if (!p->has_thread)
        return 0; /* still opening */
    pthread_mutex_lock(&p->lock);
    bool stop = p->cancel || (p->closing && p->phase == DW_JOB_AFTER);
    pthread_mutex_unlock(&p->lock);
    return stop;
}

static void on_captured(void *publisher)
{
    dw_publisher *p = publisher;
    pthread_mutex_lock(&p->lock);
    fate_of(p, p->ticket)->captured = true;
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
    if (status == DW_OK && p->baseline_lost)
        status = dw_baseline_catch_up(p, err);
    return status;
}

static dw_status upload(dw_publisher *p, const char *write_id, dw_error *err)
{
    const dw_progress stop = {dw_publisher_stop, p};
    const dw_encode_version version = {
        .pieces = &p->pieces,
        .base = p->base,
        .next = p->live,
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
    commit.state = dw_digest_add(dw_state_floor(p->pieces.table, p->pieces.n_table),
                                 dw_pieces_share(&p->pieces, p->pieces.next));
    return dw_commit_create(p, &commit, position, err);
}

/* The version of the part that was uploaded is committed: everything moves on. */
static void move_on(dw_publisher *p, const dw_position *position,
                    dw_publish_report *report)
{
    report->version = position->version;
    report->state = position->state;
    report->unchanged = report->n_changed == 0;
    report->diff_ms = p->part.diff_ms;
    report->upload_ms = p->part.upload_ms;
    report->total_ms = dw_clock_ms() - p->t_start;
    dw_baseline_advance(p, position, &p->part);
    dw_uploaded_release(&p->part);
}

static dw_status run_job(dw_publisher *p, dw_publish_report *report, dw_error *err)
{
    char write_id[DW_ID_TEXT];
    dw_position position;
    dw_uploaded_release(&p->part);
    dw_status status = settle_past(p, err);
    if (status == DW_OK)
        status = dw_random_id(write_id, err);
    if (status == DW_OK)
        status = upload(p, write_id, err);
    on_captured(p); /* whatever became of it, the weights are read no more */
    if (status != DW_OK)
        return status;
    if (p->sharded) {
        status = dw_receipt_make(p, err);
        if (status != DW_OK || p->options.receipts == DW_RECEIPTS_CALLER)
            return status;
        status = dw_receipts_exchange(p, &p->part.objects, &position, report, err);
    } else {
        if (!enter_commit(p))
            return dw_fail(err, DW_CANCELLED, dw_store_url(p->store),
                           "given up for a newer version");
        status = commit_whole(p, write_id, &position, err);
        report->n_changed = p->part.n_changed;
        report->n_objects = p->part.objects.n;
        report->n_bytes = dw_objects_bytes(&p->part.objects);
    }
    if (status == DW_OK)
        move_on(p, &position, report);
    return status;
}

static void finish(dw_publisher *p, dw_status status, const dw_error *error,
                   const dw_publish_report *report)
{
    dw_ticket_fate *fate = fate_of(p, p->ticket);
    fate->captured = true;
    fate->done = true;
    fate->status = status;
    fate->error = *error;
    fate->report = *report;
    p->version = p->head.version;
    /* the ranks may have heard different things: each looks before the next round */
    if (p->sharded && status != DW_OK)
        p->unsettled = true;
    p->round++;
    p->committing = false;
    p->cancel = false;
}

/* Does one job; called and left with the lock held. */
static void do_job(dw_publisher *p)
{
    dw_error error = {0};
    dw_publish_report report = {0};
    pthread_mutex_unlock(&p->lock);
    dw_status status = run_job(p, &report, &error);
    pthread_mutex_lock(&p->lock);
    const bool by_caller = p->sharded && p->options.receipts == DW_RECEIPTS_CALLER;
    if (status == DW_OK && by_caller) {
        p->phase = DW_JOB_UPLOADED;
        return;
    }
    finish(p, status, &error, &report);
    if (status != DW_OK || p->options.rank != 0) {
        p->phase = DW_JOB_IDLE;
        return;
    }
    p->phase = DW_JOB_AFTER;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    dw_error after = {0};
    dw_status later = dw_after_commit(p, report.n_bytes, report.n_objects, &after);
    pthread_mutex_lock(&p->lock);
    p->after_status = later;
    p->after_error = after;
    p->cancel = false;
    p->phase = DW_JOB_IDLE;
}

static void *work(void *publisher)
{
    dw_publisher *p = publisher;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->phase != DW_JOB_ENCODING && !p->closing)
            pthread_cond_wait(&p->changed, &p->lock);
        if (p->phase != DW_JOB_ENCODING)
            break;
        do_job(p);
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- the caller's side ---- */

static bool replace_text(char **text, const char *new_text)
{
    char *copy = dw_copy_string(new_text ? new_text : "");
    if (!copy)
        return false;
    dw_free(*text);
    *text = copy;
    return true;
}

dw_status dw_publisher_publish(dw_publisher *p, uint64_t *ticket,
                               const dw_publish_note *note, dw_error *err)
{
    *ticket = DW_TICKET_SKIPPED;
    pthread_mutex_lock(&p->lock);
    dw_status status = DW_OK;
    if (p->phase != DW_JOB_IDLE && p->options.when_busy == DW_BUSY_SKIP) {
        pthread_mutex_unlock(&p->lock);
        return DW_OK;
    }
    if (p->phase == DW_JOB_UPLOADED)
        status = dw_fail(err, DW_INVALID, dw_store_url(p->store),
                         "the version before waits for dw_publisher_commit or "
                         "dw_publisher_settle");
    while (status == DW_OK && p->phase != DW_JOB_IDLE) {
        if (p->options.when_busy == DW_BUSY_FOLD && !p->committing &&
            p->phase != DW_JOB_AFTER)
            p->cancel = true;
        pthread_cond_wait(&p->changed, &p->lock);
    }
    if (status == DW_OK && (!replace_text(&p->step, note ? note->step : NULL) ||
                            !replace_text(&p->notes, note ? note->notes : NULL)))
        status = dw_fail_memory(err, NULL);
    if (status == DW_OK) {
        *ticket = ++p->ticket;
        *fate_of(p, *ticket) = (dw_ticket_fate){.ticket = *ticket};
        p->t_start = dw_clock_ms();
        p->phase = DW_JOB_ENCODING;
        pthread_cond_broadcast(&p->changed);
    }
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

/* The fate of TICKET, or NULL where it is none of the last. */
static dw_ticket_fate *find_fate(dw_publisher *p, uint64_t ticket)
{
    dw_ticket_fate *fate = fate_of(p, ticket);
    return ticket != 0 && fate->ticket == ticket ? fate : NULL;
}

static dw_status fail_ticket(const dw_publisher *p, uint64_t ticket, dw_error *err)
{
    return dw_fail(err, DW_INVALID, dw_store_url(p->store),
                   "ticket %" PRIu64 " is none of the last %d", ticket, DW_KEPT_TICKETS);
}

/* Waits, the lock held, until TICKET is captured or, with UNTIL_DONE, done, or the time
 * is over. NULL where the ticket is not known, or not any more. */
static dw_ticket_fate *wait_for(dw_publisher *p, uint64_t ticket, bool until_done,
                                unsigned timeout_ms)
{
    const struct timespec end = after_ms(timeout_ms);
    dw_ticket_fate *fate;
    int over = 0;
    while ((fate = find_fate(p, ticket)) && !(until_done ? fate->done : fate->captured) &&
           over == 0)
        over = timeout_ms == UINT_MAX
                   ? pthread_cond_wait(&p->changed, &p->lock)
                   : pthread_cond_timedwait(&p->changed, &p->lock, &end);
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
                         "the version is still under way");
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

dw_status dw_publisher_drain(dw_publisher *p, dw_error *err)
{
    pthread_mutex_lock(&p->lock);
    while (p->phase != DW_JOB_IDLE && p->phase != DW_JOB_UPLOADED)
        pthread_cond_wait(&p->changed, &p->lock);
    dw_status status = p->after_status;
    if (status != DW_OK && err)
        *err = p->after_error;
    p->after_status = DW_OK;
    pthread_mutex_unlock(&p->lock);
    return status;
}

/* ---- receipts by the caller ---- */

/* The job is TICKET's, and its upload is over. */
static dw_status wait_uploaded(dw_publisher *p, uint64_t ticket, dw_error *err)
{
    pthread_mutex_lock(&p->lock);
    const dw_ticket_fate *fate;
    while ((fate = find_fate(p, ticket)) && p->options.receipts == DW_RECEIPTS_CALLER &&
           p->ticket == ticket && p->phase != DW_JOB_UPLOADED && !fate->done)
        pthread_cond_wait(&p->changed, &p->lock);
    dw_status status = DW_OK;
    if (!fate)
        status = fail_ticket(p, ticket, err);
    else if (!p->sharded || p->options.receipts != DW_RECEIPTS_CALLER)
        status = dw_fail(err, DW_INVALID, NULL,
                         "receipts are for sharded publishes whose caller carries them");
    else if (fate->done && fate->status == DW_OK)
        status = dw_fail(err, DW_INVALID, NULL, "the version is committed already");
    else if (fate->done)
        status = fate->status;
    if (fate && fate->done && fate->status != DW_OK && err)
        *err = fate->error;
    pthread_mutex_unlock(&p->lock);
    return status;
}

dw_status dw_publisher_receipt(dw_publisher *p, uint64_t ticket, const void **bytes,
                               size_t *n_bytes, dw_error *err)
{
    dw_status status = wait_uploaded(p, ticket, err);
    *bytes = status == DW_OK ? p->receipt.bytes : NULL;
    *n_bytes = status == DW_OK ? p->receipt.n_bytes : 0;
    return status;
}

static void end_job(dw_publisher *p, dw_status status, const dw_error *error,
                    const dw_publish_report *report)
{
    pthread_mutex_lock(&p->lock);
    finish(p, status, error, report);
    p->phase = DW_JOB_IDLE;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* The outcome travels as the position's bytes in hex, or as nothing. */
static dw_status write_outcome(dw_publisher *p, const dw_position *position,
                               dw_error *err)
{
    char sha256[DW_SHA256_TEXT];
    dw_writer_release(&p->outcome);
    dw_hex_encode(sha256, position->commit_sha256, DW_SHA256_BYTES);
    dw_write_format(&p->outcome, "%" PRIu64 " %016" PRIx64 " %s", position->version,
                    position->state, sha256);
    dw_write_u8(&p->outcome, 0);
    return p->outcome.failed ? dw_fail_memory(err, NULL) : DW_OK;
}

dw_status dw_publisher_commit(dw_publisher *p, uint64_t ticket,
                              const void *const *receipts, const size_t *n_bytes,
                              size_t n_receipts, const void **outcome, size_t *n_outcome,
                              dw_error *err)
{
    *outcome = "";
    *n_outcome = 1;
    dw_status status = wait_uploaded(p, ticket, err);
    if (status != DW_OK)
        return status;
    dw_error error = {0};
    dw_publish_report report = {0};
    dw_position position;
    status =
        dw_receipts_commit(p, receipts, n_bytes, n_receipts, &position, &report, &error);
    if (status == DW_OK)
        status = write_outcome(p, &position, &error); /* else the next round finds it */
    if (status == DW_OK) {
        move_on(p, &position, &report);
        *outcome = p->outcome.bytes;
        *n_outcome = p->outcome.n_bytes;
        p->after_status =
            dw_after_commit(p, report.n_bytes, report.n_objects, &p->after_error);
    }
    end_job(p, status, &error, &report);
    if (status != DW_OK && err)
        *err = error;
    return status;
}

static bool read_outcome(dw_position *out, const char *text, size_t n_bytes)
{
    char sha256[DW_SHA256_TEXT];
    if (n_bytes < 1 || n_bytes > 128 || text[n_bytes - 1] != '\0')
        return false;
    return sscanf(text, "%" SCNu64 " %16" SCNx64 " %64s", &out->version, &out->state,
                  sha256) == 3 &&
           dw_hex_decode(out->commit_sha256, DW_SHA256_BYTES, sha256);
}

dw_status dw_publisher_settle(dw_publisher *p, uint64_t ticket, const void *outcome,
                              size_t n_outcome, dw_error *err)
{
    dw_status status = wait_uploaded(p, ticket, err);
    if (status != DW_OK)
        return status;
    dw_error error = {0};
    dw_publish_report report = {.n_changed = p->part.n_changed,
                                .n_objects = p->part.objects.n,
                                .n_bytes = dw_objects_bytes(&p->part.objects)};
    dw_position position = {.version = DW_NO_VERSION};
    memcpy(position.stream, p->stream->record.stream, sizeof position.stream);
    if (!read_outcome(&position, outcome, n_outcome) ||
        position.version != p->head.version + 1) {
        p->unsettled = true;
        status = dw_fail(&error, DW_UNAVAILABLE, dw_store_url(p->store),
                         "rank 0 did not commit the version");
    } else {
        move_on(p, &position, &report);
    }
    end_job(p, status, &error, &report);
    if (status != DW_OK && err)
        *err = error;
    return status;
}
