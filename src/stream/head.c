/* Finds the newest version, and notices if a version below it is missing.
 *
 * The newest version is the one without a successor. But a missing commit in the middle
 * of the log looks the same. So each search also looks for evidence of newer versions:
 * the hint or, if there is none, now and then a list. Evidence only shows where to look:
 * the commit that it names must exist and be good before it counts.
 */
#include <inttypes.h>

#include "base/clock.h"
#include "base/error.h"
#include "store/store.h"
#include "stream/listing.h"
#include "stream/stream.h"
#include "inner.h"

#define MAX_STEPS   32    /* that are walked one by one before the store is listed */
#define LARGE_EDGES 2048  /* a hint of more edges, over 64 KB, is read now and then */
#define T_RARE_MS   10000 /* between two reads of a large hint, or two lists */
#define PAGE        1000  /* keys that a store lists with one request */

static dw_status commit_exists(dw_stream *s, uint64_t version, bool *exists,
                               dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_key_commit(key, version);
    dw_status status = dw_store_stat(s->store, key, NULL, NULL, err);
    *exists = status == DW_OK;
    return status == DW_NOT_FOUND ? DW_OK : status;
}

/* Asks for version after version. Sets *MORE if it gave up before the last. */
static dw_status walk_some(dw_stream *s, uint64_t *known, bool *more, dw_error *err)
{
    *more = true;
    dw_status status = DW_OK;
    for (unsigned steps = 0; status == DW_OK && *more && steps < MAX_STEPS; steps++) {
        uint64_t next = *known == DW_NO_VERSION ? 0 : *known + 1;
        status = commit_exists(s, next, more, err);
        if (status == DW_OK && *more)
            *known = next;
    }
    return status;
}

typedef struct page {
    uint64_t newest; /* or DW_NO_VERSION */
    unsigned n;      /* commits of the list */
} page;

static dw_status visit_commit(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)err;
    page *p = context;
    uint64_t version;
    if (!dw_key_is_commit(entry->key, &version))
        return DW_OK;
    p->newest = version; /* lists ascend */
    return ++p->n < PAGE ? DW_OK : DW_CANCELLED;
}

/* Lists the commits above *KNOWN, one page of them. *FULL: there may be more. */
static dw_status list_page(dw_stream *s, uint64_t *known, bool *full, dw_error *err)
{
    char after[DW_KEY_TEXT];
    page p = {.newest = *known};
    if (*known != DW_NO_VERSION)
        dw_key_commit(after, *known);
    dw_status status =
        dw_store_list(s->store, "commits/", *known != DW_NO_VERSION ? after : NULL,
                      visit_commit, &p, err);
    *known = p.newest;
    *full = p.n == PAGE;
    return *full ? DW_OK : status;
}

/* Goes up from *KNOWN by steps that double and then halve. If no version is missing, this
 * ends at the newest. */
static dw_status gallop(dw_stream *s, uint64_t *known, dw_error *err)
{
    uint64_t step = PAGE;
    bool exists = true;
    dw_status status = DW_OK;
    while (status == DW_OK && exists) {
        status = commit_exists(s, *known + step, &exists, err);
        if (status == DW_OK && exists) {
            *known += step;
            step *= 2;
        }
    }
    while (status == DW_OK && step > 1) {
        step /= 2;
        status = commit_exists(s, *known + step, &exists, err);
        if (status == DW_OK && exists)
            *known += step;
    }
    return status;
}

/* Moves *KNOWN up to the highest commit that a list shows. Long logs are not listed
 * whole: the last list only shows that nothing is above. It may be stale: the caller
 * walks on from there. */
static dw_status jump_up(dw_stream *s, uint64_t *known, dw_error *err)
{
    bool full = false;
    dw_status status = list_page(s, known, &full, err);
    while (status == DW_OK && full) {
        status = gallop(s, known, err);
        if (status == DW_OK)
            status = list_page(s, known, &full, err);
    }
    return status;
}

static dw_status walk_up(dw_stream *s, uint64_t *known, dw_error *err)
{
    bool more = true;
    dw_status status = DW_OK;
    while (status == DW_OK && more) {
        status = walk_some(s, known, &more, err);
        if (status == DW_OK && more)
            status = jump_up(s, known, err);
    }
    return status;
}

/* The version that latest.json names; DW_NO_VERSION if there is none. */
static dw_status read_hint(dw_stream *s, uint64_t *version, dw_error *err)
{
    dw_latest_record latest;
    dw_status status = dw_stream_read_latest(s, &latest, err);
    if (status != DW_OK)
        return status;
    *version = latest.version;
    s->large_hint = latest.n_edges > LARGE_EDGES;
    dw_latest_record_release(&latest);
    return DW_OK;
}

/* ---- evidence of newer versions ---- */

