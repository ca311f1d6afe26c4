/* Reading a stream as a whole: every record, every object, and how they hang together. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"
#include "sync/listing.h"
#include "sync/stream.h"
#include "sync/verify_object.h"

#define ADVICE_BYTES 400

/* A commit whose record was found good: what others must agree with. */
typedef struct seen {
    uint64_t version;
    uint8_t sha256[DW_SHA256_BYTES];
    dw_digest state;
} seen;

typedef struct sweep {
    dw_stream *stream;
    dw_fault_fn fn;
    void *context;
    const dw_progress *progress;
    dw_verify_report report;
    dw_error first; /* fault */

    uint64_t floor;
    dw_listing objects;
    dw_listing commits;
    dw_listing ways;
    seen *seen; /* ascending */
    size_t n_seen;
    size_t n_room;

    uint64_t n_done; /* bytes of objects */
    uint64_t n_total;
} sweep;

/* ---- faults ---- */

/* The store as a whole, or the caller, rather than something in the stream. */
static bool stops(dw_status status)
{
    return status == DW_NO_MEMORY || status == DW_CANCELLED || status == DW_UNAVAILABLE ||
           status == DW_DENIED;
}

/* Takes what a check of KEY came to: a fault is told, and the sweep goes on. */
static dw_status settle(sweep *w, dw_status status, const char *key, const char *advice,
                        const dw_error *found, dw_error *err)
{
    if (status == DW_OK)
        return DW_OK;
    if (stops(status)) {
        if (err)
            *err = *found;
        return status;
    }
    char where[DW_ERROR_WHERE_SIZE];
    dw_store_where(w->stream->store, key, where, sizeof where);
    dw_error fault;
    dw_fail(&fault, status, where, "%.600s. %s", found->text, advice);
    if (w->report.n_faults++ == 0)
        w->first = fault;
    if (w->fn)
        w->fn(w->context, &fault);
    return DW_OK;
}

static dw_status settle_record(sweep *w, dw_status status, const char *key,
                               const dw_error *found, dw_error *err)
{
    return settle(w, status, key,
                  status == DW_UNTRUSTED || status == DW_MISMATCH
                      ? "Find out who wrote it; a mirror may have what was here"
                      : "Remove it and restore it from a mirror with `deltawire cp`",
                  found, err);
}

/* What to do about an object without which EDGE leads nowhere. */
static void advise(char out[ADVICE_BYTES], const sweep *w, const dw_edge *edge)
{
    const char *other = NULL;
    bool arrives = false;
    for (size_t i = 0; i < w->ways.n; i++) {
        uint64_t to, from;
        if (!dw_key_is_way(w->ways.items[i].key, &to, &from) || to < edge->to ||
            (to == edge->to && from == edge->from) ||
            (from != DW_NO_VERSION && from >= edge->to) || (other && arrives))
            continue;
        other = w->ways.items[i].key;
        arrives = to == edge->to;
    }
    static const char restore[] =
        "remove what is there of it and restore it from a mirror with `deltawire cp`";
    if (other)
        snprintf(out, ADVICE_BYTES, "Version %" PRIu64 ": followers can %s it by %s; %s",
                 edge->to, arrives ? "reach" : "pass", other, restore);
    else
        snprintf(out, ADVICE_BYTES,
                 "Version %" PRIu64 " cannot be reached without it: %s", edge->to,
                 restore);
}

/* ---- objects ---- */

static int report_bytes(void *context, uint64_t n_done, uint64_t n_total)
{
    (void)n_total;
    const sweep *w = context;
    return w->progress->report(w->progress->context, w->n_done + n_done, w->n_total);
}

static const seen *find_seen(const sweep *w, uint64_t version)
{
    size_t low = 0, high = w->n_seen;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (w->seen[middle].version < version)
            low = middle + 1;
        else
            high = middle;
    }
    return low < w->n_seen && w->seen[low].version == version ? &w->seen[low] : NULL;
}

/* Whether the objects behind EDGE may be gone for a collection's sake. */
static bool below_floor(uint64_t floor, const dw_edge *edge)
{
    if (floor == 0)
        return false;
    return edge->from == DW_NO_VERSION ? edge->to < floor : edge->from < floor;
}

