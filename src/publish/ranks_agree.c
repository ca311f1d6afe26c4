/* Ranks agree on the maxima of scales that they share, through the store: each rank puts
 * those of its parts, and rank 0 answers with the maxima of all (docs/PROTOCOL.md,
 * section 6). */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"
#include "publish/publisher.h"
#include "publish/ranks.h"

/* The maxima of all scales of the model, in the order of the plan. */
typedef struct all_maxima {
    uint32_t *values;
    bool *is_there;
    size_t n;
} all_maxima;

/* Where the first scale of tensor T is among those of the model. */
static size_t place_of(const dw_publisher *p, size_t t)
{
    const dw_live_quant *q = &p->live.quant;
    return (size_t)(q->scales[t] - q->scale_room);
}

static size_t scales_of(const dw_publisher *p, size_t t)
{
    return (size_t)(p->live.quant.plan->entries[t].tensor.n_bytes / sizeof(float));
}

static dw_status all_open(all_maxima *all, const dw_publisher *p, dw_error *err)
{
    *all = (all_maxima){0};
    for (size_t t = 0; t < p->live.quant.plan->n_entries; t++)
        if (p->live.quant.plan->entries[t].role == DW_QUANT_SCALE)
            all->n += scales_of(p, t);
    all->values = dw_alloc_zeroed(all->n, sizeof *all->values);
    all->is_there = dw_alloc_zeroed(all->n, sizeof *all->is_there);
    return all->values && all->is_there ? DW_OK : dw_fail_memory(err, NULL);
}

static void all_close(all_maxima *all)
{
    dw_free(all->values);
    dw_free(all->is_there);
}

static void merge(all_maxima *all, size_t at, const uint32_t *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        all->is_there[at + i] = true;
        if (values[i] > all->values[at + i])
            all->values[at + i] = values[i];
    }
}

static void merge_own(all_maxima *all, const dw_publisher *p)
{
    const dw_shared_scales *s = &p->live.shared;
    for (size_t u = 0; u < s->n_units; u++)
        merge(all, place_of(p, s->units[u].weight) + (size_t)s->units[u].first_scale,
              s->own + s->units[u].at, s->units[u].n_scales);
}

/* ---- records ---- */

/* Which version a turn of this publisher is about. */
static uint64_t version_of(const dw_publisher *p)
{
    return p->ranks.turn == DW_TURN_MEET ? 0 : dw_commit_next_version(p);
}

/* Writes what ALL has. */
static dw_status write_record(dw_writer *out, const dw_publisher *p,
                              const all_maxima *all, dw_error *err)
{
    dw_maxima_record r = {.version = version_of(p),
                          .epoch = p->commits.epoch,
                          .turn = p->ranks.turn,
                          .attempt = p->ranks.attempt,
                          .rank = p->options.rank,
                          .n_ranks = p->options.n_ranks,
                          .values = all->values,
                          .n_values = all->n};
    memcpy(r.stream, p->stream->record.stream, sizeof r.stream);
    memcpy(r.writer, p->commits.writer, sizeof r.writer);
    size_t n_room = 0;
    for (size_t t = 0; t < p->live.quant.plan->n_entries; t++) {
        if (p->live.quant.plan->entries[t].role != DW_QUANT_SCALE)
            continue;
        const size_t begin = place_of(p, t), n = scales_of(p, t);
        for (size_t i = 0, end; i < n; i = end) {
            for (end = i; end < n && all->is_there[begin + end];)
                end++;
            if (end == i) {
                end++;
                continue;
            }
            if (!dw_grow_array((void **)&r.runs, &n_room, r.n_runs, sizeof *r.runs)) {
                dw_free(r.runs);
                return dw_fail_memory(err, NULL);
            }
            r.runs[r.n_runs++] = (dw_maxima_run){t, i, end - i, begin + i};
        }
    }
    dw_status status = dw_maxima_record_write(out, &r, p->options.sign_key, err);
    dw_free(r.runs);
    return status;
}

typedef struct merging {
    all_maxima *all;
    dw_publisher *p;
} merging;

