/* Collection: removes what no kept version needs (docs/PROTOCOL.md, section 5).
 *
 * It uses no locks, and trusts neither floor.json nor a clock. The order keeps others
 * safe:
 *
 *     objects listed  ->  shortcuts listed  ->  head read  ->  floor chosen
 *     ->  commits with leftovers read  ->  the anchor at the floor read, if anything is
 *     to go  ->  floor put  ->  shortcuts removed  ->  objects removed
 *
 * Names show the version of an object or a shortcut, and which objects one attempt put.
 * So only a few records are read: the anchors that may become the floor, the shortcuts
 * that cross it, and the commits of versions with objects of two attempts.
 *
 * Only commit N can name an object of version N. If N is not above the head, that commit
 * exists, so an object that it does not name is a leftover. An object of a shortcut can
 * still be named by a record that is written later, so it stays until the floor has
 * passed it.
 *
 * Superseded anchors and folds are removed above the floor, too, if that is asked for.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/progress.h"
#include "store/store.h"
#include "stream/collect_files.h"
#include "stream/graph.h"
#include "stream/listing.h"
#include "stream/stream.h"
#include "stream/verify_object.h"

#define MAX_TRIES 3

typedef enum object_mark {
    UNNAMED = 0,
    STAYS, /* a kept record names it */
    GOES,  /* a shortcut that is removed named it */
} object_mark;

typedef struct anchor {
    uint64_t version;
    bool is_known;  /* whether it is good */
    bool is_good;   /* its record is valid, and all that it names is listed */
    bool is_needed; /* versions that stay are reached only from it */
} anchor;

typedef struct collection {
    dw_stream *stream;
    const dw_collect_options *options;
    dw_collect_report report;

    dw_listing objects; /* with an object_mark each */
    dw_listing receipts;
    dw_listing files;   /* marked: may go */
    dw_graph shortcuts; /* by their names: without sizes; sorted */
    anchor *anchors;    /* ascending */
    size_t n_anchors;
    uint64_t head;
    uint64_t epoch;           /* of the head */
    uint64_t lowest_follower; /* DW_NO_VERSION: none holds anything */
    char follower[65];

    uint64_t floor;
    uint64_t cutoff; /* shortcuts that begin below it are superseded; 0: none are */
    dw_error bad;    /* what is wrong with an anchor that cannot be the floor */
    uint64_t n_done; /* bytes removed */
} collection;

static void release(collection *c)
{
    dw_listing_release(&c->objects);
    dw_listing_release(&c->receipts);
    dw_listing_release(&c->files);
    dw_graph_release(&c->shortcuts);
    dw_free(c->anchors);
}

/* ---- looking ---- */

static dw_status visit_shortcut(void *context, const dw_store_entry *entry, dw_error *err)
{
    collection *c = context;
    dw_edge shortcut = {0};
    return dw_key_is_shortcut(entry->key, &shortcut.to, &shortcut.from)
               ? dw_graph_add(&c->shortcuts, shortcut, err)
               : DW_OK;
}

static void visit_follower(void *context, const dw_follower_info *follower)
{
    collection *c = context;
    if (follower->version != DW_NO_VERSION && follower->version > c->head &&
        (!c->report.ahead || follower->version > c->report.ahead_version)) {
        c->report.ahead_version = follower->version;
        dw_key_follower(c->stream->ahead, follower->id);
        c->report.ahead = c->stream->ahead;
    }
    if (follower->version == DW_NO_VERSION ||
        (c->lowest_follower != DW_NO_VERSION && follower->version >= c->lowest_follower))
        return;
    c->lowest_follower = follower->version;
    snprintf(c->follower, sizeof c->follower, "%s", follower->id);
}

