/* A store that fails on purpose. */
#ifndef STORE_FAULT_STORE_H
#define STORE_FAULT_STORE_H

#include "deltawire/store.h"

typedef enum store_fault {
    STORE_FAULT_NONE = 0,
    STORE_FAULT_FAIL,    /* nothing is done; DW_UNAVAILABLE */
    STORE_FAULT_LOST,    /* it is done, but DW_UNAVAILABLE is reported */
    STORE_FAULT_DENY,    /* nothing is done; DW_DENIED */
    STORE_FAULT_SHORT,   /* a get returns half of the bytes; a put only fails */
    STORE_FAULT_CORRUPT, /* a get returns one flipped bit; a put stores one */
    STORE_FAULT_STALE, /* a list leaves out what was put through this store since its last
                       list that was not stale or, if there was nothing, the entries of
                       the latest time; a get or stat of such an object finds nothing */
    STORE_FAULT_LIE,   /* a put does nothing, and reports success */
    STORE_FAULT_DELAY, /* it is done after delay_ms */
} store_fault;

typedef struct store_fault_plan {
    /* Called before each call of the store, on the caller's thread. OPERATION is "get",
     * "put", "stat", "list" or "remove". N counts all calls from 0. */
    store_fault (*choose)(void *context, uint64_t n, const char *operation,
                          const char *key);
    void *context;
    unsigned delay_ms;
} store_fault_plan;

/* Wraps INNER, which must outlive the new store. PLAN is copied. */
dw_status fault_store_new(dw_store **out, dw_store *inner, const store_fault_plan *plan,
                          dw_error *err);

#endif
