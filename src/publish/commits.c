/* Epochs and commits: docs/PROTOCOL.md, section 3. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "deltawire/deltawire.h"
#include "store/store.h"
#include "publish/publisher.h"
#include "publish/takeover.h"
#include "stream/record_files.h"

#define EPOCH_TRIES   100 /* against writers that claim at the same time */
#define COMMIT_TRIES  3   /* each with the store's own retries */
#define JOIN_WAIT_MS  10
#define JOIN_WAIT_MAX 500

uint64_t dw_commit_next_version(const dw_publisher *p)
{
    return p->commits.head.version == DW_NO_VERSION ? 0 : p->commits.head.version + 1;
}

static void fill_provenance(const dw_publisher *p, dw_provenance *out)
{
    if (p->options.no_provenance)
        return;
    dw_text_clean(out->library, sizeof out->library, dw_version());
    dw_host_name(out->host);
}

/* ---- epochs ---- */

static dw_status visit_epoch(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)err;
    uint64_t *highest = context, epoch;
    if (dw_key_is_epoch(entry->key, &epoch) && epoch > *highest)
        *highest = epoch;
    return DW_OK;
}

/* Raises *HIGHEST to the highest epoch that was claimed, if that is FIRST or above. */
static dw_status list_epochs(dw_publisher *p, uint64_t first, uint64_t *highest,
                             dw_error *err)
{
    char after[DW_KEY_TEXT];
    dw_key_epoch(after, first > 0 ? first - 1 : 0); /* they count from 1 */
    return dw_store_list(p->store, "epochs/", after, visit_epoch, highest, err);
}

/* Creates epochs/EPOCH. If the reply is lost, reads the record. *OURS: whether this
 * writer has the epoch. */
static dw_status put_epoch(dw_publisher *p, uint64_t epoch, bool *ours, dw_error *err)
{
    dw_epoch_record record = {.epoch = epoch,
                              .job = (char *)(p->options.job ? p->options.job : ""),
                              .start = (char *)p->options.start};
    memcpy(record.stream, p->stream->record.stream, sizeof record.stream);
    memcpy(record.writer, p->commits.writer, sizeof record.writer);
    fill_provenance(p, &record.made_by);
    if (!p->options.no_provenance)
        dw_process_self(&record.process);
    char key[DW_KEY_TEXT];
    dw_key_epoch(key, epoch);
    dw_writer bytes = {0};
    dw_status status = dw_epoch_record_write(&bytes, &record, p->options.sign_key, err);
    if (status == DW_OK)
        status = dw_store_put_bytes(p->store, key, bytes.bytes, bytes.n_bytes,
                                    DW_PUT_CREATE, err);
    dw_writer_release(&bytes);
    *ours = status == DW_OK;
    if (status != DW_CONFLICT && status != DW_UNAVAILABLE)
        return status;
    dw_epoch_record found;
    dw_error reading = {0};
    dw_status read = dw_stream_read_epoch(p->stream, epoch, &found, &reading);
    if (read == DW_CORRUPT && status == DW_CONFLICT)
        return DW_OK; /* damaged, but the number is taken */
    if (read == DW_NOT_FOUND && status == DW_CONFLICT)
        return dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                       "the store reports that %s exists, but does not return it", key);
    if (read == DW_NOT_FOUND)
        return status; /* it may still arrive, and fence a later writer */
    if (read != DW_OK) {
        if (err)
            *err = reading;
        return read;
    }
    *ours = strcmp(found.writer, p->commits.writer) == 0;
    dw_epoch_record_release(&found);
    return DW_OK;
}

/* Sets *EPOCH to that of the newest commit, or to 0 if there is none. Even if the record
 * of that epoch is lost, its number is taken: commits under it name another writer. */
static dw_status find_epoch_of_head(dw_publisher *p, uint64_t *epoch, dw_error *err)
{
    dw_commit_record c;
    *epoch = 0;
    dw_status status = dw_stream_read_head(p->stream, p->stream->head, &c, err);
    if (status != DW_OK)
        return status == DW_NOT_FOUND ? DW_OK : status;
    *epoch = c.epoch;
    dw_commit_record_release(&c);
    return DW_OK;
}

