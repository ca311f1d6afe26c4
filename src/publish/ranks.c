/* Sharded publish. Without the receipts of all ranks there is no commit, so a rank that
 * dies leaves only objects that no record names. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "store/store.h"
#include "publish/publisher.h"
#include "publish/ranks.h"

#define TIMEOUT_MS  600000
#define PUT_TRIES   3
#define POLL_MS     10
#define POLL_MS_MAX 1000

/* Rank 0 waits twice as long: a rank whose wait ended in the last round is late by that
 * time. */
uint64_t dw_rank_deadline(const dw_publisher *p)
{
    const uint64_t limit =
        p->options.rank_timeout_ms > 0 ? p->options.rank_timeout_ms : TIMEOUT_MS;
    return dw_clock_ms() + (p->options.rank == 0 ? 2 * limit : limit);
}

/* Rank 0 may still be in the round before, which takes it up to twice its wait, and then
 * waits for the others. If it gives up it says so, so this is long only for a rank 0 that
 * does nothing. Once a job is open: if rank 0 cannot open, all ranks end. */
uint64_t dw_rank_deadline_of_answer(const dw_publisher *p)
{
    const uint64_t now = dw_clock_ms(), limit = dw_rank_deadline(p) - now;
    return now + (p->job.has_thread ? 6 * limit : limit);
}

dw_status dw_rank_write_id(char out[DW_ID_TEXT], const dw_publisher *p, dw_error *err)
{
    char shared[DW_ATTEMPT_DIGITS + 1];
    dw_status status = dw_random_id(out, err);
    if (status != DW_OK)
        return status;
    snprintf(shared, sizeof shared, "%.8s%08" PRIx32, p->commits.writer,
             (uint32_t)p->commits.round);
    memcpy(out, shared, DW_ATTEMPT_DIGITS);
    return DW_OK;
}

/* ---- the receipt of this rank ---- */

static dw_status write_receipt(dw_publisher *p, const dw_objects *objects,
                               const dw_digest *digests, uint64_t n_changed,
                               dw_error *err)
{
    dw_receipt_record r = {.version = dw_commit_next_version(p),
                           .epoch = p->commits.epoch,
                           .round = p->commits.round,
                           .rank = p->options.rank,
                           .n_ranks = p->options.n_ranks,
                           .share = dw_pieces_share(&p->pieces, digests),
                           .n_changed = n_changed,
                           .suspect_from = dw_sweep_suspect_from(p),
                           .objects = *objects};
    memcpy(r.stream, p->stream->record.stream, sizeof r.stream);
    memcpy(r.writer, p->commits.writer, sizeof r.writer);
    dw_cover all = {SIZE_MAX, 0, p->pieces.n_table};
    dw_cover *covers;
    dw_status status = dw_covers_of_slices(&covers, &r.n_covers, &p->pieces.owned,
                                           p->pieces.table, p->pieces.n_table, err);
    if (status != DW_OK)
        return status;
    r.covers = covers;
    if (!covers) { /* all of the model: a receipt must say so */
        r.covers = &all;
        r.n_covers = 1;
    }
    dw_writer_release(&p->job.receipt);
    status = dw_receipt_record_write(&p->job.receipt, &r, p->options.sign_key, err);
    dw_free(covers);
    return status;
}

dw_status dw_receipt_make(dw_publisher *p, dw_error *err)
{
    return write_receipt(p, &p->job.part.objects, p->job.part.digests,
                         p->job.part.n_changed, err);
}

/* ---- rank 0: the receipts of all ranks ---- */

/* The signature of a commit covers what the other ranks say. */
dw_status dw_rank_check_signer(const dw_publisher *p, const void *bytes, size_t n_bytes,
                               dw_error *err)
{
    const char *url = dw_store_url(p->store);
    uint8_t own[DW_PUBLIC_KEY_BYTES], key[DW_PUBLIC_KEY_BYTES];
    if (p->stream->n_trust > 0 || !p->options.sign_key)
        return dw_stream_check_signer(p->stream, bytes, n_bytes, url, err);
    dw_sign_key_public(p->options.sign_key, own);
    if (dw_record_signer(key, bytes, n_bytes) && memcmp(key, own, sizeof own) == 0)
        return DW_OK;
    return dw_fail(err, DW_UNTRUSTED, url,
                   "a record of another rank is not signed by the key of this one: give "
                   "all ranks the same `sign_key`");
}

