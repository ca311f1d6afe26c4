/* Sharded publish. Without the receipts of all ranks for one turn there is no commit, so
 * a version is one step on all ranks, and a rank that dies leaves only objects that no
 * record names. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "codec/digest.h"
#include "store/store.h"
#include "publish/publisher.h"
#include "publish/ranks.h"

#define TIMEOUT_MS   600000
#define PUT_TRIES    3
#define POLL_MS      10
#define POLL_MS_MAX  1000
#define STEP_DIGITS  15 /* below 2^53 */
#define STEP_TO_TURN 2
#define SIGNS_A_TURN 1000003 /* more than anybody repeats a step */
#define LEAVE_MS     5000    /* then the store is away, and the others fail too */

dw_status dw_ranks_open(dw_publisher *p, dw_error *err)
{
    dw_ranks *r = &p->ranks;
    if (p->options.n_ranks == 1)
        return dw_random_id(r->process, err);
    char key[DW_KEY_TEXT];
    dw_key_receipt(key, 0, p->options.rank); /* of an earlier start of the same job */
    (void)dw_store_remove(p->store, key, NULL);
    r->met = dw_alloc_zeroed(p->options.n_ranks, sizeof *r->met);
    return r->met ? dw_random_id(r->process, err) : dw_fail_memory(err, NULL);
}

void dw_ranks_close(dw_ranks *ranks)
{
    dw_free(ranks->met);
}

uint64_t dw_rank_limit_ms(const dw_publisher *p)
{
    return p->options.rank_timeout_ms > 0 ? p->options.rank_timeout_ms : TIMEOUT_MS;
}

bool dw_turn_of_step(uint64_t *turn, const char *step)
{
    const size_t n = step ? strspn(step, "0123456789") : 0;
    if (n == 0 || n > STEP_DIGITS || step[n] != '\0')
        return false;
    return sscanf(step, "%" SCNu64, turn) == 1 && (*turn += STEP_TO_TURN, true);
}

typedef struct turn_text {
    char text[80];
} turn_text;

static turn_text name_turn(uint64_t turn, uint64_t attempt)
{
    turn_text out = {"opening the stream"};
    if (turn >= STEP_TO_TURN && attempt > 1)
        snprintf(out.text, sizeof out.text, "at step %" PRIu64 " (attempt %" PRIu64 ")",
                 turn - STEP_TO_TURN, attempt);
    else if (turn >= STEP_TO_TURN)
        snprintf(out.text, sizeof out.text, "at step %" PRIu64, turn - STEP_TO_TURN);
    return out;
}

/* Below 0 if an attempt at a turn is earlier than the one of this rank, above 0 if it is
 * later. What ranks do in different attempts may be about different weights. */
static int compare_turn(const dw_publisher *p, uint64_t turn, uint64_t attempt)
{
    const dw_ranks *r = &p->ranks;
    if (turn != r->turn)
        return turn < r->turn ? -1 : 1;
    return attempt < r->attempt ? -1 : attempt > r->attempt;
}

dw_status dw_rank_write_id(char out[DW_ID_TEXT], const dw_publisher *p, dw_error *err)
{
    char shared[DW_ATTEMPT_DIGITS + 1];
    dw_status status = dw_random_id(out, err);
    if (status != DW_OK || p->options.n_ranks == 1)
        return status;
    snprintf(shared, sizeof shared, "%.8s%08" PRIx32, p->commits.writer,
             (uint32_t)p->ranks.turn);
    memcpy(out, shared, DW_ATTEMPT_DIGITS);
    return DW_OK;
}

/* ---- what this rank says ---- */

static uint64_t version_of_turn(const dw_publisher *p)
{
    return p->ranks.turn == DW_TURN_MEET ? 0 : dw_commit_next_version(p);
}

static void fill_receipt(dw_receipt_record *out, const dw_publisher *p)
{
    memset(out->stream, '0', sizeof out->stream - 1);
    if (p->stream)
        memcpy(out->stream, p->stream->record.stream, sizeof out->stream);
    memcpy(out->writer, p->commits.writer, sizeof out->writer);
    memcpy(out->process, p->ranks.process, sizeof out->process);
    out->version = version_of_turn(p);
    out->epoch = p->commits.epoch;
    out->turn = p->ranks.turn;
    out->attempt = p->ranks.attempt;
    out->rank = p->options.rank;
    out->n_ranks = p->options.n_ranks;
}

