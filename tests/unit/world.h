/* A model and a store in memory, which each test, or each of its rounds, begins anew. */
#ifndef DW_TEST_WORLD_H
#define DW_TEST_WORLD_H

#include "unit/stream_kit.h"

static kit k;
static dw_store *store;

static inline void begin(void)
{
    kit_make(&k);
    store = kit_mem_store();
}

static inline void end(void)
{
    dw_store_close(store);
    kit_free(&k);
}

/* Every version is what was published. */
static inline void check_and_end(void)
{
    kit_check_stream(&k, store, NULL);
    end();
}

/* The same if STORE was opened over INNER, the one of begin. */
static inline void end_over(dw_store *inner)
{
    dw_store_close(store);
    store = inner;
    check_and_end();
}

#endif