/* Sets *VERSION to what the hint or a list names, DW_NO_VERSION: nothing. */
static dw_status find_evidence(dw_stream *s, uint64_t known, uint64_t *version,
                               dw_error *err)
{
    const uint64_t now = dw_clock_ms();
    const bool rare_due = s->rare_ms == 0 || now - s->rare_ms >= T_RARE_MS;
    *version = DW_NO_VERSION;
    if (s->large_hint && !rare_due)
        return DW_OK;
    dw_status status = read_hint(s, version, err);
    if (status == DW_OK && *version == DW_NO_VERSION && rare_due) {
        *version = known;
        status = jump_up(s, version, err);
    }
    if (rare_due)
        s->rare_ms = now;
    return status;
}

dw_status dw_stream_fail_hole(const dw_stream *s, uint64_t missing, uint64_t newer,
                              dw_error *err)
{
    char key[DW_KEY_TEXT], where[DW_ERROR_WHERE_SIZE];
    dw_key_commit(key, missing);
    return dw_fail(err, DW_CORRUPT, dw_store_where(s->store, key, where, sizeof where),
                   "version %" PRIu64 " is missing, but version %" PRIu64
                   " is there: the log has a hole. `deltawire verify` lists what is "
                   "missing; restore it from a copy of the store",
                   missing, newer);
}

dw_status dw_stream_find_restart(dw_stream *s, uint64_t version, uint64_t *restart,
                                 dw_error *err)
{
    dw_listing shortcuts;
    uint64_t floor = 0, to, from;
    *restart = DW_NO_VERSION;
    dw_status status = dw_listing_load(&shortcuts, s->store, "ways/", err);
    if (status == DW_OK)
        status = dw_listing_floor(&shortcuts, s, &floor, err);
    for (size_t i = shortcuts.n;
         status == DW_OK && *restart == DW_NO_VERSION && i-- > 0;) {
        dw_commit_record c;
        if (!dw_key_is_shortcut(shortcuts.items[i].key, &to, &from) ||
            from != DW_NO_VERSION)
            continue;
        if (to <= version)
            break;
        status = dw_stream_read_commit(s, to, &c, err);
        if (status == DW_OK) {
            if (c.restart || to == floor)
                *restart = to;
            dw_commit_record_release(&c);
        } else if (dw_stream_passes_over(status)) {
            status = DW_OK;
        }
    }
    dw_listing_release(&shortcuts);
    return status;
}

/* Nothing follows on *KNOWN, but EVIDENCE names a newer version. If the stream was
 * restarted in between, the versions before the restart are not needed, and *KNOWN moves
 * on. */
static dw_status check_hole(dw_stream *s, uint64_t *known, uint64_t evidence,
                            uint64_t *head, dw_error *err)
{
    dw_commit_record c;
    dw_error fault = {0};
    uint64_t restart;
    dw_status status = dw_stream_read_commit(s, evidence, &c, &fault);
    if (status == DW_NOT_FOUND)
        s->lost = evidence;
    if (dw_stream_passes_over(status))
        return DW_OK; /* the evidence is wrong: nothing depends on a hint */
    if (status == DW_OK) {
        dw_commit_record_release(&c);
        status = dw_stream_find_restart(s, *known + 1, &restart, &fault);
    }
    if (status == DW_OK && restart != DW_NO_VERSION) {
        *known = restart;
        status = walk_up(s, known, &fault);
    }
    if (status != DW_OK) {
        if (err)
            *err = fault;
        return status;
    }
    if (*known >= evidence)
        return DW_OK;
    *head = evidence;
    return dw_stream_fail_hole(s, *known + 1, evidence, err);
}

/* Compares the end of the walk, *KNOWN, with the evidence. */
static dw_status cross_check(dw_stream *s, uint64_t *known, uint64_t *head, dw_error *err)
{
    uint64_t evidence;
    dw_status status = find_evidence(s, *known, &evidence, err);
    s->evidence = evidence;
    if (status == DW_OK && evidence != DW_NO_VERSION)
        s->lost = DW_NO_VERSION;
    if (status != DW_OK || evidence == DW_NO_VERSION || evidence == *known)
        return status;
    if (evidence < *known) { /* an old hint, or the store was rolled back */
        bool exists;
        status = commit_exists(s, *known, &exists, err);
        if (status == DW_OK && !exists) {
            *known = DW_NO_VERSION;
            status = jump_up(s, known, err);
        }
        return status;
    }
    status = walk_up(s, known, err); /* it may have come since */
    return status == DW_OK && *known < evidence
               ? check_hole(s, known, evidence, head, err)
               : status;
}