static dw_status list_shortcuts(collection *c, dw_error *err)
{
    dw_status status =
        dw_store_list(c->stream->store, "ways/", NULL, visit_shortcut, c, err);
    if (status != DW_OK || c->shortcuts.n == 0)
        return status;
    qsort(c->shortcuts.edges, c->shortcuts.n, sizeof *c->shortcuts.edges,
          dw_edge_compare);
    c->anchors = dw_alloc_array(c->shortcuts.n, sizeof *c->anchors);
    if (!c->anchors)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < c->shortcuts.n; i++)
        if (c->shortcuts.edges[i].from == DW_NO_VERSION)
            c->anchors[c->n_anchors++] = (anchor){.version = c->shortcuts.edges[i].to};
    return DW_OK;
}

/* DW_CORRUPT if a record of a writer names a version above the head: its commit was lost.
 * Every follower can write followers' records, so they are only reported: a collection
 * removes nothing of versions above the head. */
static dw_status check_lost(collection *c, dw_error *err)
{
    dw_status status = dw_stream_check_hint(c->stream, err);
    if (status != DW_OK)
        return status;
    const dw_edge *last =
        c->shortcuts.n > 0 ? &c->shortcuts.edges[c->shortcuts.n - 1] : NULL;
    if (last && last->to > c->head) {
        char key[DW_KEY_TEXT];
        dw_key_shortcut(key, last->to, last->from);
        return dw_stream_fail_lost(c->stream, key, last->to, err);
    }
    if (!c->report.ahead)
        return DW_OK;
    char key[DW_KEY_TEXT]; /* the follower may have been faster than this collection */
    dw_key_commit(key, c->report.ahead_version);
    status = dw_store_stat(c->stream->store, key, NULL, NULL, err);
    if (status == DW_OK)
        c->report.ahead = NULL;
    return status == DW_NOT_FOUND ? DW_OK : status;
}

static dw_status look(collection *c, dw_error *err)
{
    dw_store *store = c->stream->store;
    c->lowest_follower = DW_NO_VERSION;
    dw_status status = dw_listing_load(&c->objects, store, "objects/", err);
    if (status == DW_OK)
        status = dw_listing_load(&c->receipts, store, "receipts/", err);
    if (status == DW_OK)
        status = dw_listing_load(&c->files, store, "files/", err);
    if (status == DW_OK)
        status = list_shortcuts(c, err);
    dw_commit_record newest;
    if (status == DW_OK)
        status = dw_stream_read_head(c->stream, c->stream->head, &newest, err);
    if (status == DW_OK) {
        c->head = newest.version;
        c->epoch = newest.epoch;
        dw_commit_record_release(&newest);
        /* from a damaged log nothing is removed */
        status = dw_stream_check_newest(c->stream, c->head, err);
    }
    if (status == DW_OK)
        status = dw_stream_followers(c->stream, visit_follower, c, err);
    if (status == DW_OK)
        status = check_lost(c, err);
    if (status == DW_OK)
        status = dw_stream_floor(c->stream, &c->report.old_floor, err);
    return status;
}

/* ---- the floor ---- */

/* Whether the anchor is complete: all objects that it names are there. */
static dw_status judge_anchor(const collection *c, anchor *a, dw_error *err)
{
    dw_shortcut_record shortcut;
    dw_commit_record commit;
    a->is_known = true;
    a->is_good = false;
    dw_status status =
        dw_stream_read_shortcut(c->stream, a->version, DW_NO_VERSION, &shortcut, err);
    if (status != DW_OK)
        return dw_stream_stops(status) ? status : DW_OK;
    bool listed = true;
    for (size_t i = 0; listed && i < shortcut.objects.n; i++)
        listed = dw_listing_has(&c->objects, &shortcut.objects.items[i]);
    if (listed)
        status = dw_stream_read_commit(c->stream, a->version, &commit, err);
    if (listed && status == DW_OK) {
        a->is_good = dw_shortcut_agrees(&shortcut, &commit);
        dw_commit_record_release(&commit);
    }
    dw_shortcut_record_release(&shortcut);
    return dw_stream_stops(status) ? status : DW_OK;
}

