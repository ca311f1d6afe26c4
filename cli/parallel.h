/* One loop over independent items on several threads, for what the command computes by
 * itself. */
#ifndef CLI_PARALLEL_H
#define CLI_PARALLEL_H

#include <stdbool.h>
#include <stddef.h>

#include <deltawire/error.h>
#include <deltawire/progress.h>

/* Does item I; WORKER, below the number of workers, picks scratch of its own. False
 * stops the loop. */
typedef bool (*cli_item_fn)(void *context, size_t i, unsigned worker);

/* Workers for --threads N: 0 means all cores. */
unsigned cli_worker_count(unsigned n_threads);

/* Runs FN over items 0 .. n_items - 1, handed out in order, on N_WORKERS threads, the
 * caller's among them. PROGRESS, which may be NULL, counts items and is asked on the
 * caller's thread alone. DW_CANCELLED where it stopped the loop, DW_NO_MEMORY where an
 * item did: there is nothing else for which they fail. */
dw_status cli_parallel(unsigned n_workers, size_t n_items, cli_item_fn fn, void *context,
                       const dw_progress *progress, dw_error *err);

#endif
