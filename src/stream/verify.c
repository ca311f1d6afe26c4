#include "stream/verify.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"

/* ---- records ---- */

static dw_status check_stream_record(dw_sweep *w, dw_error *err)
{
    dw_error found = {0};
    dw_stream *again;
    const dw_trust trust = {(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])w->stream->trust,
                            w->stream->n_trust, NULL};
    dw_status status = dw_stream_open(&again, w->stream->store, &trust, &found);
    if (status == DW_OK && memcmp(again->record.seal.sha256,
                                  w->stream->record.seal.sha256, DW_SHA256_BYTES) != 0)
        status = dw_fail(&found, DW_UNTRUSTED, NULL,
                         "the stream's record is another than when it was opened");
    dw_stream_close(again);
    return dw_sweep_note_record(w, status, DW_KEY_STREAM, &found, err);
}

static dw_status check_epoch(dw_sweep *w, const char *key, uint64_t epoch, dw_error *err)
{
    dw_error found = {0};
    dw_epoch_record record;
    dw_status status = dw_stream_read_epoch(w->stream, epoch, &record, &found);
    if (status == DW_OK) {
        status = dw_stream_check_seal(w->stream, &record.seal, key, &found);
        dw_epoch_record_release(&record);
    }
    return dw_sweep_note_record(w, status, key, &found, err);
}

static dw_status check_epochs(dw_sweep *w, dw_error *err)
{
    dw_listing epochs;
    uint64_t epoch;
    dw_status status = dw_listing_load(&epochs, w->stream->store, "epochs/", err);
    for (size_t i = 0; status == DW_OK && i < epochs.n; i++)
        if (dw_key_is_epoch(epochs.items[i].key, &epoch))
            status = check_epoch(w, epochs.items[i].key, epoch, err);
    dw_listing_release(&epochs);
    return status;
}

/* The epoch that a commit names was claimed, and by its writer. */
static dw_status check_writer(dw_sweep *w, const dw_commit_record *commit,
                              dw_error *found)
{
    dw_epoch_record epoch;
    dw_status status = dw_stream_read_epoch(w->stream, commit->epoch, &epoch, found);
    if (status == DW_NOT_FOUND)
        return dw_fail(found, DW_NOT_FOUND, NULL,
                       "version %" PRIu64 " was written in epoch %" PRIu64
                       ", whose record is missing",
                       commit->version, commit->epoch);
    if (status != DW_OK)
        return dw_stream_stops(status) ? status
                                       : DW_OK; /* reported as the epoch's own fault */
    if (strcmp(epoch.writer, commit->writer) != 0)
        status = dw_fail(found, DW_UNTRUSTED, NULL,
                         "version %" PRIu64 " was written by %s, but epoch %" PRIu64
                         " belongs to %s",
                         commit->version, commit->writer, commit->epoch, epoch.writer);
    dw_epoch_record_release(&epoch);
    return status;
}

static dw_status remember(dw_sweep *w, const dw_commit_record *commit, dw_error *err)
{
    if (!dw_grow_array((void **)&w->seen, &w->n_room, w->n_seen, sizeof *w->seen))
        return dw_fail_memory(err, NULL);
    dw_seen *s = &w->seen[w->n_seen++];
    *s = (dw_seen){
        .version = commit->version, .state = commit->state, .restart = commit->restart};
    if (commit->suspect_from > 0) {
        w->report.suspect_from = commit->suspect_from;
        w->report.suspect_end = commit->version;
    }
    memcpy(s->sha256, commit->seal.sha256, sizeof s->sha256);
    return DW_OK;
}

static bool has_anchor(const dw_sweep *w, uint64_t version)
{
    char key[DW_KEY_TEXT];
    dw_key_shortcut(key, version, DW_NO_VERSION);
    return dw_listing_find(&w->shortcuts, key) != NULL;
}

