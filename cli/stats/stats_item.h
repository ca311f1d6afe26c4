/* The loop over the elements of an item, a piece of a tensor. */
#ifndef CLI_STATS_ITEM_H
#define CLI_STATS_ITEM_H

#include "stats_table.h"

/* The ages of all histories, computed once. */
typedef struct stats_ages {
    uint8_t of[1 << STATS_HISTORY_STEPS];
} stats_ages;

void stats_ages_init(stats_ages *ages);

/* Adds elements FIRST to FIRST + N of the tensor to TABLE. Brings `then` and `history` up
 * to date. */
void stats_item_count(stats_table *table, const stats_tensor *tensor,
                      const stats_ages *ages, uint64_t first, uint64_t n);

#endif