static dw_status check_receipt(const dw_publisher *p, const dw_receipt_record *r,
                               dw_error *err)
{
    const char *url = dw_store_url(p->store);
    if (strcmp(r->stream, p->stream->record.stream) != 0 ||
        strcmp(r->writer, p->commits.writer) != 0 || r->epoch != p->commits.epoch ||
        r->version != dw_commit_next_version(p) || r->round != p->commits.round ||
        r->n_ranks != p->options.n_ranks || r->rank >= r->n_ranks)
        return dw_fail(err, DW_MISMATCH, url,
                       "the receipt of rank %" PRIu32 " is for version %" PRIu64
                       ", epoch %" PRIu64 ", round %" PRIu64 " of %" PRIu32
                       " ranks; this is version %" PRIu64 ", epoch %" PRIu64
                       ", round %" PRIu64 " of %" PRIu32,
                       r->rank, r->version, r->epoch, r->round, r->n_ranks,
                       dw_commit_next_version(p), p->commits.epoch, p->commits.round,
                       p->options.n_ranks);
    return dw_objects_check(&r->objects, p->pieces.table, p->pieces.n_table, false, url,
                            err);
}

/* Every element must be owned by exactly one rank. */
static dw_status check_cover(const dw_publisher *p, const dw_receipt_record *receipts,
                             dw_error *err)
{
    const size_t n = p->options.n_ranks;
    dw_object *parts = dw_alloc_zeroed(n, sizeof *parts);
    if (!parts)
        return dw_fail_memory(err, NULL);
    size_t n_parts = 0;
    for (size_t i = 0; i < n; i++)
        if (receipts[i].n_covers > 0) {
            parts[n_parts].covers = receipts[i].covers;
            parts[n_parts++].n_covers = receipts[i].n_covers;
        }
    const dw_objects all = {parts, n_parts};
    dw_status status = dw_objects_check(&all, p->pieces.table, p->pieces.n_table, true,
                                        "what the ranks own", err);
    dw_free(parts);
    return status;
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

static dw_status commit_parsed(dw_publisher *p, const dw_receipt_record *receipts,
                               dw_position *position, dw_publish_report *report,
                               dw_error *err)
{
    dw_commit_record commit = {.step = p->job.step ? p->job.step : "",
                               .notes = p->job.notes ? p->job.notes : ""};
    if (dw_commit_next_version(p) == 0) {
        commit.step = (char *)p->options.first_step;
        commit.notes = (char *)p->options.first_notes;
        const bool anchor = p->options.first == DW_FIRST_ANCHOR;
        commit.content = anchor ? DW_CONTENT_ANCHOR : DW_CONTENT_BASE;
        commit.base =
            anchor ? NULL : (char *)(p->options.base_name ? p->options.base_name : "");
    }
    dw_status status = check_cover(p, receipts, err);
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

dw_status dw_receipts_commit(dw_publisher *p, const void *const *receipts,
                             const size_t *n_bytes, size_t n_receipts,
                             dw_position *position, dw_publish_report *report,
                             dw_error *err)
{
    const char *url = dw_store_url(p->store);
    if (n_receipts != p->options.n_ranks)
        return dw_fail(err, DW_INVALID, url,
                       "there are %zu receipts, but %" PRIu32 " ranks", n_receipts,
                       p->options.n_ranks);
    dw_receipt_record *parsed = dw_alloc_zeroed(n_receipts, sizeof *parsed);
    bool *seen = dw_alloc_zeroed(n_receipts, sizeof *seen);
    dw_status status = parsed && seen ? DW_OK : dw_fail_memory(err, url);
    for (size_t i = 0; status == DW_OK && i < n_receipts; i++) {
        status =
            p->options.receipts == DW_RECEIPTS_STORE
                ? dw_rank_check_signer(p, receipts[i], n_bytes[i], err)
                : dw_stream_check_signer(p->stream, receipts[i], n_bytes[i], url, err);
        if (status == DW_OK)
            status = dw_receipt_record_parse(&parsed[i], receipts[i], n_bytes[i],
                                             "receipt", err);
        if (status == DW_OK)
            status = check_receipt(p, &parsed[i], err);
        if (status == DW_OK && seen[parsed[i].rank])
            status = dw_fail(err, DW_INVALID, url,
                             "there are two receipts of rank %" PRIu32, parsed[i].rank);
        if (status == DW_OK)
            seen[parsed[i].rank] = true;
    }
    if (status == DW_OK)
        status = commit_parsed(p, parsed, position, report, err);
    for (size_t i = 0; parsed && i < n_receipts; i++)
        dw_receipt_record_release(&parsed[i]);
    dw_free(parsed);
    dw_free(seen);
    return status;
}

/* ---- through the store ---- */

/* DW_OK if the record under KEY equals this rank's, byte by byte. */
static dw_status confirm_record(dw_publisher *p, const char *key, const dw_writer *mine,
                                dw_error *err)
{
    dw_writer found;
    dw_status status = dw_record_fetch(&found, p->store, key, err);
    if (status == DW_OK && (found.n_bytes != mine->n_bytes ||
                            memcmp(found.bytes, mine->bytes, found.n_bytes) != 0))
        status = dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                         "%s is of another process: two processes are rank %" PRIu32
                         " of job '%s'. Stop one of them",
                         key, p->options.rank, p->options.job);
    dw_writer_release(&found);
    return status;
}

dw_status dw_rank_put(dw_publisher *p, const char *key, const dw_writer *mine,
                      dw_error *err)
{
    dw_status status = DW_OK;
    for (unsigned tries = 0; tries < PUT_TRIES; tries++) {
        status = dw_store_put_bytes(p->store, key, mine->bytes, mine->n_bytes,
                                    DW_PUT_CREATE, err);
        if (status != DW_CONFLICT && status != DW_UNAVAILABLE)
            return status;
        dw_error reading = {0};
        dw_status read = confirm_record(p, key, mine, &reading);
        if (read == DW_OK)
            return DW_OK; /* the reply was lost */
        if (read == DW_CONFLICT || (status == DW_CONFLICT && tries + 1 == PUT_TRIES)) {
            if (err)
                *err = reading;
            return read;
        }
    }
    return status;
}

static dw_status put_receipt(dw_publisher *p, dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_key_receipt(key, dw_commit_next_version(p), p->commits.epoch, p->commits.round,
                   p->options.rank);
    return dw_rank_put(p, key, &p->job.receipt, err);
}

/* Sleeps, longer each time. DW_UNAVAILABLE if END has passed. */
static dw_status pause_for(dw_publisher *p, uint64_t *pause, uint64_t end,
                           const char *what, dw_error *err)
{
    if (dw_clock_ms() >= end && !p->job.has_thread) /* the head may not be known yet */
        return dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                       "%s did not come in time: start all ranks again, together", what);
    if (dw_clock_ms() >= end)
        return dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                       "%s did not come in time: version %" PRIu64
                       " was not committed. The next one covers it",
                       what, dw_commit_next_version(p));
    if (dw_job_cancelled(p, 0, 0) != 0)
        return dw_fail(err, DW_CANCELLED, dw_store_url(p->store),
                       "cancelled while waiting for %s", what);
    dw_sleep_ms(*pause);
    *pause = *pause * 2 < POLL_MS_MAX ? *pause * 2 : POLL_MS_MAX;
    return DW_OK;
}

