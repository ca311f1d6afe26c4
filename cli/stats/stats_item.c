#include "stats_item.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* ---- classes of history ---- */

/* Class 0: no change within 15 steps. The others depend on the steps since the last
 * change and the number of changes within 15 steps. */
static const struct history_class {
    unsigned first_step, last_step; /* steps since the last change, from 1 */
    unsigned min_changes;
    stats_age age;
} history_classes[STATS_N_HISTORIES] = {
    {0, 0, 0, STATS_AGE_NONE}, {1, 1, 1, STATS_AGE_1}, {1, 1, 2, STATS_AGE_1},
    {1, 1, 3, STATS_AGE_1},    {1, 1, 5, STATS_AGE_1}, {2, 2, 1, STATS_AGE_3},
    {2, 2, 2, STATS_AGE_3},    {2, 2, 3, STATS_AGE_3}, {3, 3, 1, STATS_AGE_3},
    {3, 3, 2, STATS_AGE_3},    {3, 3, 3, STATS_AGE_3}, {4, 7, 1, STATS_AGE_7},
    {4, 7, 2, STATS_AGE_7},    {4, 7, 3, STATS_AGE_7}, {8, 15, 1, STATS_AGE_15},
    {8, 15, 2, STATS_AGE_15},
};

/* Indexed by the low 15 bits of an element's history. */
static unsigned history_class(unsigned history)
{
    if (history == 0)
        return 0;
    const unsigned step = (unsigned)__builtin_ctz(history) + 1;
    const unsigned n = (unsigned)__builtin_popcount(history);
    unsigned found = 0;
    for (unsigned i = 1; i < STATS_N_HISTORIES; i++) {
        const struct history_class *c = &history_classes[i];
        if (step >= c->first_step && step <= c->last_step && n >= c->min_changes)
            found = i; /* the last that fits has the highest count */
    }
    return found;
}

stats_age stats_history_age(unsigned history_class)
{
    return history_classes[history_class].age;
}

void stats_classes_init(stats_classes *classes)
{
    for (unsigned h = 0; h < sizeof classes->of; h++)
        classes->of[h] = (uint8_t)history_class(h);
}

/* ---- one change ---- */

INLINE uint64_t load(const uint8_t *at, unsigned width)
{
    uint64_t v = 0;
    memcpy(&v, at, width); /* little-endian, as in the library */
    return v;
}

/* The position in the codec's order of all bit patterns: -0 is just below +0. */
static uint64_t rank(const stats_format *f, uint64_t x)
{
    const uint64_t sign = 1ull << (f->n_bits - 1);
    if (!f->is_float)
        return x;
    return x & sign ? ~x : x | sign;
}

static bool is_special(const stats_format *f, uint64_t x)
{
    const uint64_t sign = 1ull << (f->n_bits - 1);
    return f->is_fnuz ? x == sign : (x & (sign - 1)) >= f->first_special;
}

static void count_ulps(stats_counts *counts, const stats_format *f, uint64_t old,
                       uint64_t new, uint64_t size, unsigned direction)
{
    const uint64_t sign = 1ull << (f->n_bits - 1);
    if (!f->has_ulps)
        counts->n_no_ulps++;
    else if (is_special(f, old) || is_special(f, new))
        counts->n_special++;
    else if ((old ^ new) & sign)
        counts->n_across_zero++;
    else {
        unsigned bucket = size == 1 ? 0 : 64 - (unsigned)__builtin_clzll(size - 1);
        counts->ulps[bucket][direction]++;
        counts->n_away += (new &(sign - 1)) > (old & (sign - 1));
    }
}

/* Returns the direction. */
static unsigned count_change(stats_table *table, const stats_tensor *t, uint64_t old,
                             uint64_t new, unsigned exponent, unsigned class,
                             unsigned history)
{
    const stats_format *f = &t->format;
    const unsigned shift = 64 - f->n_bits;
    stats_counts *counts = &table->counts;
    /* a signed number of n_bits */
    const int64_t move = (int64_t)((rank(f, new) - rank(f, old)) << shift) >> shift;
    const unsigned direction = move > 0 ? STATS_UP : STATS_DOWN;
    const uint64_t size = move > 0 ? (uint64_t)move : 0 - (uint64_t)move;
    const unsigned last = history >> STATS_HISTORY_STEPS & 1;
    table->n_changed[exponent * STATS_N_HISTORIES + class]++;
    stats_table_count_move(table, exponent, direction, size);
    counts->directions[class][last][direction]++;
    counts->n_same_sign += (history & 1) && direction == last;
    count_ulps(counts, f, old, new, size, direction);
    return direction;
}