/* Sets *BEST to the highest good anchor above LEAST and not above LIMIT, or to LEAST. */
static dw_status highest_anchor(collection *c, uint64_t *best, uint64_t least,
                                uint64_t limit, dw_error *err)
{
    *best = least;
    for (size_t i = c->n_anchors; i-- > 0 && c->anchors[i].version > least;) {
        anchor *a = &c->anchors[i];
        if (a->version > limit)
            continue;
        dw_status status = a->is_known ? DW_OK : judge_anchor(c, a, err);
        if (status != DW_OK)
            return status;
        if (a->is_good) {
            *best = a->version;
            break;
        }
    }
    return DW_OK;
}

static dw_status choose_floor(collection *c, dw_error *err)
{
    uint64_t keep = c->head >= c->options->n_keep ? c->head - c->options->n_keep + 1 : 0;
    uint64_t limit = keep < c->lowest_follower ? keep : c->lowest_follower;
    limit = limit < c->head ? limit : c->head;
    c->report.wanted = limit;
    uint64_t kept = 0, any = 0; /* anchors that only a follower or --keep holds back */
    dw_status status = highest_anchor(c, &c->floor, 0, limit, err);
    if (status != DW_OK)
        return status;
    /* an earlier collection may have kept less */
    const uint64_t old = c->report.old_floor;
    c->report.floor = c->floor > old ? c->floor : old;
    status = highest_anchor(c, &kept, c->report.floor, keep, err);
    if (status == DW_OK)
        status = highest_anchor(c, &any, c->report.floor, c->head, err);

    char *held_by = c->stream->held_by;
    const size_t n = sizeof c->stream->held_by;
    if (kept > c->report.floor)
        snprintf(held_by, n, "follower %s", c->follower);
    else if (c->report.floor >= keep || any > c->report.floor)
        snprintf(held_by, n, "keep");
    else
        snprintf(held_by, n, "anchor");
    c->report.held_by = held_by;
    return status;
}

/* Whether the objects of version 0, the whole model, are all there. A collection removes
 * them before those of any later commit, so then all deltas are there, too. */
static dw_status has_first(const collection *c, bool *has, dw_error *err)
{
    dw_commit_record commit;
    dw_status status = dw_stream_read_commit(c->stream, 0, &commit, err);
    *has = status == DW_OK && commit.content == DW_CONTENT_ANCHOR;
    if (status != DW_OK)
        return dw_stream_stops(status) ? status : DW_OK;
    for (size_t i = 0; *has && i < commit.objects.n; i++)
        *has = dw_listing_has(&c->objects, &commit.objects.items[i]);
    dw_commit_record_release(&commit);
    return DW_OK;
}

static dw_status has_anchor(const collection *c, uint64_t version, bool *has,
                            dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_key_shortcut(key, version, DW_NO_VERSION);
    dw_status status = dw_store_stat(c->stream->store, key, NULL, NULL, err);
    *has = status == DW_OK;
    return status == DW_NOT_FOUND ? DW_OK : status;
}

/* The floor to write if floor.json has NOW: never a lower one, unless the anchor there
 * went as superseded before its collector removed anything. Then what this one relies on
 * is there; else the slower of two may have written its floor over the other's, and the
 * stream begins at the next anchor above. */
static dw_status floor_to_report(const collection *c, uint64_t now, uint64_t *floor,
                                 dw_error *err)
{
    bool has = false;
    *floor = c->floor;
    if (now <= c->floor)
        return DW_OK;
    *floor = now;
    dw_status status = has_anchor(c, now, &has, err);
    if (status != DW_OK || has)
        return status;
    status = c->floor > 0 ? has_anchor(c, c->floor, &has, err) : has_first(c, &has, err);
    for (size_t i = c->n_anchors; i-- > 0 && c->anchors[i].version >= now;)
        *floor = c->anchors[i].version;
    if (has)
        *floor = c->floor;
    return status;
}

