#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/progress.h"
#include "store/store.h"
#include "stream/verify.h"
#include "stream/verify_object.h"

#define ADVICE_BYTES 400

/* ---- faults ---- */

dw_status dw_sweep_note(dw_sweep *w, dw_status status, const char *key,
                        const char *advice, const dw_error *found, dw_error *err)
{
    if (status == DW_OK)
        return DW_OK;
    if (dw_stream_stops(status)) {
        if (err)
            *err = *found;
        return status;
    }
    if ((status == DW_CORRUPT || status == DW_NOT_FOUND) && w->about < w->restart) {
        w->report.n_left++;
        return DW_OK;
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

dw_status dw_sweep_note_record(dw_sweep *w, dw_status status, const char *key,
                               const dw_error *found, dw_error *err)
{
    static const char foreign[] = "Find out who wrote it; a copy may have what was here";
    static const char damaged[] =
        "Remove it and restore it from a copy with `deltawire cp`";
    static const char damaged_commit[] =
        "Remove it and restore it from a copy with `deltawire cp`; if there is no "
        "copy, go on from a checkpoint with `deltawire repair URL CHECKPOINT`";
    const bool is_foreign = status == DW_UNTRUSTED || status == DW_MISMATCH;
    uint64_t version;
    return dw_sweep_note(w, status, key,
                         is_foreign                        ? foreign
                         : dw_key_is_commit(key, &version) ? damaged_commit
                                                           : damaged,
                         found, err);
}

/* Whether the delta of its own commit leads to the end of EDGE, which is a shortcut.
 */
static bool has_own_delta(const dw_sweep *w, const dw_edge *edge)
{
    const dw_seen *to = dw_sweep_find(w, edge->to);
    return edge->to > w->floor && edge->from != edge->to - 1 && to && !to->restart &&
           !to->is_broken;
}

/* Writes what to do about a missing or damaged object of EDGE. */
static void advise(char out[ADVICE_BYTES], const dw_sweep *w, const dw_edge *edge)
{
    const char *other = NULL;
    bool arrives = false;
    for (size_t i = 0; i < w->shortcuts.n; i++) {
        uint64_t to, from;
        if (!dw_key_is_shortcut(w->shortcuts.items[i].key, &to, &from) || to < edge->to ||
            (to == edge->to && from == edge->from) ||
            (from != DW_NO_VERSION && from >= edge->to) || (other && arrives))
            continue;
        other = w->shortcuts.items[i].key;
        arrives = to == edge->to;
    }
    static const char restore[] =
        "remove what is there of it and restore it from a copy with `deltawire cp`";
    static const char restart[] = "if there is no copy, go on from a checkpoint with "
                                  "`deltawire repair URL CHECKPOINT`";
    if (has_own_delta(w, edge))
        snprintf(out, ADVICE_BYTES,
                 "Version %" PRIu64 ": its delta from version %" PRIu64 " is good; %s",
                 edge->to, edge->to - 1, restore);
    else if (other)
        snprintf(out, ADVICE_BYTES, "Version %" PRIu64 ": followers can %s it by %s; %s",
                 edge->to, arrives ? "reach" : "pass", other, restore);
    else
        snprintf(out, ADVICE_BYTES,
                 "Version %" PRIu64 " cannot be reached without it: %s; %s", edge->to,
                 restore, restart);
}

/* ---- objects ---- */

const dw_seen *dw_sweep_find(const dw_sweep *w, uint64_t version)
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

bool dw_sweep_below_floor(uint64_t floor, const dw_edge *edge)
{
    if (floor == 0)
        return false;
    return edge->from == DW_NO_VERSION ? edge->to < floor : edge->from < floor;
}

dw_status dw_sweep_look_at_floor(dw_sweep *w, const dw_edge *edge, bool *collected,
                                 dw_error *err)
{
    dw_listing shortcuts;
    dw_status status = dw_listing_load(&shortcuts, w->stream->store, "ways/", err);
    if (status == DW_OK)
        status = dw_listing_floor(&shortcuts, w->stream, &w->floor, err);
    dw_listing_release(&shortcuts);
    *collected = status == DW_OK && dw_sweep_below_floor(w->floor, edge);
    return dw_stream_stops(status) ? status : DW_OK;
}

static dw_status check_object(dw_sweep *w, const dw_expected *x, const dw_object *object,
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
    /* before allocating the size in the record */
    if (n_bytes != object->n_bytes)
        return dw_fail(found, DW_CORRUPT, NULL,
                       "the object has %" PRIu64 " bytes, its record says %" PRIu64,
                       n_bytes, object->n_bytes);
    dw_share share = {w->progress, w->n_done, w->n_total};
    const dw_progress hook = dw_share_hook(&share);
    return x->from == DW_NO_VERSION
               ? dw_verify_anchor(x, w->stream->store, object, &hook, found)
               : dw_verify_delta(x, w->stream->store, object, &hook, found);
}

/* Whether an object of EDGE, whose record is KEY, is gone because the floor passed it, or
 * because the shortcut was superseded. */
static dw_status is_collected(dw_sweep *w, const dw_edge *edge, const char *key,
                              bool *collected, dw_error *err)
{
    dw_edge of;
    dw_status status = dw_sweep_look_at_floor(w, edge, collected, err);
    if (status != DW_OK || *collected || !dw_key_is_shortcut(key, &of.to, &of.from))
        return status;
    status = dw_store_stat(w->stream->store, key, NULL, NULL, err);
    *collected = status == DW_NOT_FOUND;
    return dw_stream_stops(status) ? status : DW_OK;
}

dw_status dw_sweep_objects(dw_sweep *w, const dw_edge *edge, const char *key,
                           const dw_objects *objects, dw_digest state, dw_error *err)
{
    const dw_stream_record *r = &w->stream->record;
    const dw_seen *from =
        edge->from == DW_NO_VERSION ? NULL : dw_sweep_find(w, edge->from);
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
    const uint64_t n_before = w->report.n_faults + w->report.n_left;
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
            status = is_collected(w, edge, key, &collected, err);
        if (status == DW_OK && !collected)
            status = dw_sweep_note(w, checked, object->key, advice, &found, err);
        w->n_done += listed ? listed->n_bytes : 0;
    }
    if (status == DW_OK && !collected && edge->from == DW_NO_VERSION &&
        w->report.n_faults + w->report.n_left == n_before) {
        dw_error found = {0};
        dw_status checked = dw_verify_shares(&x, key, &found);
        status = dw_sweep_note(w, checked, key, advice, &found, err);
    }
    dw_free(x.shares);
    return status;
}
