/* The loop over the elements of an item: some whole rows, or a piece of a flat tensor. */
#ifndef CLI_STATS_ITEM_H
#define CLI_STATS_ITEM_H

#include "stats_learn.h"

#define STATS_ITEM_ELEMS (UINT64_C(1) << 20) /* or one row, if that is longer */

/* A worker's scratch. */
typedef struct stats_worker {
    stats_table table;
    stats_line_counts rows;    /* [rows of an item] */
    stats_line_counts columns; /* [n_columns] */
} stats_worker;

/* The classes of all histories, computed once. */
typedef struct stats_classes {
    uint8_t of[1 << STATS_HISTORY_STEPS];
} stats_classes;

void stats_classes_init(stats_classes *classes);

/* Adds elements FIRST to FIRST + N of the tensor to the worker's counts. PREDICTION is
 * NULL before anything was learnt. Brings `then` and `history` up to date. */
void stats_item_count(stats_worker *worker, const stats_tensor *tensor,
                      const stats_prediction *prediction, const stats_classes *classes,
                      uint64_t first, uint64_t n);

#endif