static dw_status put_floor(collection *c, uint64_t version, dw_error *err)
{
    dw_floor_record record = {.version = version};
    memcpy(record.stream, c->stream->record.stream, sizeof record.stream);
    dw_writer bytes = {0};
    dw_status status = dw_floor_record_write(&bytes, &record, err);
    if (status == DW_OK)
        status = dw_store_put_bytes(c->stream->store, DW_KEY_FLOOR, bytes.bytes,
                                    bytes.n_bytes, DW_PUT_REPLACE, err);
    dw_writer_release(&bytes);
    return status;
}

static dw_status report_floor(collection *c, dw_error *err)
{
    uint64_t now, floor;
    dw_status status = dw_stream_floor(c->stream, &now, err);
    if (status == DW_OK)
        status = floor_to_report(c, now, &floor, err);
    return status == DW_OK && floor != now ? put_floor(c, floor, err) : status;
}

/* ---- superseded shortcuts ---- */

/* Whether no delta leads to the version, or may lead to it: then its anchor stays. */
static dw_status is_restart(const collection *c, uint64_t version, bool *is,
                            dw_error *err)
{
    dw_commit_record commit;
    dw_status status = dw_stream_read_commit(c->stream, version, &commit, err);
    *is = status != DW_OK || commit.restart;
    if (status == DW_OK)
        dw_commit_record_release(&commit);
    return dw_stream_stops(status) ? status : DW_OK;
}

/* Whether ANCHOR is needed. *HAS_START: what the versions before it are reached from is
 * there; a good anchor is that for those after it. */
static dw_status judge_need(collection *c, anchor *a, bool *has_start, dw_error *err)
{
    dw_status status = is_restart(c, a->version, &a->is_needed, err);
    if (status == DW_OK && (a->is_needed || !*has_start) && !a->is_known)
        status = judge_anchor(c, a, err);
    if (status != DW_OK)
        return status;
    a->is_needed = a->is_needed || (!*has_start && a->is_good);
    *has_start = *has_start || a->is_good;
    if (a->is_needed && !a->is_good) /* nobody knows which objects are its own */
        c->cutoff = a->version;
    return DW_OK;
}

/* The newest good anchors stay, and those that versions which stay are reached from: all
 * deltas stay, so these are the first one, unless version 0 is whole, and those of
 * restarts. */
static dw_status find_superseded(collection *c, dw_error *err)
{
    unsigned n_newest = c->options->n_anchors;
    bool has_start = c->floor > 0;
    dw_status status = DW_OK;
    c->cutoff = 0;
    for (size_t i = c->n_anchors; status == DW_OK && n_newest > 0 && i-- > 0;) {
        anchor *a = &c->anchors[i];
        a->is_needed = a->version == c->floor && c->floor > 0;
        status = a->is_known ? DW_OK : judge_anchor(c, a, err);
        if (status == DW_OK && a->is_good && --n_newest == 0)
            c->cutoff = a->version;
    }
    if (status == DW_OK && c->cutoff > 0 && !has_start)
        status = has_first(c, &has_start, err);
    for (size_t i = 0;
         status == DW_OK && i < c->n_anchors && c->anchors[i].version < c->cutoff; i++) {
        anchor *a = &c->anchors[i];
        a->is_needed = a->version == c->floor && c->floor > 0;
        if (a->version > c->floor)
            status = judge_need(c, a, &has_start, err);
    }
    return status;
}

static bool is_superseded(const collection *c, const dw_edge *shortcut)
{
    const bool is_anchor = shortcut->from == DW_NO_VERSION;
    if ((is_anchor ? shortcut->to : shortcut->from) >= c->cutoff)
        return false;
    for (size_t i = 0; is_anchor && i < c->n_anchors; i++)
        if (c->anchors[i].version == shortcut->to)
            return !c->anchors[i].is_needed;
    return true;
}

/* ---- what stays ---- */