/* Fills in that this rank's part of the turn is there: OBJECTS, which it borrows. */
static dw_status fill_part(dw_receipt_record *out, const dw_publisher *p,
                           const dw_objects *objects, const dw_digest *digests,
                           uint64_t n_changed, dw_error *err)
{
    *out = (dw_receipt_record){.says = DW_SAYS_PART, .n_changed = n_changed};
    fill_receipt(out, p);
    if (objects)
        out->objects = *objects;
    if (digests) {
        out->share = dw_pieces_share(&p->pieces, digests);
        out->suspect_from = dw_sweep_suspect_from(p);
    }
    dw_status status = dw_covers_of_slices(&out->covers, &out->n_covers, &p->pieces.owned,
                                           p->pieces.table, p->pieces.n_table, err);
    if (status != DW_OK || out->covers)
        return status;
    out->covers = dw_alloc(sizeof *out->covers); /* all of the model: it must say so */
    if (!out->covers)
        return dw_fail_memory(err, NULL);
    out->covers[0] = (dw_cover){SIZE_MAX, 0, p->pieces.n_table};
    out->n_covers = 1;
    return DW_OK;
}

/* The objects belong to others. */
static void release_part(dw_receipt_record *part)
{
    part->objects = (dw_objects){0};
    dw_receipt_record_release(part);
}

/* Writes the receipt of this rank in the place of an earlier one. */
static dw_status put_receipt(dw_publisher *p, const char *key, const dw_writer *bytes,
                             dw_error *err)
{
    dw_status status = DW_UNAVAILABLE;
    for (unsigned i = 0; i < PUT_TRIES && status == DW_UNAVAILABLE; i++)
        status = dw_store_put_bytes(p->store, key, bytes->bytes, bytes->n_bytes,
                                    DW_PUT_REPLACE, err);
    return status;
}

static int is_over(void *end, uint64_t bytes_done, uint64_t bytes_total)
{
    (void)bytes_done;
    (void)bytes_total;
    return dw_clock_ms() >= *(const uint64_t *)end;
}

static int has_work(void *publisher, uint64_t bytes_done, uint64_t bytes_total)
{
    (void)bytes_done;
    (void)bytes_total;
    return dw_publisher_has_work(publisher);
}

static dw_status say(dw_publisher *p, dw_receipt_record *receipt, dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_key_receipt(key, receipt->epoch, p->options.rank);
    dw_writer bytes = {0};
    dw_status status = dw_receipt_record_write(&bytes, receipt, p->options.sign_key, err);
    if (status == DW_OK && (receipt->says == DW_SAYS_LEFT || p->ranks.is_unheard)) {
        uint64_t end = dw_clock_ms() + LEAVE_MS;
        const dw_source source = {.bytes = bytes.bytes, .n_bytes = bytes.n_bytes};
        const bool is_last = receipt->says == DW_SAYS_LEFT;
        const dw_progress stop = {is_last ? is_over : has_work,
                                  is_last ? (void *)&end : p};
        status = dw_store_put(p->store, key, &source, DW_PUT_REPLACE, &stop, err);
    } else if (status == DW_OK) {
        status = put_receipt(p, key, &bytes, err);
    }
    dw_writer_release(&bytes);
    return status;
}

void dw_ranks_begin(dw_publisher *p, uint64_t turn)
{
    p->ranks.attempt = turn == p->ranks.turn ? p->ranks.attempt + 1 : 1;
    p->ranks.turn = turn;
    p->ranks.is_heard = false;
    p->ranks.is_unheard = false;
    p->ranks.reason[0] = '\0';
}

dw_status dw_ranks_say_begun(dw_publisher *p, dw_error *err)
{
    if (p->options.rank != 0 || p->options.n_ranks == 1)
        return DW_OK;
    dw_receipt_record begun = {.says = DW_SAYS_BEGUN};
    fill_receipt(&begun, p);
    return say(p, &begun, err);
}

/* Before a rank takes part in an epoch, its receipts are of epoch 0, and of this writer.
 */
static dw_status name_job(char out[DW_ID_TEXT], const dw_publisher *p)
{
    uint8_t hash[DW_SHA256_BYTES];
    const char *name = p->options.start ? p->options.start : p->options.job;
    dw_status status = dw_sha256_of(hash, name, strlen(name), NULL);
    if (status == DW_OK)
        dw_hex_encode(out, hash, (DW_ID_TEXT - 1) / 2);
    return status;
}

static dw_status say_why(dw_publisher *p, dw_receipt_says says, const dw_error *error)
{
    char line[DW_ERROR_LINE_SIZE], reason[DW_ERROR_LINE_SIZE];
    dw_text_clean(reason, sizeof reason,
                  p->ranks.reason[0] ? p->ranks.reason
                  : error            ? dw_error_line(error, line)
                                     : "its publisher was closed");
    dw_text_clean(p->ranks.reason, sizeof p->ranks.reason, reason);
    dw_receipt_record receipt = {.says = says, .reason = reason};
    fill_receipt(&receipt, p);
    if (receipt.epoch == 0 && name_job(receipt.writer, p) != DW_OK)
        return DW_NO_MEMORY;
    return say(p, &receipt, NULL); /* if it fails for good, they wait until their limit */
}

