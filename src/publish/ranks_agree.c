/* Ranks agree on the maxima of scales that they share, through the store: each rank puts
 * those of its parts, and rank 0 answers with the maxima of all (docs/PROTOCOL.md,
 * section 6). A rank that dies leaves the others waiting until their deadline.
 */
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

/* Writes what ALL has; NULL: this rank gives up. */
static dw_status write_record(dw_writer *out, const dw_publisher *p, uint64_t version,
                              const all_maxima *all, dw_error *err)
{
    dw_maxima_record r = {.version = version,
                          .epoch = p->commits.epoch,
                          .round = p->commits.round,
                          .rank = p->options.rank,
                          .n_ranks = p->options.n_ranks,
                          .gave_up = !all,
                          .values = all ? all->values : NULL,
                          .n_values = all ? all->n : 0};
    memcpy(r.stream, p->stream->record.stream, sizeof r.stream);
    memcpy(r.writer, p->commits.writer, sizeof r.writer);
    size_t n_room = 0;
    for (size_t t = 0; all && t < p->live.quant.plan->n_entries; t++) {
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

/* Reads the record of RANK, and adds it to ALL. */
static dw_status take_record(all_maxima *all, dw_publisher *p, uint64_t version,
                             uint32_t rank, const dw_writer *bytes, dw_error *err)
{
    const char *url = dw_store_url(p->store);
    const dw_quant_plan *plan = p->live.quant.plan;
    dw_maxima_record r;
    dw_status status = dw_rank_check_signer(p, bytes->bytes, bytes->n_bytes, err);
    if (status == DW_OK)
        status = dw_maxima_record_parse(&r, bytes->bytes, bytes->n_bytes, "maxima", err);
    if (status != DW_OK)
        return status;
    bool good = strcmp(r.stream, p->stream->record.stream) == 0 &&
                strcmp(r.writer, p->commits.writer) == 0 && r.version == version &&
                r.epoch == p->commits.epoch && r.round == p->commits.round &&
                r.rank == rank && r.n_ranks == p->options.n_ranks;
    for (size_t i = 0; good && i < r.n_runs; i++) {
        const dw_maxima_run *run = &r.runs[i];
        good = run->tensor < plan->n_entries &&
               plan->entries[run->tensor].role == DW_QUANT_SCALE &&
               run->first <= scales_of(p, run->tensor) &&
               run->n <= scales_of(p, run->tensor) - run->first;
        if (good)
            merge(all, place_of(p, run->tensor) + (size_t)run->first, r.values + run->at,
                  run->n);
    }
    if (!good)
        status = dw_fail(err, DW_MISMATCH, url,
                         "the maxima of rank %" PRIu32
                         " are for another version, epoch, round or model: all ranks "
                         "must publish the same model with the same options",
                         rank);
    else if (r.gave_up)
        status = dw_fail(err, DW_UNAVAILABLE, url,
                         "rank 0 failed or did not get what it waited for: version "
                         "%" PRIu64 " was not committed. The next one covers it",
                         version);
    dw_maxima_record_release(&r);
    return status;
}

/* ---- the exchange ---- */

static dw_status put_record(dw_publisher *p, uint64_t version, const all_maxima *all,
                            dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_writer bytes = {0};
    dw_key_maxima(key, version, p->commits.epoch, p->commits.round, p->options.rank);
    dw_status status = write_record(&bytes, p, version, all, err);
    if (status == DW_OK)
        status = dw_rank_put(p, key, &bytes, err);
    dw_writer_release(&bytes);
    return status;
}

static dw_status wait_record(all_maxima *all, dw_publisher *p, uint64_t version,
                             uint32_t rank, uint64_t end, dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_writer bytes = {0};
    dw_key_maxima(key, version, p->commits.epoch, p->commits.round, rank);
    dw_status status = dw_rank_wait(p, key, end, &bytes, err);
    if (status == DW_OK)
        status = take_record(all, p, version, rank, &bytes, err);
    dw_writer_release(&bytes);
    return status;
}

/* ALL has what this rank knows, and takes the maxima of all ranks. */
static dw_status exchange(all_maxima *all, dw_publisher *p, uint64_t version,
                          dw_error *err)
{
    dw_status status = DW_OK;
    if (p->options.n_ranks == 1)
        return DW_OK;
    if (p->options.rank != 0) {
        status = put_record(p, version, all, err);
        return status == DW_OK
                   ? wait_record(all, p, version, 0, dw_rank_deadline_of_answer(p), err)
                   : status;
    }
    const uint64_t end = dw_rank_deadline(p);
    for (uint32_t i = 1; status == DW_OK && i < p->options.n_ranks; i++)
        status = wait_record(all, p, version, i, end, err);
    if (status == DW_OK)
        status = put_record(p, version, all, err);
    if (status == DW_OK)
        p->live.shared.n_answered = p->commits.round + 1;
    return status;
}

void dw_ranks_give_up(dw_publisher *p)
{
    const dw_shared_scales *s = &p->live.shared;
    if (p->options.rank == 0 && p->options.n_ranks > 1 && s->is_needed &&
        s->n_answered != p->commits.round + 1)
        (void)put_record(p, dw_commit_next_version(p), NULL, NULL);
}

dw_status dw_ranks_meet(dw_publisher *p, uint64_t version, dw_error *err)
{
    all_maxima all;
    if (!p->sharded || !p->live.quant.plan)
        return DW_OK;
    dw_status status = all_open(&all, p, err);
    if (status == DW_OK) {
        merge_own(&all, p); /* nothing was measured yet: they say only which scales */
        status = exchange(&all, p, version, err);
    }
    for (size_t i = 0; status == DW_OK && i < all.n; i++)
        p->live.shared.is_needed = p->live.shared.is_needed || all.is_there[i];
    all_close(&all);
    p->commits.round++;
    return status;
}

dw_status dw_ranks_agree(dw_publisher *p, bool with_known, dw_error *err)
{
    dw_shared_scales *s = &p->live.shared;
    all_maxima all;
    if (!s->is_needed)
        return DW_OK;
    dw_status status = dw_shared_measure(p, with_known, err);
    if (status != DW_OK)
        return status;
    status = all_open(&all, p, err);
    if (status == DW_OK) {
        merge_own(&all, p);
        status = exchange(&all, p, dw_commit_next_version(p), err);
    }
    for (size_t u = 0; status == DW_OK && u < s->n_units; u++)
        memcpy(s->agreed + s->units[u].at,
               all.values + place_of(p, s->units[u].weight) + s->units[u].first_scale,
               s->units[u].n_scales * sizeof *s->agreed);
    /* also ranks that do not share the bad block stop at once */
    for (size_t i = 0; status == DW_OK && i < all.n; i++)
        if (all.values[i] >= 0x7f800000u)
            status = DW_NOT_FINITE;
    all_close(&all);
    if (status == DW_NOT_FINITE) {
        status = dw_shared_use(p, err);
        return status != DW_OK
                   ? status
                   : dw_fail(err, DW_NOT_FINITE, dw_store_url(p->store),
                             "other ranks have NaN or infinity in a block or row that "
                             "they share: publish weights that are finite");
    }
    return status == DW_OK ? dw_shared_use(p, err) : status;
}
