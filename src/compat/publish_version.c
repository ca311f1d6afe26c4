/* Publishes one version: looks at the store, writes the version if it is missing, reads
 * it back and compares.
 */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "compat/peer_publish_int.h"
#include "tensor/tensor_list.h"

static dw_status compare_one(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const dw_peer_job *job = context;
    dw_loan loans[2] = {{0}};
    dw_tensor there, ours;
    dw_status status = dw_tensor_read(&there, &loans[0], &job->base[i], err);
    if (status == DW_OK)
        status = dw_tensor_read(&ours, &loans[1], &job->next[i], err);
    if (status == DW_OK && ours.n_bytes > 0 &&
        memcmp(there.data, ours.data, ours.n_bytes) != 0)
        status = dw_fail_tensor(err, DW_MISMATCH, NULL, ours.name, "its bits differ");
    dw_loan_release(&loans[0]);
    dw_loan_release(&loans[1]);
    return status;
}

/* Whether the baseline holds the weights; ERR names the tensor if it does not. */
static bool is_same(const dw_peer_publisher *p, dw_error *err)
{
    size_t n;
    dw_peer_job pair = {.base = dw_peer_publisher_baseline(p, &n), .next = p->next};
    return pair.base && dw_parallel(dw_worker_count(p->options.n_threads, n), n,
                                    compare_one, &pair, NULL, err) == DW_OK;
}

/* Whether the error means that a version which this handle wrote is damaged. A flipped
 * bit may also give an unknown type or shape. */
static bool is_damage(dw_status status)
{
    return status == DW_CORRUPT || status == DW_UNSUPPORTED || status == DW_MISMATCH;
}

/* Reads the newest version back. DW_OK means that it has these weights. */
static dw_status prove(dw_peer_publisher *p, dw_error *err)
{
    dw_error found;
    dw_status status = dw_peer_baseline_follow(p, err);
    if (status == DW_OK && !is_same(p, &found))
        status = dw_fail(err, DW_CORRUPT, dw_store_url(p->store),
                         "version %" PRIu64 " does not hold the weights that were "
                         "published: %s; was somebody else writing?",
                         p->newest, found.text);
    return status;
}

static bool is_due(const dw_peer_publisher *p, uint64_t version)
{
    const unsigned every = p->options.whole_every;
    return (every > 0 && version % every == 0) ||
           (p->options.format == DW_PEER_TRL && version == 1); /* TRL's own rule */
}

static dw_status refuse_number(const dw_peer_publisher *p, uint64_t version,
                               dw_error *err)
{
    return version == p->newest
               ? dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                         "version %" PRIu64 " is there with other weights", version)
               : dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                         "version %" PRIu64 " cannot be written: version %" PRIu64
                         " is there",
                         version, p->newest);
}

static dw_status plan(dw_peer_job *out, const dw_peer_publisher *p, uint64_t version,
                      dw_error *err)
{
    const uint64_t last = p->newest;
    size_t n;
    *out = (dw_peer_job){
        .version = version,
        .base_version = last,
        .base = dw_peer_publisher_baseline(p, &n),
        .next = p->next,
        .n = p->n_tensors,
    };
    if (version == DW_NO_VERSION)
        out->version = last == DW_NO_VERSION ? p->options.first_version : last + 1;
    const bool follows = last != DW_NO_VERSION && out->version == last + 1;
    if (last != DW_NO_VERSION && out->version <= last)
        return refuse_number(p, out->version, err);
    if (out->version > DW_PEER_MAX_VERSION)
        return dw_fail(err, DW_INVALID, dw_store_url(p->store),
                       "version %" PRIu64
                       " has more than 15 digits: no reader here would "
                       "take it for one",
                       out->version);
    out->whole = !follows || is_due(p, out->version);
    return DW_OK;
}

static dw_status write_version(dw_peer_publisher *p, const dw_peer_job *job,
                               dw_peer_publish_report *report, dw_error *err)
{
    dw_status status = DW_OK;
    if (job->whole && job->base) {
        dw_peer_changes changes;
        status = dw_peer_changes_find(&changes, job, p->options.n_threads, err);
        report->n_changed = changes.n_elems;
        dw_peer_changes_release(&changes);
    }
    if (status != DW_OK)
        return status;
    return p->options.format == DW_PEER_TRL ? dw_publish_trl(p, job, report, err)
                                            : dw_publish_slime(p, job, report, err);
}

static dw_status fail_other(const dw_peer_publisher *p, const dw_peer_job *job,
                            dw_error *err)
{
    const bool is_behind = p->newest == DW_NO_VERSION || p->newest < job->version;
    return is_behind ? dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                               "version %" PRIu64 " was written, and is not listed yet",
                               job->version)
                     : dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                               "version %" PRIu64 " was written, and version %" PRIu64
                               " is the newest: somebody else publishes here",
                               job->version, p->newest);
}

