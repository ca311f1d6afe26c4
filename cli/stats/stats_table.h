/* The raw counts of one tensor in one step. A worker has a table for its current item; a
 * tensor's table is the sum over its items. */
#ifndef CLI_STATS_TABLE_H
#define CLI_STATS_TABLE_H

#include "stats_count.h"

#define STATS_N_CELLS (STATS_MAX_EXPONENTS * STATS_N_AGES)

/* Moves by size. Each size up to 2^15 has its own count, which covers all 16-bit types.
 * Beyond that there are 64 buckets an octave, and the position inside a bucket costs
 * plain bits. */
#define STATS_EXACT_OCTAVE 15
#define STATS_N_EXACT      (1u << STATS_EXACT_OCTAVE)
#define STATS_N_SIZES      (STATS_N_EXACT + (64 - STATS_EXACT_OCTAVE) * 64)

static inline unsigned stats_size_bucket(uint64_t size)
{
    if (size <= STATS_N_EXACT)
        return (unsigned)size - 1;
    unsigned octave = 63 - (unsigned)__builtin_clzll(size - 1);
    return STATS_N_EXACT + 64 * (octave - STATS_EXACT_OCTAVE) +
           (unsigned)((size - 1) >> (octave - 6) & 63);
}

static inline unsigned stats_size_plain_bits(unsigned bucket)
{
    return bucket < STATS_N_EXACT
               ? 0
               : (bucket - STATS_N_EXACT) / 64 + STATS_EXACT_OCTAVE - 6;
}

/* A stretch of 64 sizes is added and cleared only if it was touched. Most of the table's
 * 70 MB is never touched and takes no memory. */
#define STATS_STRETCH     64
#define STATS_N_STRETCHES (STATS_N_SIZES / STATS_STRETCH)

typedef struct stats_moves {
    uint32_t counts[2][STATS_N_SIZES]; /* by direction */
} stats_moves;

typedef struct stats_table {
    uint64_t n_elems[STATS_N_CELLS]; /* by exponent, then age */
    uint64_t n_changed[STATS_N_CELLS];
    stats_counts counts; /* counts without cells: moves and directions */
    stats_moves *moves;  /* [exponents] */
    uint8_t touched[STATS_MAX_EXPONENTS][STATS_N_STRETCHES];
} stats_table;

static inline void stats_table_count_move(stats_table *table, unsigned exponent,
                                          unsigned direction, uint64_t size)
{
    const unsigned bucket = stats_size_bucket(size);
    table->moves[exponent].counts[direction][bucket]++;
    table->touched[exponent][bucket / STATS_STRETCH] = 1;
}

bool stats_table_init(stats_table *table); /* false: out of memory */
void stats_table_release(stats_table *table);
void stats_table_clear(stats_table *table);
void stats_table_add(stats_table *to, const stats_table *more);

/* Elements and changes of each exponent. */
void stats_table_exponents(const stats_table *table,
                           uint64_t n_elems[STATS_MAX_EXPONENTS],
                           uint64_t n_changed[STATS_MAX_EXPONENTS]);

/* Fills in the counts that follow from cells and moves. */
void stats_table_sum_up(stats_table *table);

#endif
