/* A store that fails on purpose, for tests of programs that use the library.
 * Experimental. */
#ifndef DELTAWIRE_FAULT_H
#define DELTAWIRE_FAULT_H

#include "deltawire/store.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dw_fault_kind {
    DW_FAULT_NONE = 0,
    DW_FAULT_FAIL,  /* nothing is done; DW_UNAVAILABLE */
    DW_FAULT_LOST,  /* it is done, but DW_UNAVAILABLE is reported */
    DW_FAULT_DENY,  /* nothing is done; DW_DENIED */
    DW_FAULT_SHORT, /* a get returns half of the bytes; a put writes nothing and fails */
    DW_FAULT_CORRUPT, /* a get returns one flipped bit; a put stores one */
    DW_FAULT_STALE,   /* a list leaves out what was put through this store since its last
                         list that was not stale or, if there was nothing, the entries of
                         the latest time; a get or stat of such an object finds nothing */
    DW_FAULT_DELAY,   /* it is done after delay_ms */
} dw_fault_kind;

typedef struct dw_fault_plan {
    /* Called before each call of the store, on the caller's thread. OPERATION is "get",
     * "put", "stat", "list" or "remove". N counts all calls from 0. */
    dw_fault_kind (*choose)(void *context, uint64_t n, const char *operation,
                            const char *key);
    void *context;
    unsigned delay_ms;
} dw_fault_plan;

/* Wraps INNER, which must outlive the new store. PLAN is copied. */
DW_API dw_status dw_store_new_fault(dw_store **out, dw_store *inner,
                                    const dw_fault_plan *plan, dw_error *err);

#ifdef __cplusplus
}
#endif

#endif