/* Claims the next free epoch, once the writer before may be taken over from. */
static dw_status claim_epoch(dw_publisher *p, dw_error *err)
{
    uint64_t highest = 0;
    dw_status status = dw_random_id(p->commits.writer, err);
    if (status == DW_OK)
        status = find_epoch_of_head(p, &highest, err);
    if (status == DW_OK)
        status = list_epochs(p, highest, &highest, err);
    if (status == DW_OK)
        status = dw_writer_await(p, highest, err);
    for (unsigned tries = 0; status == DW_OK && tries < EPOCH_TRIES; tries++) {
        bool ours;
        status = put_epoch(p, ++highest, &ours, err);
        if (status == DW_OK && ours) {
            p->commits.epoch = highest;
            return DW_OK;
        }
    }
    return status != DW_OK ? status
                           : dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                                     "other writers keep claiming the stream. Stop them, "
                                     "then open it again");
}

/* Reads the newest epoch from FIRST on. *IS_OURS: whether this rank may take part in it;
 * *IS_USED: it could, if no other process had been this rank. */
static dw_status look_at_epoch(dw_publisher *p, uint64_t first, bool *is_ours,
                               bool *is_used, dw_error *err)
{
    uint64_t highest = 0;
    dw_epoch_record record;
    char key[DW_KEY_TEXT];
    *is_ours = false;
    dw_status status = list_epochs(p, first, &highest, err);
    if (status != DW_OK || highest == 0)
        return status;
    status = dw_stream_read_epoch(p->stream, highest, &record, err);
    if (status != DW_OK)
        return status == DW_NOT_FOUND ? DW_OK : status;
    const char *start = p->options.start;
    const bool is_job = start ? record.start && strcmp(record.start, start) == 0
                              : strcmp(record.job, p->options.job) == 0;
    memcpy(p->commits.writer, record.writer, sizeof p->commits.writer);
    dw_epoch_record_release(&record);
    *is_used = false;
    if (!is_job)
        return DW_OK;
    dw_key_receipt(key, highest, p->options.rank);
    status = dw_store_stat(p->store, key, NULL, NULL, err);
    *is_used = status == DW_OK;
    *is_ours = status == DW_NOT_FOUND;
    if (*is_ours)
        p->commits.epoch = highest;
    return *is_ours ? DW_OK : status;
}

/* Waits for rank 0; *PAUSE goes up. */
static dw_status wait_for_coordinator(dw_publisher *p, uint64_t end, uint64_t *pause,
                                      const char *used, dw_error *err)
{
    if (dw_clock_ms() >= end)
        return dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                       "rank 0 of job '%s' did not open the stream in %" PRIu64 " s%s",
                       p->options.job, dw_rank_limit_ms(p) / 1000, used);
    dw_status status = dw_rank_check_left(p, 0, err);
    if (status != DW_OK)
        return status;
    if (dw_job_cancelled(p, 0, 0) != 0)
        return dw_fail(err, DW_CANCELLED, dw_store_url(p->store),
                       "cancelled while waiting for rank 0");
    dw_sleep_ms(*pause);
    *pause = *pause * 2 < JOIN_WAIT_MAX ? *pause * 2 : JOIN_WAIT_MAX;
    return DW_OK;
}

dw_status dw_stream_await(dw_publisher *p, dw_error *err)
{
    const uint64_t end = dw_clock_ms() + dw_rank_limit_ms(p);
    uint64_t pause = JOIN_WAIT_MS;
    for (;;) {
        dw_status status = dw_stream_open(&p->stream, p->store, &p->options.trust, err);
        if (status != DW_NOT_FOUND)
            return status;
        status = wait_for_coordinator(p, end, &pause, "", err);
        if (status != DW_OK)
            return status;
    }
}