void dw_ranks_say_failed(dw_publisher *p, const dw_error *error)
{
    /* what others heard from rank 0 they need not hear again from each other */
    if (p->options.n_ranks > 1 && (!p->ranks.is_heard || p->options.rank == 0))
        p->ranks.is_unheard = say_why(p, DW_SAYS_FAILED, error) != DW_OK;
}

void dw_ranks_say_again(dw_publisher *p)
{
    p->ranks.is_unheard = say_why(p, DW_SAYS_FAILED, NULL) != DW_OK;
}

/* Of a single process: whether the next writer need not wait for it, and the store
 * answered the last time. */
static bool is_at_peace(const dw_publisher *p, const dw_error *error)
{
    const dw_ticket_fate *last = &p->job.fates[p->job.ticket % DW_KEPT_TICKETS];
    return p->commits.epoch != 0 && p->commits.claim == DW_CLAIM_HELD &&
           (!error || error->code != DW_UNAVAILABLE) &&
           (p->job.ticket == 0 || last->status != DW_UNAVAILABLE);
}

void dw_ranks_leave(dw_publisher *p, const dw_error *error)
{
    if (!p->ranks.process[0] || p->ranks.has_left ||
        (p->options.n_ranks == 1 && !is_at_peace(p, error)))
        return;
    p->ranks.has_left = true;
    /* what is not there yet, or is away, must stay as it is */
    if (p->commits.epoch == 0 && error && error->code == DW_UNAVAILABLE)
        return;
    if (!error) /* later than all that it took part in */
        p->ranks.attempt++;
    (void)say_why(p, DW_SAYS_LEFT, error);
}

/* ---- what the others say ---- */

static bool is_own_signer(const dw_publisher *p, const void *bytes, size_t n_bytes)
{
    uint8_t own[DW_PUBLIC_KEY_BYTES], key[DW_PUBLIC_KEY_BYTES];
    dw_sign_key_public(p->options.sign_key, own);
    return dw_record_signer(key, bytes, n_bytes) && memcmp(key, own, sizeof own) == 0;
}

/* DW_UNTRUSTED unless another rank's receipt is signed by a trusted key; without trusted
 * keys, by this rank's own, if it signs. The signature of a commit covers what it says.
 */
static dw_status check_signer(const dw_publisher *p, const void *bytes, size_t n_bytes,
                              dw_error *err)
{
    const char *url = dw_store_url(p->store);
    if (p->stream->n_trust > 0 || !p->options.sign_key)
        return dw_stream_check_signer(p->stream, bytes, n_bytes, url, err);
    if (is_own_signer(p, bytes, n_bytes))
        return DW_OK;
    return dw_fail(err, DW_UNTRUSTED, url,
                   "a record of another rank is not signed by the key of this one: give "
                   "all ranks the same `sign_key`");
}

/* Reads the receipt of RANK; DW_NOT_FOUND if there is none. */
static dw_status read_receipt(dw_receipt_record *out, dw_publisher *p, uint32_t rank,
                              dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_writer bytes;
    *out = (dw_receipt_record){0};
    dw_key_receipt(key, p->commits.epoch, rank);
    dw_status status = dw_record_fetch(&bytes, p->store, key, err);
    if (status == DW_OK)
        status = check_signer(p, bytes.bytes, bytes.n_bytes, err);
    if (status == DW_OK)
        status = dw_receipt_record_parse(out, bytes.bytes, bytes.n_bytes, key, err);
    dw_writer_release(&bytes);
    if (status != DW_OK)
        return status;
    if (out->n_ranks != p->options.n_ranks)
        status = dw_fail(err, DW_MISMATCH, dw_store_url(p->store),
                         "rank %" PRIu32 " says that there are %" PRIu32
                         " ranks, this one that there are %" PRIu32
                         ": give all ranks the same `n_ranks`",
                         rank, out->n_ranks, p->options.n_ranks);
    else if (strcmp(out->stream, p->stream->record.stream) != 0 ||
             strcmp(out->writer, p->commits.writer) != 0 ||
             out->epoch != p->commits.epoch || out->rank != rank)
        status = dw_fail(err, DW_MISMATCH, dw_store_url(p->store),
                         "%s is of another stream or job: start all ranks again, with "
                         "another `job`",
                         key);
    if (status != DW_OK)
        dw_receipt_record_release(out);
    return status;
}

