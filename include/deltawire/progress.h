/* Watching and stopping long work. Stable. */
#ifndef DELTAWIRE_PROGRESS_H
#define DELTAWIRE_PROGRESS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library calls REPORT now and then, from the thread that called it and under no
 * lock. REPORT may be NULL. Any result but 0 stops the operation with DW_CANCELLED. The
 * operation then changes nothing, except for a diff that updates its base. */
typedef struct dw_progress {
    int (*report)(void *context, uint64_t bytes_done, uint64_t bytes_total);
    void *context;
} dw_progress;

#ifdef __cplusplus
}
#endif

#endif
