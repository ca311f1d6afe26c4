/* One loop over independent items on several threads. */
#ifndef DW_BASE_PARALLEL_H
#define DW_BASE_PARALLEL_H

#include <stddef.h>

#include "deltawire/delta.h"

/* Processes item I. WORKER, below the number of workers, selects the thread's scratch. */
typedef dw_status (*dw_item_fn)(void *context, size_t i, unsigned worker, dw_error *err);

/* The number of threads for a request: 0 means all cores; never more than items. */
unsigned dw_worker_count(unsigned n_threads, size_t n_items);

typedef struct dw_parallel_progress {
    dw_progress report;
    uint64_t bytes_total;
    /* the bytes of item I, so that the bar moves evenly */
    uint64_t (*bytes_of)(const void *context, size_t i);
} dw_parallel_progress;

/* Runs FN over items 0..n_items-1, which are handed out in order, on N_WORKERS
 * threads, the caller's among them. After a failure no new item is begun; of
 * several failures the one of the lowest item is reported. PROGRESS may be NULL. */
dw_status dw_parallel(unsigned n_workers, size_t n_items, dw_item_fn fn, void *context,
                      const dw_parallel_progress *progress, dw_error *err);

#endif
