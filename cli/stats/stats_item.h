/* The loop over the elements of an item, a piece of a tensor. */
#ifndef CLI_STATS_ITEM_H
#define CLI_STATS_ITEM_H

#include "stats_table.h"

/* The classes of all histories, computed once. */
typedef struct stats_classes {
    uint8_t of[1 << STATS_HISTORY_STEPS];
} stats_classes;

void stats_classes_init(stats_classes *classes);

/* Adds elements FIRST to FIRST + N of the tensor to TABLE. Brings `then` and `history` up
 * to date. */
void stats_item_count(stats_table *table, const stats_tensor *tensor,
                      const stats_classes *classes, uint64_t first, uint64_t n);

#endif
