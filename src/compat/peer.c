#include "compat/peer_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "compat/names.h"
#include "store/store.h"

static const char *const format_names[] = {"?", "trl", "slime"};

const char *dw_peer_format_name(dw_peer_format format)
{
    return format >= DW_PEER_TRL && format <= DW_PEER_SLIME ? format_names[format]
                                                            : format_names[0];
}

bool dw_peer_format_from_name(dw_peer_format *out, const char *name)
{
    for (dw_peer_format f = DW_PEER_TRL; f <= DW_PEER_SLIME; f++)
        if (strcmp(name, format_names[f]) == 0) {
            *out = f;
            return true;
        }
    return false;
}

/* ---- the format ---- */

typedef struct search {
    dw_peer_format format;
    bool found;
} search;

static dw_status look_at(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)err;
    search *s = context;
    uint64_t version;
    s->found = dw_peer_key_version(s->format, entry->key, &version);
    return s->found ? DW_CANCELLED : DW_OK; /* stop the listing at the first one */
}

dw_status dw_peer_detect(dw_store *store, dw_peer_format *out, dw_error *err)
{
    static const struct {
        dw_peer_format format;
        const char *prefix;
    } kinds[] = {
        {DW_PEER_TRL, DW_TRL_ANCHORS},
        {DW_PEER_TRL, DW_TRL_DELTAS},
        {DW_PEER_SLIME, DW_SLIME_NAMES},
    };
    dw_error fault = {0};
    dw_status status = dw_store_stat(store, DW_KEY_STREAM, NULL, NULL, &fault);
    if (status == DW_OK)
        return dw_fail(err, DW_NOT_FOUND, dw_store_url(store),
                       "this is a stream of deltawire's own");
    if (status != DW_NOT_FOUND) {
        if (err)
            *err = fault;
        return status;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        search s = {kinds[i].format, false};
        status = dw_store_list(store, kinds[i].prefix, NULL, look_at, &s, err);
        if (s.found) {
            *out = s.format;
            return DW_OK;
        }
        if (status != DW_OK)
            return status;
    }
    return dw_fail(err, DW_NOT_FOUND, dw_store_url(store),
                   "there is no stream of deltawire, and nothing of TRL or slime");
}

dw_status dw_peer_open(dw_peer **out, dw_store *store, dw_error *err)
{
    *out = NULL;
    dw_peer_format format;
    dw_status status = dw_peer_detect(store, &format, err);
    if (status != DW_OK)
        return status;
    dw_peer *p = dw_alloc_zeroed(1, sizeof *p);
    if (!p)
        return dw_fail_memory(err, dw_store_url(store));
    p->store = store;
    p->format = format;
    *out = p;
    return DW_OK;
}

void dw_peer_close(dw_peer *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n_records; i++)
        dw_peer_record_free(p->records[i]);
    dw_free(p->versions);
    dw_listing_release(&p->listings[0]);
    dw_listing_release(&p->listings[1]);
    dw_free(p);
}

dw_peer_format dw_peer_get_format(const dw_peer *p)
{
    return p->format;
}

/* ---- the versions ---- */

static int compare_versions(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

/* Keys are sorted by bytes, which differs from the order of numbers of different lengths.
 */
static dw_status collect_versions(uint64_t **out, size_t *n_out, const dw_listing *lists,
                                  dw_peer_format format, dw_error *err)
{
    size_t n = 0;
    uint64_t *all = dw_alloc_array(lists[0].n + lists[1].n, sizeof *all);
    if (!all)
        return dw_fail_memory(err, NULL);
    for (size_t l = 0; l < 2; l++)
        for (size_t i = 0; i < lists[l].n; i++)
            n += dw_peer_key_version(format, lists[l].items[i].key, &all[n]);
    if (n > 0)
        qsort(all, n, sizeof *all, compare_versions);
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++)
        if (n_kept == 0 || all[n_kept - 1] != all[i])
            all[n_kept++] = all[i];
    *out = all;
    *n_out = n_kept;
    return DW_OK;
}

static bool is_same_object(const dw_listed *a, const dw_listed *b)
{
    return a && b && strcmp(a->key, b->key) == 0 && a->n_bytes == b->n_bytes &&
           a->modified_ms == b->modified_ms;
}

/* Whether the listing still shows the object and the files that the record was read from.
 */