dw_status dw_rank_wait(dw_publisher *p, const char *key, uint64_t end, dw_writer *out,
                       dw_error *err)
{
    uint64_t pause = POLL_MS;
    for (;;) {
        dw_status status = dw_record_fetch(out, p->store, key, err);
        if (status != DW_NOT_FOUND)
            return status;
        status = pause_for(p, &pause, end, key, err);
        if (status != DW_OK)
            return status;
    }
}

static dw_status wait_for_receipt(dw_publisher *p, uint32_t rank, uint64_t end,
                                  dw_writer *out, dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_key_receipt(key, dw_commit_next_version(p), p->commits.epoch, p->commits.round,
                   rank);
    return dw_rank_wait(p, key, end, out, err);
}

static dw_status collect_and_commit(dw_publisher *p, dw_position *position,
                                    dw_publish_report *report, dw_error *err)
{
    const uint32_t n = p->options.n_ranks;
    dw_writer *found = dw_alloc_zeroed(n, sizeof *found);
    const void **bytes = dw_alloc_array(n, sizeof *bytes);
    size_t *n_bytes = dw_alloc_array(n, sizeof *n_bytes);
    dw_status status = found && bytes && n_bytes ? DW_OK : dw_fail_memory(err, NULL);
    const uint64_t end = dw_rank_deadline(p);
    for (uint32_t i = 0; status == DW_OK && i < n; i++) {
        if (i == p->options.rank) {
            bytes[i] = p->job.receipt.bytes;
            n_bytes[i] = p->job.receipt.n_bytes;
            continue;
        }
        status = wait_for_receipt(p, i, end, &found[i], err);
        bytes[i] = found[i].bytes;
        n_bytes[i] = found[i].n_bytes;
    }
    if (status == DW_OK)
        status = dw_receipts_commit(p, bytes, n_bytes, n, position, report, err);
    for (uint32_t i = 0; found && i < n; i++)
        dw_writer_release(&found[i]);
    dw_free(found);
    dw_free(bytes);
    dw_free(n_bytes);
    return status;
}

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