static dw_status fail_left(dw_publisher *p, uint32_t rank, const char *reason,
                           dw_error *err)
{
    return dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                   "rank %" PRIu32 " has left (%.600s): start all ranks again", rank,
                   reason);
}

dw_status dw_rank_check_left(dw_publisher *p, uint32_t rank, dw_error *err)
{
    char key[DW_KEY_TEXT], job[DW_ID_TEXT];
    dw_writer bytes;
    dw_receipt_record r = {0};
    dw_key_receipt(key, 0, rank);
    bool is_there = name_job(job, p) == DW_OK &&
                    dw_record_fetch(&bytes, p->store, key, NULL) == DW_OK;
    if (!is_there)
        return DW_OK;
    is_there =
        (!p->options.sign_key || is_own_signer(p, bytes.bytes, bytes.n_bytes)) &&
        dw_receipt_record_parse(&r, bytes.bytes, bytes.n_bytes, key, NULL) == DW_OK;
    dw_status status = is_there && r.says == DW_SAYS_LEFT && strcmp(r.writer, job) == 0
                           ? fail_left(p, rank, r.reason, err)
                           : DW_OK;
    dw_receipt_record_release(&r);
    dw_writer_release(&bytes);
    return status;
}

/* Another rank ended this turn, or did not come. */
static dw_status fail_turn(dw_publisher *p, dw_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static dw_status fail_turn(dw_publisher *p, dw_error *err, const char *format, ...)
{
    char *reason = p->ranks.reason;
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof p->ranks.reason, format, args);
    va_end(args);
    if (!p->job.has_thread) /* the head may not be known yet */
        return dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                       "%s: start all ranks again, together", reason);
    return dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                   "%s: version %" PRIu64 " was not committed. The next one covers it",
                   reason, dw_commit_next_version(p));
}

static dw_status fail_ahead(dw_publisher *p, uint32_t rank, uint64_t turn,
                            uint64_t attempt, dw_error *err)
{
    p->ranks.is_heard = true;
    return fail_turn(p, err, "rank %" PRIu32 " is already %s, this one is %s", rank,
                     name_turn(turn, attempt).text,
                     name_turn(p->ranks.turn, p->ranks.attempt).text);
}

/* Whether a later start has taken the stream. */
static bool is_superseded(dw_publisher *p)
{
    dw_epoch_record next;
    dw_status status = dw_stream_read_epoch(p->stream, p->commits.epoch + 1, &next, NULL);
    if (status == DW_OK)
        dw_epoch_record_release(&next);
    return status == DW_OK || (status != DW_NOT_FOUND && dw_stream_passes_over(status));
}

/* DW_OK unless what RANK says ends this turn. */
static dw_status hear(dw_publisher *p, uint32_t rank, const dw_receipt_record *r,
                      dw_error *err)
{
    const int order = compare_turn(p, r->turn, r->attempt);
    if (p->options.rank == 0 && p->ranks.met[rank][0] &&
        strcmp(p->ranks.met[rank], r->process) != 0)
        return dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                       "two processes are rank %" PRIu32
                       " of job '%s': stop all ranks, and start them with another `job`",
                       rank, p->options.job);
    if (r->says == DW_SAYS_LEFT)
        return p->ranks.turn != DW_TURN_MEET && is_superseded(p)
                   ? dw_commit_fail_fenced(p, "it claimed the next epoch", err)
                   : fail_left(p, rank, r->reason, err);
    if (order > 0)
        return fail_ahead(p, rank, r->turn, r->attempt, err);
    if (order < 0)
        return DW_OK;
    if (r->says == DW_SAYS_FAILED) {
        p->ranks.is_heard = true;
        if (is_superseded(p)) /* then no rank can go on */
            return dw_commit_fail_fenced(p, "it claimed the next epoch", err);
        return rank == 0
                   ? fail_turn(p, err, "rank 0 gave up: %s", r->reason)
                   : fail_turn(p, err, "rank %" PRIu32 " failed (%s)", rank, r->reason);
    }
    if (r->says == DW_SAYS_PART && r->version > version_of_turn(p))
        return fail_turn(p, err, "rank %" PRIu32 " is at version %" PRIu64, rank,
                         r->version);
    return DW_OK;
}

/* ---- waiting ---- */

/* What a rank waits for: DW_OK if it came, DW_NOT_FOUND if not yet. RECEIPT is what RANK
 * says, NULL if nothing; the function may take what is in it. */
typedef dw_status (*rank_look)(void *context, uint32_t rank, dw_receipt_record *receipt,
                               dw_error *err);