static bool is_current(const dw_peer *p, const dw_peer_record *r)
{
    bool same = is_same_object(dw_peer_find(p, r->version), &r->listed);
    for (size_t i = 0; same && p->format != DW_PEER_TRL && i < r->n_files; i++) {
        const dw_listed *found = dw_listing_find(&p->listings[0], r->files[i].key);
        same = found ? found->n_bytes == r->files[i].n_bytes
                     : r->files[i].n_bytes == UINT64_MAX;
    }
    return same;
}

static void forget_old_records(dw_peer *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_records; i++) {
        if (is_current(p, p->records[i]))
            p->records[n++] = p->records[i];
        else
            dw_peer_record_free(p->records[i]);
    }
    p->n_records = n;
}

dw_status dw_peer_list(dw_peer *p, const uint64_t **versions, size_t *n_versions,
                       dw_error *err)
{
    dw_listing lists[2] = {{0}, {0}};
    uint64_t *all = NULL;
    size_t n = 0;
    const bool is_trl = p->format == DW_PEER_TRL;
    dw_status status = dw_listing_load(&lists[0], p->store,
                                       is_trl ? DW_TRL_ANCHORS : DW_SLIME_NAMES, err);
    if (status == DW_OK && is_trl)
        status = dw_listing_load(&lists[1], p->store, DW_TRL_DELTAS, err);
    if (status == DW_OK)
        status = collect_versions(&all, &n, lists, p->format, err);
    if (status != DW_OK) {
        dw_listing_release(&lists[0]);
        dw_listing_release(&lists[1]);
        return status;
    }
    for (size_t i = 0; i < 2; i++) {
        dw_listing_release(&p->listings[i]);
        p->listings[i] = lists[i];
    }
    dw_free(p->versions);
    p->versions = all;
    p->n_versions = n;
    p->is_listed = true;
    forget_old_records(p);
    *versions = all;
    *n_versions = n;
    return DW_OK;
}

bool dw_peer_has(const dw_peer *p, uint64_t version, size_t *place)
{
    const uint64_t *found = p->n_versions > 0
                                ? bsearch(&version, p->versions, p->n_versions,
                                          sizeof *p->versions, compare_versions)
                                : NULL;
    if (found && place)
        *place = (size_t)(found - p->versions);
    return found != NULL;
}

dw_listed *dw_peer_find(const dw_peer *p, uint64_t version)
{
    char key[DW_KEY_TEXT];
    dw_peer_key(key, p->format, version, true);
    dw_listed *found = dw_listing_find(&p->listings[0], key);
    if (!found && p->format == DW_PEER_TRL) {
        dw_peer_key(key, p->format, version, false);
        found = dw_listing_find(&p->listings[1], key);
    }
    return found;
}

uint64_t dw_peer_base(const dw_peer *p, const dw_peer_record *r, size_t n_full)
{
    size_t place;
    if (p->format != DW_PEER_TRL)
        return r->named_base;
    if (r->is_whole && r->n_tensors >= n_full)
        return DW_NO_VERSION;
    /* the version before the first is not in the store, but has a number */
    return dw_peer_has(p, r->version, &place) && place > 0 ? p->versions[place - 1]
                                                           : r->version - 1;
}

dw_status dw_peer_full_count(dw_peer *p, size_t *n_tensors, dw_error *err)
{
    uint64_t version;
    const dw_peer_record *r;
    *n_tensors = 0;
    for (size_t i = 0; p->format == DW_PEER_TRL && i < p->n_versions; i++) {
        char key[DW_KEY_TEXT];
        version = p->versions[i];
        dw_peer_key(key, p->format, version, true);
        if (!dw_listing_find(&p->listings[0], key))
            continue;
        dw_status status = dw_peer_record_get(p, version, &r, err);
        if (status == DW_OK)
            *n_tensors = r->n_tensors;
        if (!dw_stream_passes_over(
                status)) /* of a damaged one it is not known if it was whole */
            return status;
    }
    return DW_OK;
}

dw_status dw_peer_version_base(dw_peer *p, uint64_t version, uint64_t *base,
                               dw_error *err)
{
    const dw_peer_record *r;
    const uint64_t *versions;
    size_t n, n_full = 0;
    dw_status status = p->is_listed ? DW_OK : dw_peer_list(p, &versions, &n, err);
    /* call this first: it reads other records, and only few are kept */
    if (status == DW_OK)
        status = dw_peer_full_count(p, &n_full, err);
    if (status == DW_OK)
        status = dw_peer_record_get(p, version, &r, err);
    if (status == DW_OK)
        *base = dw_peer_base(p, r, n_full);
    return status;
}