dw_status dw_epoch_join(dw_publisher *p, dw_error *err)
{
    const uint64_t end = dw_clock_ms() + dw_rank_limit_ms(p);
    uint64_t pause = JOIN_WAIT_MS, first;
    bool is_ours, is_used = false;
    dw_status status = find_epoch_of_head(p, &first, err);
    while (status == DW_OK) {
        status = look_at_epoch(p, first, &is_ours, &is_used, err);
        if (status != DW_OK || is_ours)
            return status;
        status = wait_for_coordinator(
            p, end, &pause,
            is_used ? " again, and another process was this rank: give every start of "
                      "the ranks another `job`"
                    : "",
            err);
    }
    return status;
}

/* ---- the claim and the head ---- */

/* All changes of the claim are here, by the owner of the baseline, under the lock. */
static void set_claim(dw_publisher *p, dw_claim_state to)
{
    pthread_mutex_lock(&p->lock);
    if (p->commits.claim != DW_CLAIM_FENCED)
        p->commits.claim = to;
    pthread_mutex_unlock(&p->lock);
}

void dw_claim_doubt(dw_publisher *p)
{
    set_claim(p, DW_CLAIM_OPEN);
}

dw_status dw_claim_check(const dw_publisher *p, dw_error *err)
{
    return p->commits.claim != DW_CLAIM_FENCED
               ? DW_OK
               : dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                         "another writer took over the stream. This one has stopped "
                         "writing; open the stream again to take it back");
}

void dw_commit_move_head(dw_publisher *p, const dw_position *head)
{
    pthread_mutex_lock(&p->lock);
    p->commits.head = *head;
    pthread_mutex_unlock(&p->lock);
}

/* ---- commits ---- */

/* The host of the writer that claimed the next epoch, as " on host X"; "" if unknown. */
static void name_successor(dw_publisher *p, char *out, size_t size)
{
    dw_epoch_record next;
    out[0] = '\0';
    if (dw_stream_read_epoch(p->stream, p->commits.epoch + 1, &next, NULL) != DW_OK)
        return;
    if (next.made_by.host[0])
        snprintf(out, size, " on host %s", next.made_by.host);
    dw_epoch_record_release(&next);
}

dw_status dw_commit_fail_fenced(dw_publisher *p, const char *reason, dw_error *err)
{
    char host[DW_HOST_NAME_TEXT + 16];
    set_claim(p, DW_CLAIM_FENCED);
    name_successor(p, host, sizeof host);
    return dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                   "another writer%s took over the stream (%s). This one has stopped "
                   "writing; open the stream again to take it back",
                   host, reason);
}

/* DW_CONFLICT if a later writer made the commit: this one may not add to it. */
static dw_status check_epoch(dw_publisher *p, const dw_commit_record *c, dw_error *err)
{
    return c->epoch > p->commits.epoch
               ? dw_commit_fail_fenced(p, "the newest version is of a later epoch", err)
               : DW_OK;
}

dw_status dw_epoch_check_head(dw_publisher *p, dw_error *err)
{
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(p->stream, p->commits.head.version, &c, err);
    if (status != DW_OK)
        return status;
    status = check_epoch(p, &c, err);
    dw_commit_record_release(&c);
    return status;
}

/* VERSION, the newest, becomes the head. */
static dw_status take_head(dw_publisher *p, uint64_t version, dw_error *err)
{
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(p->stream, version, &c, err);
    if (status != DW_OK)
        return status;
    const dw_position head = dw_position_of(&c);
    dw_commit_move_head(p, &head);
    status = check_epoch(p, &c, err);
    dw_version_files_note(&p->files, &c);
    dw_commit_record_release(&c);
    return status;
}

dw_status dw_commit_find_head(dw_publisher *p, dw_error *err)
{
    uint64_t head;
    dw_status status = dw_stream_find_head(p->stream, DW_NO_VERSION, &head, err);
    return status == DW_OK ? take_head(p, head, err) : status;
}