typedef struct waiting {
    dw_publisher *p;
    rank_look look;
    void *context;
    bool *came;     /* [n_ranks] */
    uint32_t first; /* the first rank that did not come ... */
    uint64_t turn;  /* ... and where it was seen last */
    uint64_t attempt;
    bool was_seen;
    uint64_t signs; /* changes if a rank says something new */
    uint64_t pause;
    uint64_t end;
} waiting;

/* Looks at RANK once. */
static dw_status look_at(waiting *w, uint32_t rank, dw_error *err)
{
    dw_receipt_record receipt;
    dw_status status = read_receipt(&receipt, w->p, rank, err);
    if (status != DW_OK && status != DW_NOT_FOUND)
        return status;
    const bool is_there = status == DW_OK;
    if (!is_there && w->p->ranks.turn == DW_TURN_MEET &&
        (status = dw_rank_check_left(w->p, rank, err)) != DW_OK)
        return status;
    const uint64_t turn = receipt.turn, attempt = receipt.attempt;
    status = w->look(w->context, rank, is_there ? &receipt : NULL, err);
    if (status == DW_NOT_FOUND && is_there) {
        dw_error heard = {0};
        dw_status end = hear(w->p, rank, &receipt, &heard);
        /* what it waits for may have come just before that was said */
        if (end != DW_OK)
            status = w->look(w->context, rank, &receipt, err);
        if (end != DW_OK && status == DW_NOT_FOUND) {
            status = end;
            if (err)
                *err = heard;
        }
    }
    if (is_there)
        dw_receipt_record_release(&receipt);
    w->came[rank] = status == DW_OK;
    if (status != DW_NOT_FOUND)
        return status;
    if (w->first == 0 || w->p->options.rank != 0) {
        w->first = rank;
        w->turn = turn;
        w->attempt = attempt;
        w->was_seen = is_there;
    }
    w->signs += is_there ? turn * SIGNS_A_TURN + attempt : 0;
    return DW_OK;
}

/* A request of this rank may have arrived late, and put an old receipt in the place of
 * the newest one; or another process is the same rank. */
static dw_status check_own(dw_publisher *p, dw_receipt_record *mine, dw_error *err)
{
    dw_receipt_record found;
    dw_status status = read_receipt(&found, p, p->options.rank, err);
    if (status != DW_OK)
        return status == DW_NOT_FOUND && mine ? say(p, mine, err) : DW_OK;
    if (strcmp(found.process, p->ranks.process) != 0)
        status = dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                         "two processes are rank %" PRIu32
                         " of job '%s': stop all ranks, and start them with another "
                         "`job`",
                         p->options.rank, p->options.job);
    else if (mine && compare_turn(p, found.turn, found.attempt) != 0)
        status = say(p, mine, err);
    dw_receipt_record_release(&found);
    return status;
}

static dw_status fail_late(waiting *w, dw_error *err)
{
    return fail_turn(w->p, err, "rank %" PRIu32 " did not come in time%s%s", w->first,
                     w->was_seen ? "; it was seen " : "",
                     w->was_seen ? name_turn(w->turn, w->attempt).text : "");
}

/* Rank 0 waits for something from each other rank, and the others for rank 0. MINE is
 * what this rank says meanwhile; or NULL. DW_UNAVAILABLE if one of them failed, is in a
 * later turn, or did not come in time. */
static dw_status wait_for_ranks(dw_publisher *p, dw_receipt_record *mine, rank_look look,
                                void *context, dw_error *err)
{
    const bool is_first = p->options.rank == 0;
    const uint32_t begin = is_first ? 1 : 0, n = is_first ? p->options.n_ranks : 1;
    /* others give rank 0 the time to say who did not come */
    const uint64_t limit = (is_first ? 1 : 2) * dw_rank_limit_ms(p);
    waiting w = {.p = p, .look = look, .context = context, .pause = POLL_MS};
    w.came = dw_alloc_zeroed(p->options.n_ranks, sizeof *w.came);
    dw_status status = w.came ? DW_OK : dw_fail_memory(err, NULL);
    w.end = dw_clock_ms() + limit;
    for (bool all = false; status == DW_OK;) {
        const uint64_t signs = w.signs;
        w.signs = 0;
        w.first = 0;
        all = true;
        for (uint32_t i = begin; status == DW_OK && i < n; i++)
            if (!w.came[i]) {
                status = look_at(&w, i, err);
                all = all && w.came[i];
            }
        if (status != DW_OK || all)
            break;
        if (w.signs != signs)
            w.end = dw_clock_ms() + limit;
        const bool is_late = dw_clock_ms() >= w.end;
        /* at the meeting, ranks may follow to the next epoch */
        const bool may_end = p->ranks.turn != DW_TURN_MEET && w.pause == POLL_MS_MAX;
        if ((is_late || may_end) && is_superseded(p))
            status = dw_commit_fail_fenced(p, "it claimed the next epoch", err);
        else if (is_late)
            status = fail_late(&w, err);
        else if (dw_job_cancelled(p, 0, 0) != 0)
            status = dw_fail(err, DW_CANCELLED, dw_store_url(p->store),
                             "cancelled while waiting for rank %" PRIu32, w.first);
        else if (w.pause == POLL_MS_MAX && mine)
            status = check_own(p, mine, err);
        if (status == DW_OK)
            dw_sleep_ms(w.pause);
        w.pause = w.pause * 2 < POLL_MS_MAX ? w.pause * 2 : POLL_MS_MAX;
    }
    dw_free(w.came);
    return status;
}