static bool shortcut_stays(const collection *c, const dw_edge *shortcut)
{
    return shortcut->to >= c->floor &&
           (shortcut->from == DW_NO_VERSION || shortcut->from >= c->floor) &&
           !is_superseded(c, shortcut);
}

static void mark(collection *c, const dw_objects *objects, object_mark as)
{
    for (size_t i = 0; i < objects->n; i++) {
        dw_listed *found = dw_listing_find(&c->objects, objects->items[i].key);
        if (found && found->mark != STAYS)
            found->mark = as;
    }
}

/* Marks the objects of the shortcuts [BEGIN, END), which lead to one version. */
static dw_status mark_shortcuts_to(collection *c, size_t begin, size_t end, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = begin; status == DW_OK && i < end; i++) {
        const dw_edge *edge = &c->shortcuts.edges[i];
        dw_shortcut_record shortcut;
        status = dw_stream_read_shortcut(c->stream, edge->to, edge->from, &shortcut, err);
        if (status == DW_OK) {
            mark(c, &shortcut.objects, shortcut_stays(c, edge) ? STAYS : GOES);
            dw_shortcut_record_release(&shortcut);
        } else if (!dw_stream_stops(status)) {
            status = DW_OK; /* gone by another collector, or of no use to anybody: its
                               objects stay above the floor */
        }
    }
    return status;
}

/* Objects of shortcuts to versions below the floor are removed by their names. Above it,
 * a shortcut is removed if it begins below the floor, or is superseded, together with the
 * objects in its record. */
static dw_status mark_shortcuts(collection *c, dw_error *err)
{
    dw_status status = DW_OK;
    size_t end, begin = dw_edges_find(c->shortcuts.edges, c->shortcuts.n, c->floor);
    for (; status == DW_OK && begin < c->shortcuts.n; begin = end) {
        bool crosses = false;
        for (end = begin; end < c->shortcuts.n &&
                          c->shortcuts.edges[end].to == c->shortcuts.edges[begin].to;
             end++)
            crosses = crosses || !shortcut_stays(c, &c->shortcuts.edges[end]);
        if (crosses)
            status = mark_shortcuts_to(c, begin, end, err);
    }
    return status;
}

static dw_status mark_commit(collection *c, uint64_t version, dw_error *err)
{
    dw_commit_record commit;
    dw_status status = dw_stream_read_commit(c->stream, version, &commit, err);
    if (status == DW_NOT_FOUND)
        return dw_fail(err, DW_CORRUPT, dw_store_url(c->stream->store),
                       "version %" PRIu64 " has no commit, though version %" PRIu64
                       " has: nothing was removed. `deltawire verify` says more",
                       version, c->head);
    if (status == DW_OK) {
        mark(c, &commit.objects, STAYS);
        dw_commit_record_release(&commit);
    }
    return status;
}

/* Whether the item is an object of a commit whose version stays. */
static bool is_kept_version(const collection *c, const dw_listed *item, uint64_t *version)
{
    bool of_shortcut;
    return dw_key_is_object(item->key, version, &of_shortcut) && !of_shortcut &&
           *version <= c->head && (c->floor == 0 || *version > c->floor);
}

/* If all objects of a version are from one attempt, they stay: they are the version, or a
 * leftover that is removed when the floor passes it. If there are several attempts, the
 * commit names the right one. */
static dw_status mark_commits(collection *c, dw_error *err)
{
    dw_status status = DW_OK;
    dw_listed *items = c->objects.items;
    size_t end;
    for (size_t i = 0; status == DW_OK && i < c->objects.n; i = end) {
        uint64_t version, other;
        bool is_one = true;
        end = i + 1;
        if (!is_kept_version(c, &items[i], &version))
            continue;
        for (; end < c->objects.n && dw_key_is_of(items[end].key, version); end++)
            if (is_kept_version(c, &items[end], &other))
                is_one = is_one && dw_key_same_attempt(items[i].key, items[end].key);
        for (size_t k = i; is_one && k < end; k++)
            if (is_kept_version(c, &items[k], &other))
                items[k].mark = STAYS;
        if (!is_one)
            status = mark_commit(c, version, err);
    }
    return status;
}

