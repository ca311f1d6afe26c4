#include "stats_item.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* The age of each history: by the steps since the last change. */
void stats_ages_init(stats_ages *ages)
{
    for (unsigned h = 0; h < sizeof ages->of; h++) {
        const unsigned n_octaves =
            h == 0 ? STATS_AGE_NONE
                   : 31 - (unsigned)__builtin_clz((unsigned)__builtin_ctz(h) + 1);
        ages->of[h] = (uint8_t)n_octaves;
    }
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
                             uint64_t new, unsigned exponent, unsigned age,
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
    table->n_changed[exponent * STATS_N_AGES + age]++;
    stats_table_count_move(table, exponent, direction, size);
    counts->directions[age][last][direction]++;
    counts->n_same_sign += (history & 1) && direction == last;
    count_ulps(counts, f, old, new, size, direction);
    return direction;
}

/* ---- all elements ---- */

INLINE void count_elems(stats_table *table, const stats_tensor *t, const stats_ages *ages,
                        uint64_t first, uint64_t n, unsigned width)
{
    uint8_t *then = t->then + first * width;
    const uint8_t *now = t->now + first * width;
    uint16_t *histories = t->history + first;
    const unsigned shift = t->format.exponent_shift, mask = t->format.exponent_mask;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t old = load(then + i * width, width);
        const uint64_t new = load(now + i * width, width);
        const unsigned history = histories[i];
        const unsigned age = ages->of[history & 0x7fff];
        const unsigned exponent = (unsigned)(old >> shift) & mask;
        table->n_elems[exponent * STATS_N_AGES + age]++;
        unsigned next = (history << 1 & 0x7ffe) | (history & 0x8000);
        if (old != new) {
            unsigned up = count_change(table, t, old, new, exponent, age, history);
            next = (next & 0x7fff) | up << STATS_HISTORY_STEPS | 1;
            memcpy(then + i * width, &new, width);
        }
        if (next != history) /* do not dirty a page that stays the same */
            histories[i] = (uint16_t)next;
    }
}

void stats_item_count(stats_table *table, const stats_tensor *t, const stats_ages *ages,
                      uint64_t first, uint64_t n)
{
    switch (t->format.n_bits) {
    case 8:
        count_elems(table, t, ages, first, n, 1);
        break;
    case 16:
        count_elems(table, t, ages, first, n, 2);
        break;
    case 32:
        count_elems(table, t, ages, first, n, 4);
        break;
    default:
        count_elems(table, t, ages, first, n, 8);
    }
}