/* ---- rank 0: the receipts of all ranks ---- */

typedef struct collection {
    dw_publisher *p;
    dw_receipt_record *receipts; /* [n_ranks] */
} collection;

/* Takes the receipt if the rank's part of this turn is there. */
static dw_status take_part(void *context, uint32_t rank, dw_receipt_record *receipt,
                           dw_error *err)
{
    const collection *c = context;
    dw_publisher *p = c->p;
    if (!receipt || receipt->says != DW_SAYS_PART ||
        compare_turn(p, receipt->turn, receipt->attempt) != 0 ||
        receipt->version != version_of_turn(p))
        return DW_NOT_FOUND;
    if (p->ranks.turn == DW_TURN_MEET)
        memcpy(p->ranks.met[rank], receipt->process, sizeof p->ranks.met[rank]);
    else if (strcmp(p->ranks.met[rank], receipt->process) != 0)
        return DW_NOT_FOUND; /* `hear` refuses it */
    dw_status status =
        dw_covers_check(receipt->covers, receipt->n_covers, p->pieces.table,
                        p->pieces.n_table, dw_store_url(p->store), err);
    if (status == DW_OK)
        status = dw_objects_check(&receipt->objects, p->pieces.table, p->pieces.n_table,
                                  false, dw_store_url(p->store), err);
    if (status != DW_OK)
        return status;
    c->receipts[rank] = *receipt;
    *receipt = (dw_receipt_record){0};
    return DW_OK;
}

/* Waits for the receipts of all ranks; that of this one, rank 0, is MINE. */
static dw_status collect(dw_receipt_record **out, dw_publisher *p,
                         const dw_receipt_record *mine, dw_error *err)
{
    *out = dw_alloc_zeroed(p->options.n_ranks, sizeof **out);
    if (!*out)
        return dw_fail_memory(err, NULL);
    (*out)[0] = *mine;
    collection c = {p, *out};
    return p->options.n_ranks == 1 ? DW_OK : wait_for_ranks(p, NULL, take_part, &c, err);
}

static void release_all(dw_receipt_record *receipts, const dw_publisher *p)
{
    for (uint32_t i = 1; receipts && i < p->options.n_ranks; i++)
        dw_receipt_record_release(&receipts[i]);
    dw_free(receipts);
}

static dw_status join_receipts(dw_publisher *p, const dw_receipt_record *receipts,
                               dw_commit_record *commit, dw_error *err)
{
    size_t n = 0;
    for (uint32_t i = 0; i < p->options.n_ranks; i++)
        n += receipts[i].objects.n;
    commit->objects.items = dw_alloc_array(n, sizeof *commit->objects.items);
    if (!commit->objects.items)
        return dw_fail_memory(err, NULL);
    commit->state = dw_state_floor(p->pieces.table, p->pieces.n_table);
    for (uint32_t i = 0; i < p->options.n_ranks; i++) {
        const dw_receipt_record *r = &receipts[i];
        for (size_t k = 0; k < r->objects.n; k++)
            commit->objects.items[commit->objects.n++] = r->objects.items[k];
        commit->state = dw_digest_plus(commit->state, r->share);
        commit->n_changed += r->n_changed;
        if (r->suspect_from > 0 &&
            (commit->suspect_from == 0 || r->suspect_from < commit->suspect_from))
            commit->suspect_from = r->suspect_from;
    }
    return DW_OK;
}