/* Only its anchor leads to a restart. */
static dw_status check_restart(dw_sweep *w, const dw_commit_record *commit,
                               const char *key, dw_error *err)
{
    dw_error found = {0};
    if (commit->version < w->floor || has_anchor(w, commit->version))
        return DW_OK;
    dw_fail(&found, DW_NOT_FOUND, NULL,
            "version %" PRIu64 " restarts the stream, and the record of its anchor is "
            "missing",
            commit->version);
    return dw_sweep_note(w, DW_NOT_FOUND, key,
                         "The repair was interrupted: run `deltawire repair` again",
                         &found, err);
}

/* COMMIT and, if it is known, the one before; then its objects. */
static dw_status check_commit(dw_sweep *w, const dw_commit_record *commit,
                              const dw_commit_record *parent, const char *key,
                              dw_error *err)
{
    dw_error found = {0};
    dw_status status =
        parent ? dw_stream_check_child(w->stream, parent, commit, &found) : DW_OK;
    status = dw_sweep_note_record(w, status, key, &found, err);
    if (status == DW_OK) {
        dw_status checked = check_writer(w, commit, &found);
        status = dw_sweep_note_record(w, checked, key, &found, err);
    }
    if (status == DW_OK)
        status = remember(w, commit, err);
    const uint64_t v = commit->version;
    const dw_edge edge = {.from = v > 0 ? v - 1 : DW_NO_VERSION, .to = v};
    const bool has_objects =
        commit->content == DW_CONTENT_DELTA || commit->content == DW_CONTENT_ANCHOR;
    if (status == DW_OK && commit->restart)
        status = check_restart(w, commit, key, err);
    if (status == DW_OK && has_objects && !dw_sweep_below_floor(w->floor, &edge)) {
        const uint64_t n_before = w->report.n_faults + w->report.n_left;
        status = dw_sweep_objects(w, &edge, key, &commit->objects, commit->state, err);
        w->seen[w->n_seen - 1].is_broken =
            w->report.n_faults + w->report.n_left > n_before;
    }
    return status == DW_OK ? dw_sweep_files(w, commit, parent, key, err) : status;
}

/* The lowest listed version from VERSION on. */
static bool next_listed(const dw_sweep *w, uint64_t version, uint64_t *next)
{
    for (size_t i = 0; i < w->commits.n; i++)
        if (dw_key_is_commit(w->commits.items[i].key, next) && *next >= version)
            return true;
    return false;
}

/* The version that the hint names must be there. */
static dw_status check_hint(dw_sweep *w, uint64_t newest, dw_error *err)
{
    dw_latest_record latest;
    dw_error found = {0};
    dw_status status = dw_stream_read_latest(w->stream, &latest, err);
    if (status != DW_OK)
        return status;
    const uint64_t version = latest.version;
    dw_latest_record_release(&latest);
    if (version == DW_NO_VERSION || (newest != DW_NO_VERSION && version <= newest))
        return DW_OK;
    dw_commit_record c;
    status = dw_stream_read_commit(w->stream, version, &c, &found);
    if (status == DW_OK)
        dw_commit_record_release(&c); /* it came during the sweep */
    if (status != DW_NOT_FOUND)
        return dw_stream_stops(status) ? status : DW_OK;
    w->end = version + 1;
    status = dw_stream_fail_lost(w->stream, DW_KEY_LATEST, version, &found);
    return dw_sweep_note(w, status, DW_KEY_LATEST,
                         "Followers that used it refuse this store", &found, err);
}

/* Versions FIRST to END - 1 are not there, but END is. */
static dw_status report_hole(dw_sweep *w, uint64_t first, uint64_t end, dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_error found;
    dw_key_commit(key, first);
    if (end - first == 1)
        dw_fail(&found, DW_CORRUPT, NULL,
                "the log has a hole: version %" PRIu64 " is missing, but version %" PRIu64
                " is there",
                first, end);
    else
        dw_fail(&found, DW_CORRUPT, NULL,
                "the log has a hole: versions %" PRIu64 " to %" PRIu64
                " are missing, but version %" PRIu64 " is there",
                first, end - 1, end);
    return dw_sweep_note(w, DW_CORRUPT, key,
                         "Restore what is missing from a copy with `deltawire cp`; if "
                         "it is gone for good, run `deltawire repair` with a checkpoint",
                         &found, err);
}