static dw_status wait_for_commit(dw_publisher *p, const dw_objects *mine,
                                 dw_position *position, dw_publish_report *report,
                                 dw_error *err)
{
    const uint64_t end = dw_rank_deadline(p), version = dw_commit_next_version(p);
    uint64_t pause = POLL_MS;
    dw_commit_record c;
    dw_status status;
    while ((status = dw_stream_read_commit(p->stream, version, &c, err)) ==
           DW_NOT_FOUND) {
        status = pause_for(p, &pause, end, "rank 0", err);
        if (status != DW_OK) {
            p->commits.in_doubt = true; /* the commit may still arrive */
            return status;
        }
    }
    if (status != DW_OK) {
        p->commits.in_doubt = true;
        return status;
    }
    bool ours = c.epoch == p->commits.epoch && strcmp(c.writer, p->commits.writer) == 0;
    if (ours && !is_made_of(p, &c, mine)) {
        dw_baseline_fall_behind(p);
        status = dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                         "version %" PRIu64 " was committed from an earlier attempt. "
                         "Publish again: the next version covers this one",
                         version);
    }
    *position = dw_position_of(&c);
    report->suspect_from = c.suspect_from;
    report->n_changed = c.n_changed;
    report->n_objects = c.objects.n;
    report->n_bytes = dw_objects_bytes(&c.objects);
    dw_commit_record_release(&c);
    if (!ours) {
        char reason[64];
        snprintf(reason, sizeof reason, "it committed version %" PRIu64, version);
        return dw_commit_fail_fenced(p, reason, err);
    }
    return status;
}

dw_status dw_receipts_exchange(dw_publisher *p, const dw_objects *mine,
                               dw_position *position, dw_publish_report *report,
                               dw_error *err)
{
    if (p->options.rank == 0)
        return collect_and_commit(p, position, report, err);
    dw_status status = put_receipt(p, err);
    return status == DW_OK ? wait_for_commit(p, mine, position, report, err) : status;
}

/* ---- version 0 ---- */

static dw_status wait_for_fork(dw_publisher *p, dw_error *err)
{
    uint64_t pause = POLL_MS, head;
    const uint64_t end = dw_rank_deadline(p);
    dw_status status;
    while ((status = dw_stream_find_head(p->stream, DW_NO_VERSION, &head, err)) ==
           DW_NOT_FOUND) {
        status = pause_for(p, &pause, end, "rank 0", err);
        if (status != DW_OK)
            break;
    }
    return status;
}

dw_status dw_first_version_sharded(dw_publisher *p, dw_error *err)
{
    if (p->options.first == DW_FIRST_FORK) {
        dw_status status =
            p->options.rank == 0 ? dw_fork_first_version(p, err) : wait_for_fork(p, err);
        return status == DW_OK ? dw_baseline_catch_up(p, err) : status;
    }
    char write_id[DW_ID_TEXT];
    dw_position position;
    dw_publish_report report = {0};
    dw_objects objects = {0};
    dw_status status = dw_ranks_agree(p, true, err);
    dw_shared_scales_keep(p);
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
        status = write_receipt(p, &objects, p->baseline.digests, 0, err);
    if (status == DW_OK)
        status = dw_receipts_exchange(p, &objects, &position, &report, err);
    dw_objects_release(&objects);
    p->commits.round++;
    if (status == DW_OK)
        p->commits.head = position;
    return status;
}