static bool may_go(const collection *c, const dw_listed *item)
{
    uint64_t version;
    bool of_shortcut;
    if (item->mark == STAYS || !dw_key_is_object(item->key, &version, &of_shortcut))
        return false;
    if (!of_shortcut)
        return version <= c->head && !c->options->shortcuts_only;
    return item->mark == GOES || version < c->floor;
}

/* ---- the anchor at the floor ---- */

/* Whether the floor makes anything go. */
static bool relies_on_floor(const collection *c)
{
    bool goes = false;
    for (size_t i = 0; !goes && i < c->shortcuts.n; i++)
        goes = !shortcut_stays(c, &c->shortcuts.edges[i]);
    for (size_t i = 0; !goes && i < c->objects.n; i++)
        goes = may_go(c, &c->objects.items[i]);
    for (size_t i = 0; !goes && i < c->files.n; i++)
        goes = c->files.items[i].mark != 0;
    return c->floor > 0 && goes;
}

/* Reads the anchor at the floor: its bytes must be the weights of that version. */
static dw_status read_anchor(collection *c, const dw_shortcut_record *shortcut,
                             dw_error *err)
{
    const dw_stream_record *r = &c->stream->record;
    dw_expected x = {.tensors = r->tensors,
                     .n_tensors = r->n_tensors,
                     .from = DW_NO_VERSION,
                     .to = shortcut->version,
                     .state = shortcut->state,
                     .shares = dw_alloc_zeroed(r->n_tensors, sizeof *x.shares)};
    if (!x.shares)
        return dw_fail_memory(err, NULL);
    dw_share bar = {&c->options->progress, 0, dw_objects_bytes(&shortcut->objects)};
    const dw_progress hook = dw_share_hook(&bar);
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < shortcut->objects.n; i++) {
        status = dw_verify_anchor(&x, c->stream->store, &shortcut->objects.items[i],
                                  &hook, err);
        bar.before += shortcut->objects.items[i].n_bytes;
    }
    char where[DW_ERROR_WHERE_SIZE], key[DW_KEY_TEXT];
    dw_key_shortcut(key, shortcut->version, shortcut->from);
    dw_store_where(c->stream->store, key, where, sizeof where);
    if (status == DW_OK)
        status = dw_verify_shares(&x, where, err);
    dw_free(x.shares);
    return status;
}

/* Reads the anchor at the floor if something will be removed. *GOOD: it can be relied on.
 */
static dw_status try_floor(collection *c, bool *good, dw_error *err)
{
    *good = true;
    if (!relies_on_floor(c))
        return DW_OK;
    dw_error fault = {0};
    dw_shortcut_record shortcut;
    dw_status status =
        dw_stream_read_shortcut(c->stream, c->floor, DW_NO_VERSION, &shortcut, &fault);
    if (status == DW_OK) {
        status = read_anchor(c, &shortcut, &fault);
        dw_shortcut_record_release(&shortcut);
    }
    if (status == DW_OK)
        return DW_OK;
    if (dw_stream_stops(status)) {
        if (err)
            *err = fault;
        return status;
    }
    *good = false;
    if (status != DW_NOT_FOUND) { /* else another collector took it meanwhile */
        c->bad = fault;
        c->report.bad_anchor = c->floor;
    }
    for (size_t i = 0; i < c->n_anchors; i++)
        if (c->anchors[i].version == c->floor)
            c->anchors[i].is_good = false;
    return DW_OK;
}