/* One that is missing may have been collected since the sweep began. */
static dw_status look_at_floor(sweep *w, const dw_edge *edge, bool *collected,
                               dw_error *err)
{
    dw_status status = dw_stream_read_floor(w->stream, &w->floor, err);
    *collected = status == DW_OK && below_floor(w->floor, edge);
    return stops(status) ? status : DW_OK;
}

static dw_status check_object(sweep *w, const dw_expected *x, const dw_object *object,
                              dw_error *found)
{
    const dw_listed *listed = dw_listing_find(&w->objects, object->key);
    uint64_t n_bytes = 0;
    dw_status status = DW_OK;
    if (listed)
        n_bytes = listed->n_bytes;
    else
        status = dw_store_stat(w->stream->store, object->key, &n_bytes, NULL, found);
    if (status != DW_OK)
        return status == DW_NOT_FOUND
                   ? dw_fail(found, status, NULL, "the object is missing")
                   : status;
    /* before room is taken for what the record says */
    if (n_bytes != object->n_bytes)
        return dw_fail(found, DW_CORRUPT, NULL,
                       "the object has %" PRIu64 " bytes, its record says %" PRIu64,
                       n_bytes, object->n_bytes);
    const dw_progress hook = {report_bytes, w};
    const dw_progress *progress = w->progress && w->progress->report ? &hook : NULL;
    return x->from == DW_NO_VERSION
               ? dw_verify_anchor(x, w->stream->store, object, progress, found)
               : dw_verify_delta(x, w->stream->store, object, progress, found);
}

/* All objects behind EDGE, which the record KEY names. */
static dw_status check_objects(sweep *w, const dw_edge *edge, const char *key,
                               const dw_objects *objects, dw_digest state, dw_error *err)
{
    const dw_stream_record *r = &w->stream->record;
    const seen *from = edge->from == DW_NO_VERSION ? NULL : find_seen(w, edge->from);
    dw_expected x = {.tensors = r->tensors,
                     .n_tensors = r->n_tensors,
                     .from = edge->from,
                     .to = edge->to,
                     .state = state,
                     .has_from_state = from != NULL,
                     .from_state = from ? from->state : 0};
    x.shares = dw_alloc_zeroed(r->n_tensors, sizeof *x.shares);
    if (!x.shares)
        return dw_fail_memory(err, key);
    char advice[ADVICE_BYTES];
    advise(advice, w, edge);
    dw_status status = DW_OK;
    const uint64_t n_faults = w->report.n_faults;
    bool collected = false;
    for (size_t i = 0; status == DW_OK && !collected && i < objects->n; i++) {
        const dw_object *object = &objects->items[i];
        dw_listed *listed = dw_listing_find(&w->objects, object->key);
        if (listed)
            listed->mark = 1;
        w->report.n_objects++;
        w->report.n_bytes += object->n_bytes;
        dw_error found = {0};
        dw_status checked = check_object(w, &x, object, &found);
        if (checked == DW_NOT_FOUND)
            status = look_at_floor(w, edge, &collected, err);
        if (status == DW_OK && !collected)
            status = settle(w, checked, object->key, advice, &found, err);
        w->n_done += listed ? listed->n_bytes : 0;
    }
    if (status == DW_OK && !collected && edge->from == DW_NO_VERSION &&
        w->report.n_faults == n_faults) {
        dw_error found = {0};
        dw_status checked = dw_verify_shares(&x, key, &found);
        status = settle(w, checked, key, advice, &found, err);
    }
    dw_free(x.shares);
    return status;
}

/* ---- records ---- */

static dw_status check_stream_record(sweep *w, dw_error *err)
{
    dw_error found = {0};
    dw_stream *again;
    const dw_trust trust = {(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])w->stream->trust,
                            w->stream->n_trust};
    dw_status status = dw_stream_open(&again, w->stream->store, &trust, &found);
    if (status == DW_OK && memcmp(again->record.seal.sha256,
                                  w->stream->record.seal.sha256, DW_SHA256_BYTES) != 0)
        status = dw_fail(&found, DW_UNTRUSTED, NULL,
                         "the stream's record is another than when it was opened");
    dw_stream_close(again);
    return settle_record(w, status, DW_KEY_STREAM, &found, err);
}

static dw_status check_epoch(sweep *w, const char *key, uint64_t epoch, dw_error *err)
{
    dw_error found = {0};
    dw_epoch_record record;
    dw_status status = dw_stream_read_epoch(w->stream, epoch, &record, &found);
    if (status == DW_OK) {
        status = dw_stream_check_seal(w->stream, &record.seal, key, &found);
        dw_epoch_record_release(&record);
    }
    return settle_record(w, status, key, &found, err);
}