dw_status dw_commit_claim(dw_publisher *p, dw_error *err)
{
    uint64_t head;
    dw_status status = p->options.rank == 0 ? claim_epoch(p, err) : DW_OK;
    if (status != DW_OK)
        return status;
    status = dw_stream_find_head(p->stream, p->stream->head, &head, err);
    if (status == DW_OK)
        return take_head(p, head, err);
    return status == DW_NOT_FOUND ? DW_OK : status; /* no version yet */
}

static dw_status fail_epoch_lost(dw_publisher *p, dw_error *err)
{
    dw_status status = dw_stream_check_presence(p->stream, err);
    return status != DW_OK
               ? status
               : dw_fail(err, DW_UNTRUSTED, dw_store_url(p->store),
                         "epoch %" PRIu64 ", which this publisher claimed, is missing: "
                         "the store was rolled back, or is an older copy. Restore the "
                         "newer one. To continue from this one, open the stream again",
                         p->commits.epoch);
}

/* Fails if the next epoch was claimed, or if this one's record is gone. A commit under
 * this epoch proves that its record was there. Before the first commit, IS_FIRST, the
 * epochs are listed to see both. */
static dw_status check_fence(dw_publisher *p, bool is_first, dw_error *err)
{
    char key[DW_KEY_TEXT], own[DW_KEY_TEXT];
    uint64_t highest = 0;
    dw_key_epoch(own, p->commits.epoch);
    dw_key_epoch(key, p->commits.epoch + 1);
    if (!is_first) {
        dw_epoch_record next;
        dw_status status = dw_store_stat(p->store, key, NULL, NULL, err);
        if (status == DW_OK) /* a wrong answer must not stop this writer for good */
            status = dw_stream_read_epoch(p->stream, p->commits.epoch + 1, &next, err);
        if (status == DW_NOT_FOUND)
            return DW_OK;
        if (status == DW_OK)
            dw_epoch_record_release(&next);
        return status == DW_OK || dw_stream_passes_over(status)
                   ? dw_commit_fail_fenced(p, key, err)
                   : status;
    }
    dw_status status = list_epochs(p, p->commits.epoch, &highest, err);
    if (status == DW_OK && highest > p->commits.epoch)
        return dw_commit_fail_fenced(p, key, err);
    if (status == DW_OK && highest < p->commits.epoch) /* gone, or the list is old */
        status = dw_store_stat(p->store, own, NULL, NULL, err);
    return status == DW_NOT_FOUND ? fail_epoch_lost(p, err) : status;
}

/* The parent and this writer's epoch must still exist: after an outage the store may have
 * come back as an older copy. */
static dw_status check_ground(dw_publisher *p, dw_error *err)
{
    uint64_t epoch = 0;
    dw_status status = DW_OK;
    if (p->commits.head.version != DW_NO_VERSION) {
        dw_commit_record c;
        status =
            dw_position_check(&p->commits.head, p->stream, "this publisher", &c, err);
        if (status == DW_OK) {
            epoch = c.epoch;
            dw_commit_record_release(&c);
        }
    }
    return status == DW_OK ? check_fence(p, epoch != p->commits.epoch, err) : status;
}

/* Reads the commit of VERSION. *OURS: whether this writer made it; WRITE_ID takes the
 * attempt that did. DW_NOT_FOUND if there is no commit. */
static dw_status look_at_commit(dw_publisher *p, uint64_t version, bool *ours,
                                char write_id[DW_ID_TEXT], dw_error *err)
{
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(p->stream, version, &c, err);
    if (status != DW_OK)
        return status;
    *ours = c.epoch == p->commits.epoch && strcmp(c.writer, p->commits.writer) == 0;
    memcpy(write_id, c.write_id, sizeof c.write_id);
    uint64_t turn;
    if (*ours && version > 0 && dw_turn_of_step(&turn, c.step))
        p->ranks.committed = turn;
    dw_commit_record_release(&c);
    return DW_OK;
}