/* The highest floor whose anchor can be relied on. */
static dw_status choose_good_floor(collection *c, dw_error *err)
{
    bool good = false;
    dw_status status = DW_OK;
    while (status == DW_OK && !good) {
        status = choose_floor(c, err);
        if (status == DW_OK)
            status = find_superseded(c, err);
        for (size_t i = 0; i < c->objects.n; i++)
            c->objects.items[i].mark = UNNAMED;
        if (status == DW_OK)
            status = mark_shortcuts(c, err);
        if (status == DW_OK && !c->options->shortcuts_only)
            status = mark_commits(c, err);
        if (status == DW_OK && !c->options->shortcuts_only)
            status = dw_collect_mark_files(&c->files, c->stream, c->floor, c->head, err);
        if (status == DW_OK)
            status = try_floor(c, &good, err);
    }
    if (status == DW_OK && c->report.bad_anchor != DW_NO_VERSION && c->floor == 0)
        status = dw_fail(err, DW_CORRUPT, c->bad.where,
                         "the anchor of version %" PRIu64
                         " cannot be relied on (%.200s), and there is no older one: "
                         "nothing was removed. Publish a version, and then add its "
                         "anchor (compact)",
                         c->report.bad_anchor, c->bad.text);
    return status;
}

/* ---- removing ---- */

static dw_status remove_key(collection *c, const char *key, uint64_t n_bytes,
                            dw_error *err)
{
    dw_status status = dw_store_progress(&c->options->progress, c->n_done, 0,
                                         dw_store_url(c->stream->store), err);
    if (status == DW_OK && !c->options->dry_run)
        status = dw_store_remove(c->stream->store, key, err);
    if (status != DW_OK)
        return status;
    c->n_done += n_bytes;
    c->report.n_objects++;
    c->report.n_bytes += n_bytes;
    if (c->options->removed)
        c->options->removed(c->options->context, key, n_bytes);
    return DW_OK;
}

/* Another collection may have picked this anchor, which is superseded, as its floor. It
 * puts its floor first and then looks for the anchor's record; this one does it the other
 * way round. So one of them sees the other, and the anchor stays or is not the floor. If
 * the record went already, whoever took it may put it back. */
static dw_status remove_anchor(collection *c, const dw_edge *edge, const char *key,
                               dw_error *err)
{
    dw_store *store = c->stream->store;
    dw_writer record = {0};
    uint64_t floor = 0, before = 0;
    dw_status status = dw_stream_floor(c->stream, &before, err);
    bool stays = before == edge->to;
    if (status == DW_OK && !stays)
        status = dw_store_get_all(store, key, DW_RECORD_BYTES, &record, err);
    if (status == DW_OK && !stays) {
        status = remove_key(c, key, 0, err); /* it may be done although it failed */
        dw_error *fault = status == DW_OK ? err : NULL;
        dw_status back =
            c->options->dry_run ? DW_OK : dw_stream_floor(c->stream, &floor, fault);
        /* a third one may have seen it gone, and have put the next one's floor */
        stays = back != DW_OK || (floor != before && floor >= edge->to);
        if (stays)
            back = dw_store_put_bytes(store, key, record.bytes, record.n_bytes,
                                      DW_PUT_CREATE, fault);
        if (status == DW_OK && back != DW_CONFLICT)
            status = back;
    } else if (status == DW_NOT_FOUND) {
        stays = true;
        status = DW_OK;
    }
    for (size_t i = 0; stays && i < c->objects.n; i++)
        if (dw_key_is_of(c->objects.items[i].key, edge->to))
            c->objects.items[i].mark = STAYS;
    dw_writer_release(&record);
    return status;
}

/* Shortcuts that end or begin below the floor, or are superseded. */
static dw_status remove_shortcuts(collection *c, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < c->shortcuts.n; i++) {
        const dw_edge *shortcut = &c->shortcuts.edges[i];
        char key[DW_KEY_TEXT];
        dw_key_shortcut(key, shortcut->to, shortcut->from);
        if (shortcut_stays(c, shortcut))
            continue;
        status = shortcut->from == DW_NO_VERSION && shortcut->to > c->floor
                     ? remove_anchor(c, shortcut, key, err)
                     : remove_key(c, key, 0, err);
    }
    return status;
}