static dw_status check_commits(dw_sweep *w, dw_error *err)
{
    dw_commit_record parent = {0}, commit;
    bool has_parent = false;
    dw_status status = DW_OK;
    uint64_t version = w->floor;
    while (status == DW_OK) {
        char key[DW_KEY_TEXT];
        dw_key_commit(key, version);
        dw_error found = {0};
        w->about = version;
        dw_status read = dw_stream_read_commit(w->stream, version, &commit, &found);
        uint64_t next = version + 1;
        if (read == DW_OK) {
            status = check_commit(w, &commit, has_parent ? &parent : NULL, key, err);
            dw_commit_record_release(&parent);
            parent = commit;
        } else if (read != DW_NOT_FOUND) {
            status = dw_sweep_note_record(w, read, key, &found, err);
        } else if (next_listed(w, version, &next) && next > version) {
            status = report_hole(w, version, next, err);
        } else {
            break;
        }
        w->report.n_versions += read != DW_NOT_FOUND;
        has_parent = read == DW_OK;
        version = next;
    }
    dw_commit_record_release(&parent);
    w->about = DW_NO_VERSION;
    w->end = version;
    if (status == DW_OK)
        status = check_hint(w, version > w->floor ? version - 1 : DW_NO_VERSION, err);
    return status;
}

/* A shortcut must agree with the commits at both its ends. */
static dw_status check_ends(dw_sweep *w, const dw_shortcut_record *shortcut,
                            dw_error *found)
{
    const dw_seen *to = dw_sweep_find(w, shortcut->version);
    const dw_seen *from =
        shortcut->from == DW_NO_VERSION ? NULL : dw_sweep_find(w, shortcut->from);
    if (!to || (!from && shortcut->from != DW_NO_VERSION))
        return dw_fail(found, DW_CORRUPT, NULL,
                       "it leads %s version %" PRIu64
                       ", whose commit is not there or not "
                       "good",
                       to ? "from" : "to", to ? shortcut->from : shortcut->version);
    if (shortcut->state != to->state ||
        memcmp(shortcut->commit_sha256, to->sha256, DW_SHA256_BYTES) != 0)
        return dw_fail(found, DW_UNTRUSTED, NULL,
                       "the shortcut was not made for the version %" PRIu64
                       " that is committed",
                       shortcut->version);
    if (from && memcmp(shortcut->from_sha256, from->sha256, DW_SHA256_BYTES) != 0)
        return dw_fail(found, DW_UNTRUSTED, NULL,
                       "the shortcut was not made from the version %" PRIu64
                       " that is committed",
                       shortcut->from);
    return DW_OK;
}

static dw_status check_shortcut(dw_sweep *w, dw_listed *listed, dw_edge *edge,
                                dw_error *err)
{
    const char *key = listed->key;
    dw_error found = {0};
    dw_shortcut_record shortcut;
    dw_status status =
        dw_stream_read_shortcut(w->stream, edge->to, edge->from, &shortcut, &found);
    listed->mark = status == DW_OK || status == DW_NOT_FOUND;
    if (status == DW_NOT_FOUND)
        return DW_OK; /* collected meanwhile */
    w->report.n_shortcuts++;
    w->about = edge->to;
    if (status != DW_OK)
        return dw_sweep_note(w, status, key,
                             "Remove it: the commits lead there without it", &found, err);
    if (edge->from != DW_NO_VERSION)
        w->about = edge->from;
    dw_status checked = check_ends(w, &shortcut, &found);
    status = dw_sweep_note(w, checked, key,
                           "Remove it: the commits lead there without it", &found, err);
    w->about = edge->to;
    if (status == DW_OK)
        status = dw_sweep_objects(w, edge, key, &shortcut.objects, shortcut.state, err);
    dw_shortcut_record_release(&shortcut);
    return status;
}