static dw_status put_commit(dw_publisher *p, const dw_commit_record *commit,
                            const dw_writer *bytes, dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_key_commit(key, commit->version);
    dw_status status = DW_OK;
    for (unsigned tries = 0; tries < COMMIT_TRIES; tries++) {
        if (tries > 0 && (status = check_ground(p, err)) == DW_UNAVAILABLE)
            continue;
        if (tries > 0 && status != DW_OK) {
            dw_claim_doubt(p); /* the first try may have arrived */
            return status;
        }
        status = dw_store_put_bytes(p->store, key, bytes->bytes, bytes->n_bytes,
                                    DW_PUT_CREATE, err);
        if (status == DW_DENIED || status == DW_INVALID) {
            dw_claim_doubt(p); /* an earlier try may still arrive */
            return status;
        }
        /* Whatever the reply, only what the store returns was committed: a reply may be
         * lost, or wrong. */
        bool ours;
        char write_id[DW_ID_TEXT];
        dw_error reading = {0};
        dw_status read = look_at_commit(p, commit->version, &ours, write_id, &reading);
        if (read == DW_OK && !ours)
            return dw_commit_fail_fenced(p, key, err);
        if (read == DW_OK && strcmp(write_id, commit->write_id) == 0)
            return DW_OK;
        if (read == DW_OK) {
            dw_claim_doubt(p);
            return dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                           "an earlier attempt at version %" PRIu64
                           ", which had failed, arrived late. Publish again: the next "
                           "version covers this one",
                           commit->version);
        }
        if (read != DW_NOT_FOUND && read != DW_UNAVAILABLE) {
            if (err)
                *err = reading;
            status = read;
            break;
        }
    }
    dw_claim_doubt(p);
    return status == DW_CONFLICT || status == DW_OK
               ? dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                         "the store reports that %s exists, but does not return it", key)
               : status;
}

dw_status dw_commit_create(dw_publisher *p, dw_commit_record *commit,
                           dw_position *position, dw_error *err)
{
    memcpy(commit->stream, p->stream->record.stream, sizeof commit->stream);
    memcpy(commit->parent_sha256, p->commits.head.commit_sha256,
           sizeof commit->parent_sha256);
    memcpy(commit->writer, p->commits.writer, sizeof commit->writer);
    fill_provenance(p, &commit->made_by);
    commit->epoch = p->commits.epoch;
    commit->version = dw_commit_next_version(p);
    commit->source = p->job.source;
    if (commit->version == 0)
        memset(commit->parent_sha256, 0, sizeof commit->parent_sha256);
    dw_writer bytes = {0};
    dw_status status = dw_version_files_store(p, commit, err);
    if (status == DW_OK)
        status = dw_commit_record_write(&bytes, commit, p->options.sign_key, err);
    if (status == DW_OK)
        status = check_ground(p, err);
    if (status == DW_OK)
        status = put_commit(p, commit, &bytes, err);
    dw_writer_release(&bytes);
    if (status == DW_OK) {
        *position = dw_position_of(commit);
        p->stream->head = commit->version;
        dw_commit_move_head(p, position);
        dw_version_files_committed(&p->files, commit);
    }
    dw_file_list_release(&commit->files);
    return status;
}

dw_status dw_commit_resolve(dw_publisher *p, dw_error *err)
{
    if (p->commits.claim != DW_CLAIM_OPEN)
        return dw_claim_check(p, err);
    bool ours;
    char write_id[DW_ID_TEXT];
    uint64_t version = dw_commit_next_version(p);
    dw_status status = look_at_commit(p, version, &ours, write_id, err);
    if (status == DW_NOT_FOUND) {
        set_claim(p, DW_CLAIM_HELD); /* the commit did not arrive */
        return DW_OK;
    }
    if (status != DW_OK)
        return status;
    if (!ours)
        return dw_commit_fail_fenced(p, "it committed the next version", err);
    set_claim(p, DW_CLAIM_HELD);
    dw_baseline_fall_behind(p); /* its deltas are no longer in memory */
    return DW_OK;
}