static dw_status commit_parts(dw_publisher *p, const dw_receipt_record *receipts,
                              dw_position *position, dw_publish_report *report,
                              dw_error *err)
{
    dw_commit_record commit = {.step = p->job.step ? p->job.step : "",
                               .notes = p->job.notes ? p->job.notes : "",
                               .times = dw_job_times(p)};
    if (dw_commit_next_version(p) == 0) {
        commit.step = (char *)p->options.first_step;
        commit.notes = (char *)p->options.first_notes;
        const bool anchor = p->options.first == DW_FIRST_ANCHOR;
        commit.content = anchor ? DW_CONTENT_ANCHOR : DW_CONTENT_BASE;
        commit.base =
            anchor ? NULL : (char *)(p->options.base_name ? p->options.base_name : "");
    }
    dw_status status = dw_ranks_check_cover(p, receipts, err);
    if (status == DW_OK)
        status = dw_random_id(commit.write_id, err);
    if (status == DW_OK)
        status = join_receipts(p, receipts, &commit, err);
    if (status == DW_OK) /* readers would refuse the commit */
        status = dw_objects_check(&commit.objects, p->pieces.table, p->pieces.n_table,
                                  commit.content == DW_CONTENT_ANCHOR,
                                  dw_store_url(p->store), err);
    if (status == DW_OK)
        status = dw_commit_create(p, &commit, position, err);
    if (status == DW_OK) {
        report->suspect_from = commit.suspect_from;
        report->n_changed = commit.n_changed;
        report->n_objects = commit.objects.n;
        report->n_bytes = dw_objects_bytes(&commit.objects);
    }
    dw_free(commit.objects.items); /* the receipts own the objects */
    return status;
}

/* ---- the others: the commit ---- */

static bool names_object(const dw_commit_record *commit, const char *key)
{
    for (size_t i = 0; i < commit->objects.n; i++)
        if (strcmp(commit->objects.items[i].key, key) == 0)
            return true;
    return false;
}

/* Whether the object belongs to this rank's part. An object belongs to one rank. */
static bool is_of_own_part(const dw_publisher *p, const dw_object *object)
{
    dw_cover c = {SIZE_MAX, 0, p->pieces.n_table};
    if (object->n_covers > 0)
        c = object->covers[0];
    const size_t tensor = c.tensor == SIZE_MAX ? (size_t)c.first : c.tensor;
    const uint64_t first = c.tensor == SIZE_MAX ? 0 : c.first;
    for (size_t k = 0; k < p->pieces.owned.n; k++) {
        const dw_slice *s = &p->pieces.owned.items[k];
        if (s->tensor == tensor &&
            (s->n == 0 || (first >= s->first && first - s->first < s->n)))
            return true;
    }
    return false;
}

/* Whether the commit names all of MINE, and no other objects of this rank's part, such as
 * those of an earlier round. */
static bool is_made_of(const dw_publisher *p, const dw_commit_record *c,
                       const dw_objects *mine)
{
    size_t n = 0;
    for (size_t i = 0; i < c->objects.n; i++)
        n += is_of_own_part(p, &c->objects.items[i]);
    bool good = n == mine->n;
    for (size_t i = 0; good && i < mine->n; i++)
        good = names_object(c, mine->items[i].key);
    return good;
}

typedef struct outcome {
    dw_publisher *p;
    const dw_objects *mine;
    dw_position *position;
    dw_publish_report *report;
} outcome;

static dw_status take_commit(void *context, uint32_t rank, dw_receipt_record *receipt,
                             dw_error *err)
{
    (void)rank;
    (void)receipt;
    const outcome *o = context;
    dw_publisher *p = o->p;
    dw_commit_record c;
    const uint64_t version = dw_commit_next_version(p);
    dw_status status = dw_stream_read_commit(p->stream, version, &c, err);
    if (status != DW_OK)
        return status;
    const bool ours =
        c.epoch == p->commits.epoch && strcmp(c.writer, p->commits.writer) == 0;
    uint64_t turn = p->ranks.turn;
    if (version > 0 && !dw_turn_of_step(&turn, c.step))
        turn = DW_TURN_MEET;
    if (ours && (turn != p->ranks.turn || !is_made_of(p, &c, o->mine))) {
        dw_baseline_fall_behind(p);
        status = dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                         "version %" PRIu64 " was committed from an earlier attempt. "
                         "Publish again: the next version covers this one",
                         version);
    }
    *o->position = dw_position_of(&c);
    o->report->suspect_from = c.suspect_from;
    o->report->n_changed = c.n_changed;
    o->report->n_objects = c.objects.n;
    o->report->n_bytes = dw_objects_bytes(&c.objects);
    dw_commit_record_release(&c);
    if (!ours) {
        char reason[64];
        snprintf(reason, sizeof reason, "it committed version %" PRIu64, version);
        return dw_commit_fail_fenced(p, reason, err);
    }
    return status;
}