static dw_status check_epochs(sweep *w, dw_error *err)
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
static dw_status check_writer(sweep *w, const dw_commit_record *commit, dw_error *found)
{
    dw_epoch_record epoch;
    dw_status status = dw_stream_read_epoch(w->stream, commit->epoch, &epoch, found);
    if (status == DW_NOT_FOUND)
        return dw_fail(found, DW_NOT_FOUND, NULL,
                       "version %" PRIu64 " was written in epoch %" PRIu64
                       ", whose record is missing",
                       commit->version, commit->epoch);
    if (status != DW_OK)
        return stops(status) ? status : DW_OK; /* told as the epoch's own fault */
    if (strcmp(epoch.writer, commit->writer) != 0)
        status = dw_fail(found, DW_UNTRUSTED, NULL,
                         "version %" PRIu64 " was written by %s, but epoch %" PRIu64
                         " belongs to %s",
                         commit->version, commit->writer, commit->epoch, epoch.writer);
    dw_epoch_record_release(&epoch);
    return status;
}

static dw_status remember(sweep *w, const dw_commit_record *commit, dw_error *err)
{
    if (!dw_grow_array((void **)&w->seen, &w->n_room, w->n_seen, sizeof *w->seen))
        return dw_fail_memory(err, NULL);
    seen *s = &w->seen[w->n_seen++];
    *s = (seen){.version = commit->version, .state = commit->state};
    memcpy(s->sha256, commit->seal.sha256, sizeof s->sha256);
    return DW_OK;
}

/* COMMIT and, where it is known, the one before; then its objects. */
static dw_status check_commit(sweep *w, const dw_commit_record *commit,
                              const dw_commit_record *parent, const char *key,
                              dw_error *err)
{
    dw_error found = {0};
    dw_status status =
        parent ? dw_stream_check_child(w->stream, parent, commit, &found) : DW_OK;
    status = settle_record(w, status, key, &found, err);
    if (status == DW_OK) {
        dw_status checked = check_writer(w, commit, &found);
        status = settle_record(w, checked, key, &found, err);
    }
    if (status == DW_OK)
        status = remember(w, commit, err);
    const uint64_t v = commit->version;
    const dw_edge edge = {.from = v > 0 ? v - 1 : DW_NO_VERSION, .to = v};
    const bool has_objects =
        commit->content == DW_CONTENT_DELTA || commit->content == DW_CONTENT_ANCHOR;
    if (status == DW_OK && has_objects && !below_floor(w->floor, &edge))
        status = check_objects(w, &edge, key, &commit->objects, commit->state, err);
    return status;
}

/* The lowest listed version from VERSION on. */
static bool next_listed(const sweep *w, uint64_t version, uint64_t *next)
{
    for (size_t i = 0; i < w->commits.n; i++)
        if (dw_key_is_commit(w->commits.items[i].key, next) && *next >= version)
            return true;
    return false;
}

/* Versions FIRST to END - 1 are not there, but END is. */
static dw_status tell_hole(sweep *w, uint64_t first, uint64_t end, dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_error found;
    dw_key_commit(key, first);
    dw_fail(&found, DW_CORRUPT, NULL,
            "commits/ has a hole: of versions %" PRIu64 " to %" PRIu64
            " no record is there",
            first, end - 1);
    return settle(w, DW_CORRUPT, key, "Restore them from a mirror with `deltawire cp`",
                  &found, err);
}

static dw_status check_commits(sweep *w, dw_error *err)
{
    dw_commit_record parent = {0}, commit;
    bool has_parent = false;
    dw_status status = DW_OK;
    uint64_t version = w->floor;
    while (status == DW_OK) {
        char key[DW_KEY_TEXT];
        dw_key_commit(key, version);
        dw_error found = {0};
        dw_status read = dw_stream_read_commit(w->stream, version, &commit, &found);
        uint64_t next = version + 1;
        if (read == DW_OK) {
            status = check_commit(w, &commit, has_parent ? &parent : NULL, key, err);
            dw_commit_record_release(&parent);
            parent = commit;
        } else if (read != DW_NOT_FOUND) {
            status = settle_record(w, read, key, &found, err);
        } else if (next_listed(w, version, &next) && next > version) {
            status = tell_hole(w, version, next, err);
        } else {
            break;
        }
        w->report.n_versions += read != DW_NOT_FOUND;
        has_parent = read == DW_OK;
        version = next;
    }
    dw_commit_record_release(&parent);
    return status;
}