/* Adds the maxima of RANK to ALL, if those of this turn are there. */
static dw_status take_maxima(void *context, uint32_t rank, dw_receipt_record *receipt,
                             dw_error *err)
{
    (void)receipt;
    const merging *m = context;
    dw_publisher *p = m->p;
    const dw_quant_plan *plan = p->live.quant.plan;
    char key[DW_KEY_TEXT];
    dw_writer bytes;
    dw_maxima_record r;
    dw_key_maxima(key, p->commits.epoch, rank);
    dw_status status = dw_record_fetch(&bytes, p->store, key, err);
    if (status == DW_OK)
        status = dw_rank_check_signer(p, bytes.bytes, bytes.n_bytes, err);
    if (status == DW_OK)
        status = dw_maxima_record_parse(&r, bytes.bytes, bytes.n_bytes, key, err);
    dw_writer_release(&bytes);
    if (status != DW_OK)
        return status;
    bool good = strcmp(r.stream, p->stream->record.stream) == 0 &&
                strcmp(r.writer, p->commits.writer) == 0 && r.epoch == p->commits.epoch &&
                r.rank == rank && r.n_ranks == p->options.n_ranks;
    const int order = dw_rank_compare(p, r.turn, r.attempt);
    if (good && order > 0)
        status = dw_rank_fail_ahead(p, rank, r.turn, r.attempt, err);
    else if (good && (order < 0 || r.version != version_of(p)))
        status = DW_NOT_FOUND;
    for (size_t i = 0; status == DW_OK && good && i < r.n_runs; i++) {
        const dw_maxima_run *run = &r.runs[i];
        good = run->tensor < plan->n_entries &&
               plan->entries[run->tensor].role == DW_QUANT_SCALE &&
               run->first <= scales_of(p, run->tensor) &&
               run->n <= scales_of(p, run->tensor) - run->first;
        if (good)
            merge(m->all, place_of(p, run->tensor) + (size_t)run->first,
                  r.values + run->at, run->n);
    }
    dw_maxima_record_release(&r);
    return good ? status
                : dw_fail(err, DW_MISMATCH, dw_store_url(p->store),
                          "the maxima of rank %" PRIu32
                          " are of another model: all ranks must publish the same model "
                          "with the same options",
                          rank);
}

/* ---- the exchange ---- */

static dw_status put_record(dw_publisher *p, const all_maxima *all, dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_writer bytes = {0};
    dw_key_maxima(key, p->commits.epoch, p->options.rank);
    dw_status status = write_record(&bytes, p, all, err);
    if (status == DW_OK)
        status = dw_rank_put(p, key, &bytes, err);
    dw_writer_release(&bytes);
    return status;
}

/* ALL has what this rank knows, and takes the maxima of all ranks. */
static dw_status exchange(all_maxima *all, dw_publisher *p, dw_error *err)
{
    merging m = {all, p};
    dw_status status = DW_OK;
    if (p->options.n_ranks == 1)
        return DW_OK;
    if (p->options.rank != 0)
        status = put_record(p, all, err);
    if (status == DW_OK)
        status = dw_ranks_wait(p, take_maxima, &m, err);
    return status == DW_OK && p->options.rank == 0 ? put_record(p, all, err) : status;
}

/* Measures, and takes the maxima of all ranks. *IS_FINITE: whether all are. */
static dw_status agree(dw_publisher *p, bool with_known, bool *is_shared, bool *is_finite,
                       dw_error *err)
{
    dw_shared_scales *s = &p->live.shared;
    all_maxima all;
    s->is_agreed = false;
    dw_status status = dw_shared_measure(p, with_known, err);
    if (status != DW_OK)
        return status;
    status = all_open(&all, p, err);
    if (status == DW_OK) {
        merge_own(&all, p);
        status = exchange(&all, p, err);
    }
    for (size_t u = 0; status == DW_OK && u < s->n_units; u++)
        memcpy(s->agreed + s->units[u].at,
               all.values + place_of(p, s->units[u].weight) + s->units[u].first_scale,
               s->units[u].n_scales * sizeof *s->agreed);
    *is_shared = false;
    *is_finite = true;
    for (size_t i = 0; status == DW_OK && i < all.n; i++) {
        *is_shared = *is_shared || all.is_there[i];
        *is_finite = *is_finite && all.values[i] < 0x7f800000u;
    }
    if (status == DW_OK && s->n > 0)
        memcpy(s->given, s->own, s->n * sizeof *s->given);
    s->is_agreed = status == DW_OK && *is_finite;
    all_close(&all);
    return status;
}

dw_status dw_ranks_share(dw_publisher *p, dw_error *err)
{
    bool is_finite;
    if (!p->sharded || !p->live.quant.plan)
        return DW_OK;
    return agree(p, true, &p->live.shared.is_needed, &is_finite, err);
}

dw_status dw_ranks_agree(dw_publisher *p, bool with_known, dw_error *err)
{
    bool is_shared, is_finite;
    if (!p->live.shared.is_needed)
        return DW_OK;
    dw_status status = agree(p, with_known, &is_shared, &is_finite, err);
    if (status != DW_OK)
        return status;
    status = dw_shared_use(p, err);
    /* also ranks that do not share the bad block stop at once */
    return status != DW_OK || is_finite
               ? status
               : dw_fail(err, DW_NOT_FINITE, dw_store_url(p->store),
                         "other ranks have NaN or infinity in a block or row that they "
                         "share: publish weights that are finite");
}