/* Whether another collection took the anchor at the floor, as superseded, before it saw
 * the floor. A collection that has a higher floor does no harm. */
static dw_status lost_floor(collection *c, bool *lost, dw_error *err)
{
    bool has = false;
    uint64_t now;
    *lost = false;
    if (c->floor == 0 || c->options->dry_run)
        return DW_OK;
    dw_status status = has_anchor(c, c->floor, &has, err);
    if (status != DW_OK || has)
        return status;
    status = dw_stream_floor(c->stream, &now, err);
    *lost = status == DW_OK && now <= c->floor;
    return status;
}

static dw_status remove_objects(collection *c, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < c->objects.n; i++) {
        const dw_listed *item = &c->objects.items[i];
        if (may_go(c, item))
            status = remove_key(c, item->key, item->n_bytes, err);
    }
    for (size_t i = 0; status == DW_OK && i < c->files.n; i++) {
        const dw_listed *item = &c->files.items[i];
        if (item->mark != 0)
            status = remove_key(c, item->key, item->n_bytes, err);
    }
    for (size_t i = 0;
         status == DW_OK && !c->options->shortcuts_only && i < c->receipts.n; i++) {
        const dw_listed *item = &c->receipts.items[i];
        uint64_t epoch;
        if (dw_key_is_receipt(item->key, &epoch) && epoch < c->epoch)
            status = remove_key(c, item->key, item->n_bytes, err);
    }
    return status;
}

/* *AGAIN: the anchor at the floor went before anything else did. */
static dw_status collect_once(dw_stream *stream, const dw_collect_options *options,
                              dw_collect_report *report, bool *again, dw_error *err)
{
    collection c = {.stream = stream, .options = options};
    c.report.bad_anchor = DW_NO_VERSION;
    *again = false;
    dw_status status = look(&c, err);
    if (status == DW_OK)
        status = choose_good_floor(&c, err);
    if (status == DW_OK) /* to read the anchor took long */
        status = lost_floor(&c, again, err);
    if (status == DW_OK && !*again && !options->dry_run)
        status = report_floor(&c, err);
    if (status == DW_OK && !*again)
        status = lost_floor(&c, again, err);
    if (status == DW_OK && !*again)
        status = remove_shortcuts(&c, err);
    if (status == DW_OK && !*again)
        status = remove_objects(&c, err);
    if (status == DW_OK && !*again && !options->dry_run)
        status = report_floor(&c, err);
    *report = c.report;
    release(&c);
    return status;
}

dw_status dw_stream_collect(dw_stream *stream, const dw_collect_options *given,
                            dw_collect_report *report, dw_error *err)
{
    dw_collect_options options;
    dw_status status = DW_OPTIONS_TAKE(dw_collect_options, &options, given, err);
    if (status != DW_OK)
        return status;
    if (options.n_keep == 0)
        return dw_fail(err, DW_INVALID, dw_store_url(stream->store),
                       "at least one version must be kept");
    dw_collect_report found = {0};
    bool again = true;
    for (unsigned tries = 0; status == DW_OK && again && tries < MAX_TRIES; tries++)
        status = collect_once(stream, &options, &found, &again, err);
    if (report)
        *report = found;
    return status;
}

dw_status dw_collect_floor(dw_stream *stream, uint64_t n_keep, uint64_t *floor,
                           uint64_t *wanted, dw_error *err)
{
    const dw_collect_options options = {.struct_bytes = sizeof options, .n_keep = n_keep};
    collection c = {.stream = stream, .options = &options};
    dw_status status = look(&c, err);
    if (status == DW_OK)
        status = choose_floor(&c, err);
    *floor = c.report.floor;
    *wanted = c.report.wanted;
    release(&c);
    return status;
}