/* A way must agree with the commits at both its ends. */
static dw_status check_ends(sweep *w, const dw_way_record *way, dw_error *found)
{
    const seen *to = find_seen(w, way->version);
    const seen *from = way->from == DW_NO_VERSION ? NULL : find_seen(w, way->from);
    if (!to || (!from && way->from != DW_NO_VERSION))
        return dw_fail(found, DW_CORRUPT, NULL,
                       "it leads %s version %" PRIu64
                       ", whose commit is not there or not "
                       "good",
                       to ? "from" : "to", to ? way->from : way->version);
    if (way->state != to->state ||
        memcmp(way->commit_sha256, to->sha256, DW_SHA256_BYTES) != 0)
        return dw_fail(found, DW_UNTRUSTED, NULL,
                       "the way was not made for the version %" PRIu64
                       " that is committed",
                       way->version);
    if (from && memcmp(way->from_sha256, from->sha256, DW_SHA256_BYTES) != 0)
        return dw_fail(found, DW_UNTRUSTED, NULL,
                       "the way was not made from the version %" PRIu64
                       " that is committed",
                       way->from);
    return DW_OK;
}

static dw_status check_way(sweep *w, const char *key, dw_edge *edge, dw_error *err)
{
    dw_error found = {0};
    dw_way_record way;
    dw_status status = dw_stream_read_way(w->stream, edge->to, edge->from, &way, &found);
    if (status == DW_NOT_FOUND)
        return DW_OK; /* collected meanwhile */
    w->report.n_ways++;
    if (status != DW_OK)
        return settle(w, status, key, "Remove it: the commits lead there without it",
                      &found, err);
    dw_status checked = check_ends(w, &way, &found);
    status = settle(w, checked, key, "Remove it: the commits lead there without it",
                    &found, err);
    if (status == DW_OK)
        status = check_objects(w, edge, key, &way.objects, way.state, err);
    dw_way_record_release(&way);
    return status;
}

static dw_status check_ways(sweep *w, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < w->ways.n; i++) {
        dw_edge edge = {0};
        const char *key = w->ways.items[i].key;
        if (dw_key_is_way(key, &edge.to, &edge.from) && !below_floor(w->floor, &edge))
            status = check_way(w, key, &edge, err);
    }
    return status;
}

/* ---- the sweep ---- */

static void count_unnamed(sweep *w)
{
    for (size_t i = 0; i < w->objects.n; i++)
        w->report.n_unnamed += w->objects.items[i].mark == 0;
}

dw_status dw_stream_verify(dw_stream *stream, dw_fault_fn fn, void *context,
                           const dw_progress *progress, dw_verify_report *report,
                           dw_error *err)
{
    sweep w = {.stream = stream, .fn = fn, .context = context, .progress = progress};
    dw_status status = check_stream_record(&w, err);
    if (status == DW_OK) {
        dw_error found = {0};
        dw_status read = dw_stream_read_floor(stream, &w.floor, &found);
        status = settle_record(&w, read, DW_KEY_FLOOR, &found, err);
    }
    if (status == DW_OK)
        status = dw_listing_load(&w.objects, stream->store, "objects/", err);
    if (status == DW_OK)
        status = dw_listing_load(&w.commits, stream->store, "commits/", err);
    if (status == DW_OK)
        status = dw_listing_load(&w.ways, stream->store, "ways/", err);
    for (size_t i = 0; i < w.objects.n; i++)
        w.n_total += w.objects.items[i].n_bytes;
    if (status == DW_OK)
        status = check_epochs(&w, err);
    if (status == DW_OK)
        status = check_commits(&w, err);
    if (status == DW_OK)
        status = check_ways(&w, err);
    count_unnamed(&w);
    if (report)
        *report = w.report;
    if (status == DW_OK && w.report.n_faults > 0) {
        status = w.first.code;
        if (err)
            *err = w.first;
    }
    dw_listing_release(&w.objects);
    dw_listing_release(&w.commits);
    dw_listing_release(&w.ways);
    dw_free(w.seen);
    return status;
}
