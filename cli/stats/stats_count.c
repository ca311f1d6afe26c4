#include "stats_count.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/parallel.h"
#include "stats_entropy.h"
#include "stats_item.h"

#define ITEM_ELEMS (UINT64_C(1) << 20)

/* ---- tensors that are being counted ---- */

/* Lives from the first item of a tensor to its last. */
typedef struct open_tensor {
    pthread_mutex_t lock; /* guards sums and n_left */
    size_t n_left;        /* items */
    stats_table table;
    struct open_tensor *next; /* in the list of spare ones */
} open_tensor;

typedef struct item {
    size_t tensor;
    uint64_t first, n;
} item;

/* Holds a tensor's results until all tensors are counted. */
typedef struct tensor_slot {
    size_t n_items;
    open_tensor *open; /* guarded by the lock of the pass */
    /* sums whose rounding depends on the order */
    double mask_bits, move_bits;
    double expected_by_age[STATS_N_AGES];
} tensor_slot;

typedef struct pass {
    stats_model *model;
    unsigned step;
    const uint64_t *class_bytes;
    stats_step_counts *out;
    stats_ages ages;
    stats_table *workers; /* a table for each */
    item *items;
    size_t n_items;
    tensor_slot *slots; /* [n_tensors] */

    pthread_mutex_t lock; /* guards `out`, which tensors are open, and: */
    open_tensor *spare;   /* kept for reuse, because tables are large */
} pass;