dw_status dw_stream_find_head(dw_stream *s, uint64_t known, uint64_t *head, dw_error *err)
{
    const bool is_first = known == DW_NO_VERSION;
    dw_status status = DW_OK;
    if (is_first) {
        bool exists = true;
        status = read_hint(s, &known, err);
        if (status == DW_OK && known != DW_NO_VERSION)
            status = commit_exists(s, known, &exists, err);
        s->lost = exists || status != DW_OK ? DW_NO_VERSION : known;
        if (!exists)
            known = DW_NO_VERSION;
        s->evidence = known;
    }
    if (status == DW_OK && known == DW_NO_VERSION)
        status = jump_up(s, &known, err);
    if (status == DW_OK)
        status = walk_up(s, &known, err);
    if (status == DW_OK && !is_first)
        status = cross_check(s, &known, head, err);
    if (status != DW_OK)
        return status;
    s->head = known;
    if (s->lost != DW_NO_VERSION && known != DW_NO_VERSION && s->lost <= known)
        s->lost = DW_NO_VERSION; /* it has come since, or a restart is above it */
    if (known == DW_NO_VERSION)
        return dw_fail(err, DW_NOT_FOUND, dw_store_url(s->store),
                       "the stream has no version yet: its first publish is running, "
                       "or was killed. Wait for it, or publish again");
    *head = known;
    return DW_OK;
}

dw_status dw_stream_fail_absent(dw_stream *s, uint64_t version, dw_error *err)
{
    uint64_t head;
    if (err && (s->head == DW_NO_VERSION || version > s->head) &&
        dw_stream_find_head(s, s->head, &head, NULL) == DW_OK && version > head)
        dw_fail(err, DW_NOT_FOUND, dw_store_url(s->store),
                "there is no version %" PRIu64 " yet: the newest is %" PRIu64, version,
                head);
    return DW_NOT_FOUND;
}

/* ---- the newest part of the log ---- */

dw_status dw_stream_fail_lost(const dw_stream *s, const char *key, uint64_t version,
                              dw_error *err)
{
    char commit[DW_KEY_TEXT], where[DW_ERROR_WHERE_SIZE];
    dw_key_commit(commit, version);
    return dw_fail(err, DW_CORRUPT, dw_store_where(s->store, commit, where, sizeof where),
                   "%s says that version %" PRIu64
                   " was committed, but it is missing: commits were lost, or the store "
                   "is an older copy. Restore it, or remove %s if this is all there is",
                   key, version, key);
}

dw_status dw_stream_check_lost(const dw_stream *s, dw_error *err)
{
    return s->lost == DW_NO_VERSION ? DW_OK
                                    : dw_stream_fail_lost(s, DW_KEY_LATEST, s->lost, err);
}

dw_status dw_stream_read_head(dw_stream *s, uint64_t known, dw_commit_record *out,
                              dw_error *err)
{
    uint64_t head;
    dw_status status = dw_stream_find_head(s, known, &head, err);
    return status == DW_OK ? dw_stream_read_commit(s, head, out, err) : status;
}

typedef struct gap {
    uint64_t last; /* of the list so far */
    uint64_t end;  /* of the first gap, DW_NO_VERSION: none */
    uint64_t missing;
} gap;

static dw_status visit_gap(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)err;
    gap *g = context;
    uint64_t version;
    if (!dw_key_is_commit(entry->key, &version))
        return DW_OK;
    if (g->last != DW_NO_VERSION && version > g->last + 1 && g->end == DW_NO_VERSION) {
        g->missing = g->last + 1;
        g->end = version;
    }
    g->last = version;
    return DW_OK;
}

/* Looks for gaps above version FROM. A list may be stale: what it lacks is asked for. */
static dw_status check_gaps(dw_stream *s, uint64_t from, dw_error *err)
{
    for (;;) {
        char after[DW_KEY_TEXT];
        gap g = {.last = from, .end = DW_NO_VERSION};
        bool exists = false;
        if (from != DW_NO_VERSION)
            dw_key_commit(after, from);
        dw_status status =
            dw_store_list(s->store, "commits/", from != DW_NO_VERSION ? after : NULL,
                          visit_gap, &g, err);
        if (status != DW_OK || g.end == DW_NO_VERSION)
            return status;
        status = commit_exists(s, g.missing, &exists, err);
        from = g.end;
        if (status == DW_OK && !exists)
            status = dw_stream_find_restart(s, g.missing, &from, err);
        if (status == DW_OK && from == DW_NO_VERSION)
            status = dw_stream_fail_hole(s, g.missing, g.end, err);
        if (status != DW_OK)
            return status;
    }
}

dw_status dw_stream_check_hint(dw_stream *s, dw_error *err)
{
    uint64_t hint = DW_NO_VERSION;
    bool exists = true;
    dw_status status = read_hint(s, &hint, err);
    if (status == DW_OK && hint != DW_NO_VERSION)
        status = commit_exists(s, hint, &exists, err);
    return status == DW_OK && !exists ? dw_stream_fail_lost(s, DW_KEY_LATEST, hint, err)
                                      : status;
}

dw_status dw_stream_check_newest(dw_stream *s, uint64_t head, dw_error *err)
{
    return check_gaps(s, head > PAGE ? head - PAGE : DW_NO_VERSION, err);
}

dw_status dw_stream_check_log(dw_stream *s, dw_error *err)
{
    uint64_t head = 0;
    dw_status status = dw_stream_find_head(s, s->head, &head, err);
    if (status == DW_OK || status == DW_NOT_FOUND)
        status = dw_stream_check_newest(s, head, err);
    return status == DW_OK ? dw_stream_check_hint(s, err) : status;
}
