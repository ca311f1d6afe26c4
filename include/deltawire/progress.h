/* Watching and stopping long work. */
#ifndef DELTAWIRE_PROGRESS_H
#define DELTAWIRE_PROGRESS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Called now and then from the calling thread, never under a lock; report may be NULL. A
 * return value other than 0 makes the operation stop with DW_CANCELLED and change
 * nothing, but for a diff that updates its base. */
typedef struct dw_progress {
    int (*report)(void *context, uint64_t bytes_done, uint64_t bytes_total);
    void *context;
} dw_progress;

#ifdef __cplusplus
}
#endif

#endif