static void free_open(open_tensor *o)
{
    if (!o)
        return;
    stats_table_release(&o->table);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

/* A spare one, or a new one, with an empty table. */
static open_tensor *take_open(pass *p)
{
    open_tensor *o = p->spare;
    if (o) {
        p->spare = o->next;
        return o;
    }
    o = calloc(1, sizeof *o);
    if (!o || !stats_table_init(&o->table)) {
        free(o);
        return NULL;
    }
    pthread_mutex_init(&o->lock, NULL);
    return o;
}

static open_tensor *find_open(pass *p, size_t tensor)
{
    pthread_mutex_lock(&p->lock);
    tensor_slot *slot = &p->slots[tensor];
    if (!slot->open && (slot->open = take_open(p)))
        slot->open->n_left = slot->n_items;
    open_tensor *o = slot->open;
    pthread_mutex_unlock(&p->lock);
    return o;
}

static void give_back(pass *p, open_tensor *o)
{
    stats_table_clear(&o->table);
    pthread_mutex_lock(&p->lock);
    o->next = p->spare;
    p->spare = o;
    pthread_mutex_unlock(&p->lock);
}

/* ---- from tables to results ---- */

static void add_exponents(pass *p, const stats_tensor *t, const stats_table *table)
{
    stats_exponents *to = &p->out->exponents[t->kind][t->format.dtype];
    uint64_t n[STATS_MAX_EXPONENTS], k[STATS_MAX_EXPONENTS];
    stats_table_exponents(table, n, k);
    stats_add(to->n_elems, n, STATS_MAX_EXPONENTS);
    stats_add(to->n_changed, k, STATS_MAX_EXPONENTS);
}

/* All items of the tensor are done, so no lock is needed. */
static void finish_tensor(pass *p, size_t i, open_tensor *o)
{
    const stats_tensor *t = &p->model->tensors[i];
    stats_counts *counts = &o->table.counts;
    stats_table_sum_up(&o->table);
    tensor_slot *slot = &p->slots[i];
    slot->mask_bits = counts->mask_bits;
    slot->move_bits = counts->move_bits;
    memcpy(slot->expected_by_age, counts->expected_by_age, sizeof slot->expected_by_age);
    counts->mask_bits = counts->move_bits = 0;
    memset(counts->expected_by_age, 0, sizeof counts->expected_by_age);
    counts->n_class_bytes = p->class_bytes[i];
    counts->n_with_past = p->step > 0 ? counts->n_changed : 0;
    counts->n_trl_bytes = counts->n_changed * (4 + t->format.n_bits / 8);

    pthread_mutex_lock(&p->lock);
    stats_counts_add(&p->out->groups[t->group], counts);
    add_exponents(p, t, &o->table);
    slot->open = NULL;
    pthread_mutex_unlock(&p->lock);
    give_back(p, o);
}

/* Adds in the order of tensors, so that rounding does not depend on threads. */
static void add_reals(const pass *p)
{
    for (size_t i = 0; i < p->model->n_tensors; i++) {
        stats_counts *to = &p->out->groups[p->model->tensors[i].group];
        to->mask_bits += p->slots[i].mask_bits;
        to->move_bits += p->slots[i].move_bits;
        for (unsigned age = 0; age < STATS_N_AGES; age++)
            to->expected_by_age[age] += p->slots[i].expected_by_age[age];
    }
}

/* ---- items ---- */

static dw_status count_item(void *context, size_t i, unsigned worker, dw_error *err)
{
    pass *p = context;
    const item *it = &p->items[i];
    const stats_tensor *t = &p->model->tensors[it->tensor];
    stats_table *own = &p->workers[worker];
    open_tensor *o = find_open(p, it->tensor);
    if (!o)
        return dw_fail_memory(err, NULL);
    stats_item_count(own, t, &p->ages, it->first, it->n);
    pthread_mutex_lock(&o->lock);
    stats_table_add(&o->table, own);
    const bool last = --o->n_left == 0;
    pthread_mutex_unlock(&o->lock);
    stats_table_clear(own);
    if (last)
        finish_tensor(p, it->tensor, o);
    return DW_OK;
}

static uint64_t item_size(const void *context, size_t i)
{
    return ((const pass *)context)->items[i].n;
}

static bool cut_items(pass *p)
{
    for (size_t i = 0; i < p->model->n_tensors; i++) {
        p->slots[i].n_items =
            (size_t)((p->model->tensors[i].n_elems + ITEM_ELEMS - 1) / ITEM_ELEMS);
        p->n_items += p->slots[i].n_items;
    }
    p->items = calloc(p->n_items + 1, sizeof *p->items);
    if (!p->items)
        return false;
    size_t at = 0;
    for (size_t i = 0; i < p->model->n_tensors; i++) {
        const uint64_t n = p->model->tensors[i].n_elems;
        for (uint64_t first = 0; first < n; first += ITEM_ELEMS)
            p->items[at++] =
                (item){i, first, n - first < ITEM_ELEMS ? n - first : ITEM_ELEMS};
    }
    return true;
}

/* ---- the pass ---- */

static bool pass_init(pass *p, unsigned n_workers)
{
    const size_t n = p->model->n_tensors + 1;
    pthread_mutex_init(&p->lock, NULL);
    stats_ages_init(&p->ages);
    p->slots = calloc(n, sizeof *p->slots);
    p->workers = calloc(n_workers, sizeof *p->workers);
    bool fine = p->slots && p->workers && cut_items(p);
    for (unsigned i = 0; fine && i < n_workers; i++)
        fine = stats_table_init(&p->workers[i]);
    return fine;
}

static void pass_release(pass *p, unsigned n_workers)
{
    for (size_t i = 0; p->slots && i < p->model->n_tensors; i++)
        free_open(p->slots[i].open);
    for (open_tensor *o = p->spare, *next; o; o = next) {
        next = o->next;
        free_open(o);
    }
    for (unsigned i = 0; p->workers && i < n_workers; i++)
        stats_table_release(&p->workers[i]);
    free(p->workers);
    free(p->slots);
    free(p->items);
    pthread_mutex_destroy(&p->lock);
}

dw_status stats_count_step(stats_model *model, unsigned step, const uint64_t *class_bytes,
                           unsigned n_threads, const dw_progress *progress,
                           stats_step_counts *out, dw_error *err)
{
    const unsigned n_workers = dw_worker_count(n_threads, SIZE_MAX);
    const dw_parallel_progress bar = {*progress, model->n_elems, item_size};
    pass p = {.model = model, .step = step, .class_bytes = class_bytes, .out = out};
    dw_status status = pass_init(&p, n_workers)
                           ? dw_parallel(n_workers, p.n_items, count_item, &p, &bar, err)
                           : dw_fail_memory(err, "");
    if (status == DW_OK)
        add_reals(&p);
    pass_release(&p, n_workers);
    return status;
}