/* Removes a bad version that this process wrote. It was not reported to anybody yet. */
static dw_status retract(dw_peer_publisher *p, dw_error *err)
{
    char keys[DW_PEER_RECORDS][DW_PEER_KEY];
    const size_t n = dw_peer_record_keys(keys, p->options.format, p->unsure);
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < n; i++)
        status = dw_store_remove(p->store, keys[i], err);
    if (status != DW_OK)
        return status;
    dw_peer_baseline_reset(p);
    p->written = p->disproven = p->looked = false;
    return DW_OK;
}

/* Reads the disproven version again, only from the store: a reply may have been cut
 * short, or the baseline was damaged. Sets *IS_BAD if it is not what this handle wrote.
 */
static dw_status judge(dw_peer_publisher *p, bool *is_bad, dw_error *err)
{
    dw_peer_baseline_reset(p);
    dw_status status = dw_peer_baseline_follow(p, err);
    *is_bad = (status == DW_OK && p->replica &&
               dw_peer_replica_state(p->replica) != p->unsure_state) ||
              (is_damage(status) && dw_peer_baseline_blames_newest(p));
    if (status == DW_OK && !*is_bad)
        p->disproven = false;
    return status;
}

/* Brings the baseline to the newest version in the store. Sets *DONE if that is the
 * version that was begun before, with these weights. */
static dw_status catch_up(dw_peer_publisher *p, uint64_t version, bool *done,
                          dw_error *err)
{
    dw_error found;
    bool is_bad = false;
    *done = false;
    dw_status status = p->looked ? DW_OK : dw_peer_baseline_look(p, err);
    if (status == DW_OK)
        status = p->disproven && p->newest == p->unsure ? judge(p, &is_bad, err)
                                                        : dw_peer_baseline_follow(p, err);
    if (is_bad) {
        status = retract(p, err);
        if (status == DW_OK)
            status = dw_peer_baseline_look(p, err);
        if (status == DW_OK)
            status = dw_peer_baseline_follow(p, err);
    }
    const uint64_t wanted = version == DW_NO_VERSION ? p->unsure : version;
    if (status == DW_OK && wanted != DW_NO_VERSION && wanted == p->newest)
        *done = is_same(p, &found);
    return status;
}

/* The digest of the current weights. */
static dw_status find_state(const dw_peer_publisher *p, dw_digest *out, dw_error *err)
{
    dw_digest *digests = dw_alloc_array(p->n_tensors, sizeof *digests);
    dw_status status = digests ? dw_digest_tensors(digests, out, p->next, p->n_tensors,
                                                   p->options.n_threads, NULL, err)
                               : dw_fail_memory(err, NULL);
    dw_free(digests);
    return status;
}

/* A version that was written but is not listed yet can only be proven with the weights
 * that were written. */
static dw_status check_written(const dw_peer_publisher *p, dw_error *err)
{
    dw_digest state;
    dw_status status = find_state(p, &state, err);
    if (status == DW_OK && state != p->unsure_state)
        status = dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                         "version %" PRIu64 " was written with other weights, and is not "
                         "listed yet: try again, and these become the next one",
                         p->unsure);
    return status;
}

/* Reads back the version that was written. */
static dw_status look_and_prove(dw_peer_publisher *p, const dw_peer_job *job,
                                dw_error *err)
{
    dw_status status = dw_peer_baseline_look(p, err);
    if (status != DW_OK)
        return status;
    if (p->newest != job->version)
        return fail_other(p, job, err);
    status = prove(p, err);
    p->disproven = is_damage(status);
    return status;
}

/* Writes the version and reads it back. */
static dw_status write_and_prove(dw_peer_publisher *p, const dw_peer_job *job,
                                 dw_peer_publish_report *report, dw_error *err)
{
    dw_status status;
    report->version = job->version;
    report->is_whole = job->whole;
    p->looked =
        false; /* until the version is proven, the state of the store is unknown */
    if (p->unsure == job->version && p->written) {
        status = check_written(p, err);
    } else {
        p->unsure = job->version;
        p->disproven = false;
        status = write_version(p, job, report, err);
        p->written = status == DW_OK;
    }
    if (status != DW_OK)
        return status;
    status = look_and_prove(p, job, err);
    p->looked = status == DW_OK;
    dw_error unread;
    /* without a digest: write it again, which compares it with the objects in the store
     */
    if (status != DW_OK && find_state(p, &p->unsure_state, &unread) != DW_OK)
        p->written = p->disproven = false;
    return status;
}

dw_status dw_peer_publisher_publish(dw_peer_publisher *p, uint64_t version,
                                    dw_peer_publish_report *report, dw_error *err)
{
    dw_peer_publish_report unread;
    dw_peer_job job;
    bool done;
    report = report ? report : &unread;
    *report = (dw_peer_publish_report){.version = DW_NO_VERSION};
    dw_peer_look_at_tensors(p);
    dw_status status = catch_up(p, version, &done, err);
    if (status == DW_OK && done) {
        report->version = p->newest;
        report->was_there = true;
    } else if (status == DW_OK) {
        status = plan(&job, p, version, err);
        if (status == DW_OK)
            status = write_and_prove(p, &job, report, err);
    }
    if (status == DW_OK) {
        p->unsure = DW_NO_VERSION;
        p->written = p->disproven = false;
    }
    return status;
}