/* MINE, this rank's part, is there. */
static dw_status exchange(dw_publisher *p, dw_receipt_record *mine, dw_position *position,
                          dw_publish_report *report, dw_error *err)
{
    if (p->options.rank != 0) {
        outcome o = {p, &mine->objects, position, report};
        dw_status status = say(p, mine, err);
        if (status == DW_OK)
            status = wait_for_ranks(p, mine, take_commit, &o, err);
        if (status != DW_OK)
            dw_claim_doubt(p); /* the commit may still arrive */
        else
            dw_commit_move_head(p, position);
        return status;
    }
    dw_receipt_record *receipts;
    dw_status status = collect(&receipts, p, mine, err);
    if (status == DW_OK)
        status = commit_parts(p, receipts, position, report, err);
    release_all(receipts, p);
    return status;
}

dw_status dw_receipts_exchange(dw_publisher *p, const dw_uploaded *part,
                               dw_position *position, dw_publish_report *report,
                               dw_error *err)
{
    dw_receipt_record mine;
    dw_status status =
        fill_part(&mine, p, &part->objects, part->digests, part->n_changed, err);
    if (status == DW_OK)
        status = exchange(p, &mine, position, report, err);
    release_part(&mine);
    return status;
}

/* ---- the meeting ---- */

/* Rank 0 has met all. DW_STALE if a later start of the same job took its place. */
static dw_status take_answer(void *context, uint32_t rank, dw_receipt_record *receipt,
                             dw_error *err)
{
    (void)rank;
    dw_publisher *p = context;
    if (receipt && (receipt->says == DW_SAYS_PART ||
                    compare_turn(p, receipt->turn, receipt->attempt) > 0))
        return check_own(p, NULL, err);
    return is_superseded(p) ? DW_STALE : DW_NOT_FOUND;
}

static dw_status meet_others(dw_publisher *p, dw_receipt_record *mine, dw_error *err)
{
    dw_receipt_record *receipts;
    dw_status status = collect(&receipts, p, mine, err);
    if (status == DW_OK)
        status = dw_ranks_check_cover(p, receipts, err);
    release_all(receipts, p);
    return status == DW_OK ? say(p, mine, err) : status;
}

dw_status dw_ranks_meet(dw_publisher *p, dw_error *err)
{
    dw_receipt_record mine;
    if (p->options.n_ranks == 1)
        return DW_OK;
    p->ranks.turn = DW_TURN_MEET;
    p->ranks.attempt = 1;
    dw_status status = fill_part(&mine, p, NULL, NULL, 0, err);
    if (status == DW_OK && p->options.rank == 0)
        status = meet_others(p, &mine, err);
    while (status == DW_OK && p->options.rank != 0) {
        status = say(p, &mine, err);
        if (status == DW_OK)
            status = wait_for_ranks(p, &mine, take_answer, p, err);
        if (status != DW_STALE)
            break;
        status = dw_epoch_join(p, err);
        fill_receipt(&mine, p);
    }
    release_part(&mine);
    return status;
}

/* ---- version 0 ---- */

static dw_status take_fork(void *context, uint32_t rank, dw_receipt_record *receipt,
                           dw_error *err)
{
    (void)rank;
    (void)receipt;
    dw_publisher *p = context;
    uint64_t head;
    return dw_stream_find_head(p->stream, DW_NO_VERSION, &head, err);
}

dw_status dw_first_version_sharded(dw_publisher *p, dw_error *err)
{
    dw_ranks_begin(p, DW_TURN_FIRST);
    dw_status status = dw_ranks_say_begun(p, err);
    if (p->options.first == DW_FIRST_FORK) {
        if (status == DW_OK)
            status = p->options.rank == 0 ? dw_fork_first_version(p, err)
                                          : wait_for_ranks(p, NULL, take_fork, p, err);
        return status == DW_OK ? dw_baseline_catch_up(p, err) : status;
    }
    char write_id[DW_ID_TEXT];
    dw_position position;
    dw_publish_report report = {0};
    dw_objects objects = {0};
    dw_receipt_record mine = {0};
    status = dw_live_begin(p, 2 * DW_TURN_FIRST, NULL, status, err);
    if (status == DW_OK)
        status = dw_baseline_copy_live(p, err);
    if (status == DW_OK)
        status = dw_baseline_connect(p, err);
    if (status == DW_OK)
        status = dw_rank_write_id(write_id, p, err);
    if (status == DW_OK && p->options.first == DW_FIRST_ANCHOR && p->pieces.owned.n > 0)
        status = dw_first_anchor_upload(&objects, p, write_id, err);
    if (status == DW_OK)
        status = dw_live_confirm(p, err);
    if (status == DW_OK)
        status = fill_part(&mine, p, &objects, p->baseline.digests, 0, err);
    if (status == DW_OK)
        status = exchange(p, &mine, &position, &report, err);
    release_part(&mine);
    dw_objects_release(&objects);
    return status;
}
