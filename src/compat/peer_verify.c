/* Checks all versions of a peer by applying them to a copy of the weights in memory. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "base/progress.h"
#include "compat/peer_replica.h"
#include "deltawire/checkpoint.h"
#include "stream/stream.h"

typedef struct sweep {
    dw_peer *peer;
    const dw_peer_verify_options *options;
    dw_peer_replica *replica; /* memory */
    dw_peer_verify_report report;
    dw_error first; /* fault */
    dw_share share; /* the progress over all bytes */
    size_t n_full;
    bool noted_unreplayed;
} sweep;

/* Reports a fault and goes on. An unreachable store ends the check. */
static dw_status report_fault(sweep *w, dw_status status, const dw_error *found,
                              dw_error *err)
{
    if (status == DW_OK)
        return DW_OK;
    if (dw_stream_stops(status)) {
        if (err)
            *err = *found;
        return status;
    }
    if (w->report.n_faults++ == 0)
        w->first = *found;
    if (w->options->fault)
        w->options->fault(w->options->context, found);
    return DW_OK;
}

/* Notes a version whose base is not available. */
static dw_status look(sweep *w, const dw_peer_record *r, uint64_t base,
                      const dw_progress *progress, dw_error *err)
{
    const dw_peer *p = w->peer;
    const dw_peer_settings settings = {w->peer, w->options->spool_dir,
                                       w->options->n_threads, progress};
    const bool is_root = base < p->versions[0];
    dw_status status = dw_peer_step_look(&settings, r, err);
    if (status != DW_OK)
        return status;
    if (!is_root && (base == DW_NO_VERSION || !dw_peer_has(p, base, NULL)))
        return dw_fail(err, DW_NOT_FOUND, r->listed.key,
                       "nothing leads to version %" PRIu64 ": what it starts from is not "
                       "there",
                       r->version);
    if (!w->noted_unreplayed)
        dw_peer_note(
            w->replica,
            is_root ? "version %" PRIu64 " and those after it start from a model that is "
                      "not here: their results and checksums were not "
                      "checked. Name that checkpoint with `base`"
                    : "version %" PRIu64 " and those after it start from one that could "
                      "not be made: only their files were checked",
            r->version);
    w->noted_unreplayed = true;
    return DW_OK;
}

static dw_status check_version(sweep *w, uint64_t version, dw_error *err)
{
    const dw_peer_record *r;
    const dw_progress hook = dw_share_hook(&w->share);
    dw_status status = dw_peer_record_get(w->peer, version, &r, err);
    if (status != DW_OK)
        return status;
    dw_peer_replica *replica = w->replica;
    const uint64_t base = dw_peer_base(w->peer, r, w->n_full);
    const bool is_whole = r->is_whole && base == DW_NO_VERSION;
    if (w->peer->format == DW_PEER_TRL && base != DW_NO_VERSION)
        w->report.n_missing += version - base - 1;
    if (!is_whole && replica->base && base < w->peer->versions[0] &&
        dw_peer_replica_version(replica) == DW_NO_VERSION)
        status = dw_peer_replica_fill_base(replica, base, err);
    if (status == DW_OK && (is_whole || (base != DW_NO_VERSION &&
                                         dw_peer_replica_version(replica) == base))) {
        status = dw_peer_replica_take(replica, r, &hook, err);
        w->report.n_replayed += status == DW_OK;
    } else if (status == DW_OK) {
        status = look(w, r, base, &hook, err);
    }
    w->report.n_objects += r->n_files;
    w->report.n_bytes += r->n_bytes;
    w->share.before += r->n_bytes;
    return status;
}

static uint64_t listed_bytes(const dw_peer *p)
{
    uint64_t n = 0;
    for (size_t l = 0; l < 2; l++)
        for (size_t i = 0; i < p->listings[l].n; i++)
            n += p->listings[l].items[i].n_bytes;
    return n;
}

static dw_status check_all(sweep *w, dw_error *err)
{
    dw_error fault = {0};
    dw_status status =
        report_fault(w, dw_peer_full_count(w->peer, &w->n_full, &fault), &fault, err);
    w->share = (dw_share){&w->options->progress, 0, listed_bytes(w->peer)};
    for (size_t i = 0; status == DW_OK && i < w->peer->n_versions; i++) {
        w->report.n_versions++;
        status =
            report_fault(w, check_version(w, w->peer->versions[i], &fault), &fault, err);
    }
    if (w->report.n_missing > 0)
        dw_peer_note(w->replica,
                     "%" PRIu64 " numbers have no file: nothing changed, or uploads were "
                     "lost. TRL's format does not show which",
                     w->report.n_missing);
    if (w->peer->format == DW_PEER_TRL && w->replica->report.n_checked == 0)
        dw_peer_note(w->replica,
                     "TRL's files carry no checksums: that they parse and fit "
                     "the model was checked, their weights cannot be");
    return status;
}

/* If the base cannot be read, that is an error of the caller, not a fault of the store.
 */
static dw_status check_base(const char *base, dw_error *err)
{
    dw_checkpoint *ckpt = NULL;
    dw_status status =
        base ? dw_checkpoint_open(&ckpt, base, DW_CHECKPOINT_READ, err) : DW_OK;
    dw_checkpoint_close(ckpt);
    return status;
}

void dw_peer_verify_options_init_sized(dw_peer_verify_options *options,
                                       size_t struct_bytes)
{
    dw_options_init(options, struct_bytes, NULL, 0);
}

dw_status dw_peer_verify(dw_peer *peer, const dw_peer_verify_options *given,
                         dw_peer_verify_report *report, dw_error *err)
{
    dw_peer_verify_options options;
    sweep w = {.peer = peer, .options = &options};
    const uint64_t *versions;
    size_t n;
    dw_status status = DW_OPTIONS_TAKE(dw_peer_verify_options, &options, given, err);
    dw_peer_replica_options replica;
    dw_peer_replica_options_init(&replica);
    replica.base = options.base;
    replica.spool_dir = options.spool_dir;
    replica.n_threads = options.n_threads;
    replica.note = options.note;
    replica.note_context = options.context;
    if (status == DW_OK)
        status = check_base(options.base, err);
    if (status == DW_OK)
        status = dw_peer_replica_open(&w.replica, peer, &replica, err);
    if (status == DW_OK)
        status = dw_peer_list(peer, &versions, &n, err);
    if (status == DW_OK)
        status = check_all(&w, err);
    if (w.replica)
        w.report.n_checked = w.replica->report.n_checked;
    dw_peer_replica_close(w.replica);
    if (report)
        *report = w.report;
    if (status == DW_OK && w.report.n_faults > 0) {
        if (err)
            *err = w.first;
        status = w.first.code;
    }
    return status;
}