static dw_status check_shortcuts(dw_sweep *w, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < w->shortcuts.n; i++) {
        dw_edge edge = {0};
        const char *key = w->shortcuts.items[i].key;
        if (dw_key_is_shortcut(key, &edge.to, &edge.from) &&
            !dw_sweep_below_floor(w->floor, &edge))
            status = check_shortcut(w, &w->shortcuts.items[i], &edge, err);
        else
            w->shortcuts.items[i].mark = 1;
    }
    return status;
}

/* ---- the sweep ---- */

/* Whether a record of a shortcut to VERSION is there that could not be read, or a restart
 * has no anchor. */
static bool has_damaged_shortcut(const dw_sweep *w, uint64_t version)
{
    const dw_seen *seen = dw_sweep_find(w, version);
    uint64_t to, from;
    if (seen && seen->restart && !has_anchor(w, version))
        return true;
    for (size_t i = 0; i < w->shortcuts.n; i++)
        if (w->shortcuts.items[i].mark == 0 &&
            dw_key_is_shortcut(w->shortcuts.items[i].key, &to, &from) && to == version)
            return true;
    return false;
}

/* Whether the record that an object belongs to is missing or damaged, by the object's
 * name. */
static bool is_orphan(const dw_sweep *w, const char *key)
{
    uint64_t version;
    bool of_shortcut;
    if (!dw_key_is_object(key, &version, &of_shortcut) || version < w->restart)
        return false;
    return of_shortcut
               ? has_damaged_shortcut(w, version)
               : version >= w->floor && version < w->end && !dw_sweep_find(w, version);
}

static void count_unnamed(dw_sweep *w)
{
    for (size_t i = 0; i < w->objects.n; i++) {
        const dw_listed *listed = &w->objects.items[i];
        if (listed->mark != 0)
            continue;
        if (is_orphan(w, listed->key))
            w->report.n_orphans++;
        else
            w->report.n_unnamed++;
    }
    dw_sweep_count_files(w);
}

dw_status dw_stream_verify(dw_stream *stream, dw_fault_fn fn, void *context,
                           const dw_progress *progress, dw_verify_report *report,
                           dw_error *err)
{
    dw_sweep w = {.stream = stream,
                  .fn = fn,
                  .context = context,
                  .progress = progress,
                  .about = DW_NO_VERSION};
    dw_status status = check_stream_record(&w, err);
    if (status == DW_OK)
        status = dw_listing_load(&w.objects, stream->store, "objects/", err);
    if (status == DW_OK)
        status = dw_listing_load(&w.files, stream->store, "files/", err);
    if (status == DW_OK)
        status = dw_listing_load(&w.commits, stream->store, "commits/", err);
    if (status == DW_OK)
        status = dw_listing_load(&w.shortcuts, stream->store, "ways/", err);
    if (status == DW_OK) {
        dw_error found = {0};
        dw_status read = dw_listing_floor(&w.shortcuts, stream, &w.floor, &found);
        status = dw_sweep_note_record(&w, read, DW_KEY_FLOOR, &found, err);
    }
    if (status == DW_OK)
        status = dw_stream_find_restart(stream, 0, &w.restart, err);
    if (w.restart == DW_NO_VERSION)
        w.restart = 0;
    for (size_t i = 0; i < w.objects.n; i++)
        w.n_total += w.objects.items[i].n_bytes;
    for (size_t i = 0; i < w.files.n; i++)
        w.n_total += w.files.items[i].n_bytes;
    if (status == DW_OK)
        status = check_epochs(&w, err);
    if (status == DW_OK)
        status = check_commits(&w, err);
    if (status == DW_OK)
        status = check_shortcuts(&w, err);
    count_unnamed(&w);
    if (report)
        *report = w.report;
    if (status == DW_OK && w.report.n_faults > 0) {
        status = w.first.code;
        if (err)
            *err = w.first;
    }
    dw_listing_release(&w.objects);
    dw_listing_release(&w.files);
    dw_listing_release(&w.commits);
    dw_listing_release(&w.shortcuts);
    dw_free(w.seen);
    return status;
}
