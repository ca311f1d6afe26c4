#include "stats_count.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/parallel.h"
#include "stats_entropy.h"
#include "stats_item.h"

/* ---- tensors that are being counted ---- */

/* Lives from the first item of a tensor to its last. */
typedef struct open_tensor {
    pthread_mutex_t lock; /* guards sums and n_left */
    size_t n_left;        /* items */
    stats_table table;
    stats_line_counts rows, columns;
    stats_prediction prediction;
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
    stats_classes classes;
    stats_worker *workers;
    item *items;
    size_t n_items;
    tensor_slot *slots; /* [n_tensors] */

    pthread_mutex_t lock; /* guards `out`, which tensors are open, and: */
    open_tensor *spare;   /* kept for reuse, because tables are large */
} pass;

static bool lines_init(stats_line_counts *lines, bool wanted, uint64_t n)
{
    *lines = (stats_line_counts){0};
    if (!wanted)
        return true;
    lines->n_changed = calloc((size_t)n, sizeof *lines->n_changed);
    lines->expected = calloc((size_t)n, sizeof *lines->expected);
    return lines->n_changed && lines->expected;
}

static void lines_release(stats_line_counts *lines)
{
    free(lines->n_changed);
    free(lines->expected);
}

/* Frees all but the table. */
static void strip(open_tensor *o)
{
    lines_release(&o->rows);
    lines_release(&o->columns);
    stats_prediction_release(&o->prediction);
    o->rows = o->columns = (stats_line_counts){0};
}

static void free_open(open_tensor *o)
{
    if (!o)
        return;
    strip(o);
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

static open_tensor *open_first(pass *p, size_t tensor)
{
    const stats_tensor *t = &p->model->tensors[tensor];
    open_tensor *o = take_open(p);
    if (!o)
        return NULL;
    o->n_left = p->slots[tensor].n_items;
    bool fine = lines_init(&o->rows, t->has_rows, t->n_rows);
    fine = lines_init(&o->columns, t->has_columns, t->n_columns) && fine;
    if (fine && (!t->rates || stats_predict(&o->prediction, t, p->step)))
        return o;
    free_open(o);
    return NULL;
}

static open_tensor *find_open(pass *p, size_t tensor)
{
    pthread_mutex_lock(&p->lock);
    tensor_slot *slot = &p->slots[tensor];
    if (!slot->open)
        slot->open = open_first(p, tensor);
    open_tensor *o = slot->open;
    pthread_mutex_unlock(&p->lock);
    return o;
}

static void give_back(pass *p, open_tensor *o)
{
    strip(o);
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
static bool finish_tensor(pass *p, size_t i, open_tensor *o)
{
    stats_tensor *t = &p->model->tensors[i];
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
    stats_judge(p->out->bins, t, p->step, &o->table, &o->rows, &o->columns);
    add_exponents(p, t, &o->table);
    slot->open = NULL;
    pthread_mutex_unlock(&p->lock);

    bool fine = stats_learn(t, p->step, &o->table, &o->rows, &o->columns);
    give_back(p, o);
    return fine;
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

static void merge_lines(stats_line_counts *to, stats_line_counts *from, uint64_t first,
                        uint64_t n)
{
    stats_add(to->n_changed + first, from->n_changed, (size_t)n);
    stats_add(to->expected + first, from->expected, (size_t)n);
    memset(from->n_changed, 0, (size_t)n * sizeof *from->n_changed);
    memset(from->expected, 0, (size_t)n * sizeof *from->expected);
}

static dw_status count_item(void *context, size_t i, unsigned worker, dw_error *err)
{
    pass *p = context;
    const item *it = &p->items[i];
    const stats_tensor *t = &p->model->tensors[it->tensor];
    stats_worker *w = &p->workers[worker];
    open_tensor *o = find_open(p, it->tensor);
    if (!o)
        return dw_fail_memory(err, NULL);
    stats_item_count(w, t, t->rates ? &o->prediction : NULL, &p->classes, it->first,
                     it->n);
    pthread_mutex_lock(&o->lock);
    stats_table_add(&o->table, &w->table);
    if (t->has_rows)
        merge_lines(&o->rows, &w->rows, it->first / t->n_columns, it->n / t->n_columns);
    if (t->has_columns)
        merge_lines(&o->columns, &w->columns, 0, t->n_columns);
    const bool last = --o->n_left == 0;
    pthread_mutex_unlock(&o->lock);
    stats_table_clear(&w->table);
    return !last || finish_tensor(p, it->tensor, o) ? DW_OK : dw_fail_memory(err, NULL);
}

static uint64_t item_size(const void *context, size_t i)
{
    return ((const pass *)context)->items[i].n;
}

static uint64_t item_elems(const stats_tensor *t)
{
    if (t->n_rows == 1)
        return STATS_ITEM_ELEMS;
    uint64_t n_rows = STATS_ITEM_ELEMS / t->n_columns;
    return (n_rows > 0 ? n_rows : 1) * t->n_columns;
}

static size_t count_items(const stats_tensor *t)
{
    const uint64_t n = item_elems(t);
    return (size_t)((t->n_elems + n - 1) / n);
}

static bool cut_items(pass *p)
{
    for (size_t i = 0; i < p->model->n_tensors; i++) {
        p->slots[i].n_items = count_items(&p->model->tensors[i]);
        p->n_items += p->slots[i].n_items;
    }
    p->items = calloc(p->n_items + 1, sizeof *p->items);
    if (!p->items)
        return false;
    size_t at = 0;
    for (size_t i = 0; i < p->model->n_tensors; i++) {
        const stats_tensor *t = &p->model->tensors[i];
        const uint64_t n = item_elems(t);
        for (uint64_t first = 0; first < t->n_elems; first += n)
            p->items[at++] =
                (item){i, first, t->n_elems - first < n ? t->n_elems - first : n};
    }
    return true;
}

static bool worker_init(stats_worker *w, const stats_model *model)
{
    uint64_t n_rows = 1, n_columns = 1;
    for (size_t i = 0; i < model->n_tensors; i++) {
        const stats_tensor *t = &model->tensors[i];
        if (t->has_rows && item_elems(t) / t->n_columns > n_rows)
            n_rows = item_elems(t) / t->n_columns;
        if (t->has_columns && t->n_columns > n_columns)
            n_columns = t->n_columns;
    }
    return stats_table_init(&w->table) && lines_init(&w->rows, true, n_rows) &&
           lines_init(&w->columns, true, n_columns);
}

/* ---- the pass ---- */

static bool pass_init(pass *p, unsigned n_workers)
{
    const size_t n = p->model->n_tensors + 1;
    pthread_mutex_init(&p->lock, NULL);
    stats_classes_init(&p->classes);
    p->slots = calloc(n, sizeof *p->slots);
    p->workers = calloc(n_workers, sizeof *p->workers);
    bool fine = p->slots && p->workers && cut_items(p);
    for (unsigned i = 0; fine && i < n_workers; i++)
        fine = worker_init(&p->workers[i], p->model);
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
    for (unsigned i = 0; p->workers && i < n_workers; i++) {
        stats_table_release(&p->workers[i].table);
        lines_release(&p->workers[i].rows);
        lines_release(&p->workers[i].columns);
    }
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
