#include "stats_table.h"

#include <stdlib.h>
#include <string.h>

#include "stats_entropy.h"

bool stats_table_init(stats_table *table)
{
    memset(table, 0, sizeof *table);
    table->moves = calloc(STATS_MAX_EXPONENTS, sizeof *table->moves);
    return table->moves;
}

void stats_table_release(stats_table *table)
{
    free(table->moves);
    table->moves = NULL;
}

/* The first touched stretch of an exponent from AT on, or STATS_N_STRETCHES. */
static unsigned next_touched(const stats_table *table, unsigned exponent, unsigned at)
{
    const uint8_t *found = at < STATS_N_STRETCHES ? memchr(table->touched[exponent] + at,
                                                           1, STATS_N_STRETCHES - at)
                                                  : NULL;
    return found ? (unsigned)(found - table->touched[exponent]) : STATS_N_STRETCHES;
}

void stats_table_clear(stats_table *table)
{
    stats_moves *moves = table->moves;
    for (unsigned e = 0; e < STATS_MAX_EXPONENTS; e++)
        for (unsigned at = next_touched(table, e, 0); at < STATS_N_STRETCHES;
             at = next_touched(table, e, at + 1))
            for (unsigned d = 0; d < 2; d++)
                memset(moves[e].counts[d] + (size_t)at * STATS_STRETCH, 0,
                       STATS_STRETCH * sizeof(uint32_t));
    memset(table, 0, sizeof *table);
    table->moves = moves;
}

static void add_moves(stats_table *to, const stats_table *more, unsigned exponent)
{
    for (unsigned at = next_touched(more, exponent, 0); at < STATS_N_STRETCHES;
         at = next_touched(more, exponent, at + 1)) {
        to->touched[exponent][at] = 1;
        for (unsigned d = 0; d < 2; d++) {
            uint32_t *into = to->moves[exponent].counts[d] + (size_t)at * STATS_STRETCH;
            const uint32_t *from =
                more->moves[exponent].counts[d] + (size_t)at * STATS_STRETCH;
            for (unsigned i = 0; i < STATS_STRETCH; i++)
                into[i] += from[i];
        }
    }
}

void stats_table_add(stats_table *to, const stats_table *more)
{
    for (unsigned e = 0; e < STATS_MAX_EXPONENTS; e++)
        add_moves(to, more, e);
    stats_add(to->n_elems, more->n_elems, STATS_N_CELLS);
    stats_add(to->n_changed, more->n_changed, STATS_N_CELLS);
    stats_counts_add(&to->counts, &more->counts);
}

void stats_table_exponents(const stats_table *table,
                           uint64_t n_elems[STATS_MAX_EXPONENTS],
                           uint64_t n_changed[STATS_MAX_EXPONENTS])
{
    memset(n_elems, 0, STATS_MAX_EXPONENTS * sizeof *n_elems);
    memset(n_changed, 0, STATS_MAX_EXPONENTS * sizeof *n_changed);
    for (unsigned c = 0; c < STATS_N_CELLS; c++) {
        n_elems[c / STATS_N_AGES] += table->n_elems[c];
        n_changed[c / STATS_N_AGES] += table->n_changed[c];
    }
}

/* Changes of an exponent by age, and their expected number if only the exponent mattered.
 */
static void count_ages(stats_counts *counts, const stats_table *table, unsigned exponent,
                       uint64_t n_elems, uint64_t n_changed)
{
    for (unsigned age = 0; age < STATS_N_AGES; age++) {
        const unsigned cell = exponent * STATS_N_AGES + age;
        counts->n_by_age[age] += table->n_changed[cell];
        counts->n_quiet[age] += table->n_elems[cell] - table->n_changed[cell];
        if (n_elems > 0)
            counts->expected_by_age[age] +=
                (double)n_changed * (double)table->n_elems[cell] / (double)n_elems;
    }
}

/* Direction and size of the changes of an exponent. */
static double exponent_move_bits(const stats_table *table, unsigned exponent,
                                 uint64_t n_changed)
{
    const stats_moves *moves = &table->moves[exponent];
    double bits = 0;
    for (unsigned at = next_touched(table, exponent, 0); at < STATS_N_STRETCHES;
         at = next_touched(table, exponent, at + 1))
        for (unsigned i = at * STATS_STRETCH; i < (at + 1) * STATS_STRETCH; i++) {
            const uint64_t n_down = moves->counts[STATS_DOWN][i];
            const uint64_t n_up = moves->counts[STATS_UP][i];
            bits += stats_symbol_bits(n_down, n_changed) +
                    stats_symbol_bits(n_up, n_changed) +
                    (double)(n_down + n_up) * stats_size_plain_bits(i);
        }
    return bits;
}

void stats_table_sum_up(stats_table *table)
{
    stats_counts *counts = &table->counts;
    uint64_t n_elems[STATS_MAX_EXPONENTS], n_changed[STATS_MAX_EXPONENTS];
    stats_table_exponents(table, n_elems, n_changed);
    for (unsigned e = 0; e < STATS_MAX_EXPONENTS; e++) {
        counts->n_elems += n_elems[e];
        counts->n_changed += n_changed[e];
        counts->mask_bits += stats_binary_bits(n_elems[e], n_changed[e]);
        count_ages(counts, table, e, n_elems[e], n_changed[e]);
        counts->move_bits += exponent_move_bits(table, e, n_changed[e]);
    }
}
