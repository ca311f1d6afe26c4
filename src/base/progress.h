/* Progress of a step as part of a whole. */
#ifndef DW_BASE_PROGRESS_H
#define DW_BASE_PROGRESS_H

#include "deltawire/base.h"

typedef struct dw_share {
    const dw_progress *whole; /* what the caller watches; may be NULL */
    uint64_t before;          /* bytes of the steps that are done */
    uint64_t total;           /* bytes of all steps */
} dw_share;

/* A dw_progress for the current step. It reads SHARE when it is called. Its report is
 * NULL if nobody watches. */
dw_progress dw_share_hook(dw_share *share);

#endif