/* ---- all elements ---- */

INLINE unsigned clamp_bin(int bin)
{
    return bin < 0 ? 0 : bin >= STATS_N_BINS ? STATS_N_BINS - 1 : (unsigned)bin;
}

typedef struct run {
    uint64_t first, n; /* elements: a row, or a piece of a flat tensor */
    int8_t row_shift;
    const int8_t *column_shifts;  /* [n], or NULL */
    uint64_t n_changed, expected; /* the outcome */
} run;

INLINE void count_run(stats_worker *w, const stats_tensor *t, const stats_prediction *p,
                      const stats_classes *classes, run *r, unsigned width, bool columns)
{
    stats_table *table = &w->table;
    uint8_t *then = t->then + r->first * width;
    const uint8_t *now = t->now + r->first * width;
    uint16_t *histories = t->history + r->first;
    const unsigned shift = t->format.exponent_shift, mask = t->format.exponent_mask;
    for (uint64_t i = 0; i < r->n; i++) {
        const uint64_t old = load(then + i * width, width);
        const uint64_t new = load(now + i * width, width);
        const unsigned history = histories[i];
        const unsigned class = classes->of[history & 0x7fff];
        const unsigned exponent = (unsigned)(old >> shift) & mask;
        const unsigned cell = exponent * STATS_N_HISTORIES + class;
        unsigned bin = 0;
        table->n_elems[cell]++;
        if (p) {
            const uint32_t rate = p->rates[cell];
            r->expected += rate;
            int sum = p->bins[cell] + r->row_shift;
            if (columns) {
                w->columns.expected[i] += rate;
                sum += r->column_shifts[i];
            }
            bin = clamp_bin(sum);
            table->bins.n_elems[bin]++;
        }
        unsigned next = (history << 1 & 0x7ffe) | (history & 0x8000);
        if (old != new) {
            unsigned up = count_change(table, t, old, new, exponent, class, history);
            next = (next & 0x7fff) | up << STATS_HISTORY_STEPS | 1;
            table->bins.n_changed[bin] += p != NULL;
            r->n_changed++;
            if (columns)
                w->columns.n_changed[i]++;
            memcpy(then + i * width, &new, width);
        }
        if (next != history) /* do not dirty a page that stays the same */
            histories[i] = (uint16_t)next;
    }
}

INLINE void count_width(stats_worker *w, const stats_tensor *t, const stats_prediction *p,
                        const stats_classes *classes, run *r, unsigned width)
{
    if (!p)
        count_run(w, t, NULL, classes, r, width, false);
    else if (r->column_shifts)
        count_run(w, t, p, classes, r, width, true);
    else
        count_run(w, t, p, classes, r, width, false);
}

static void count_any(stats_worker *w, const stats_tensor *t, const stats_prediction *p,
                      const stats_classes *classes, run *r)
{
    switch (t->format.n_bits) {
    case 8:
        count_width(w, t, p, classes, r, 1);
        break;
    case 16:
        count_width(w, t, p, classes, r, 2);
        break;
    case 32:
        count_width(w, t, p, classes, r, 4);
        break;
    default:
        count_width(w, t, p, classes, r, 8);
    }
}

void stats_item_count(stats_worker *w, const stats_tensor *t, const stats_prediction *p,
                      const stats_classes *classes, uint64_t first, uint64_t n)
{
    const uint64_t n_a_run = t->n_rows > 1 ? t->n_columns : n;
    for (uint64_t at = 0; at < n; at += n_a_run) {
        const uint64_t row = (first + at) / t->n_columns;
        run r = {.first = first + at, .n = n_a_run};
        if (p && p->row_shifts)
            r.row_shift = p->row_shifts[row];
        if (p && p->column_shifts)
            r.column_shifts = p->column_shifts;
        count_any(w, t, p, classes, &r);
        if (t->has_rows) {
            w->rows.n_changed[at / n_a_run] = r.n_changed;
            w->rows.expected[at / n_a_run] = r.expected;
        }
    }
}
