/* An allocator that fails at one chosen call, and counts blocks that are not freed. */
#ifndef DW_TEST_FAILING_ALLOCATOR_H
#define DW_TEST_FAILING_ALLOCATOR_H

#include <stdlib.h>

#include "deltawire/deltawire.h"

typedef struct failing_allocator {
    size_t n_until_failure; /* calls that still succeed */
    size_t n_live;          /* blocks not freed */
    int has_failed;
    int once; /* only that one call fails */
} failing_allocator;

static void *failing_reallocate(void *context, void *pointer, size_t n_bytes)
{
    failing_allocator *a = context;
    if (a->n_until_failure == 0 && !(a->once && a->has_failed)) {
        a->has_failed = 1;
        return NULL;
    }
    a->n_until_failure -= a->n_until_failure > 0;
    void *result = realloc(pointer, n_bytes);
    if (!pointer && result)
        a->n_live++;
    return result;
}

static void *failing_allocate(void *context, size_t n_bytes)
{
    return failing_reallocate(context, NULL, n_bytes);
}

static void failing_release(void *context, void *pointer)
{
    failing_allocator *a = context;
    a->n_live--;
    free(pointer);
}

/* Installs A, which fails after N calls. */
static void failing_allocator_install(failing_allocator *a, size_t n)
{
    *a = (failing_allocator){.n_until_failure = n};
    dw_set_allocator(
        &(dw_allocator){failing_allocate, failing_reallocate, failing_release, a});
}

/* Calls RUN with every allocation failing from the first on, then from the second on, and
 * so forth, until it succeeds. Each failure must be DW_NO_MEMORY, and none may leak.
 * CHECK, if not NULL, checks the state after a failure. */
static inline void fail_every_allocation(dw_status (*run)(dw_error *err),
                                         void (*check)(void))
{
    for (size_t n = 0;; n++) {
        failing_allocator a;
        dw_error err = {0};
        failing_allocator_install(&a, n);
        dw_status status = run(&err);
        dw_set_allocator(NULL);
        assert_int_equal(a.n_live, 0);
        if (!a.has_failed) {
            assert_int_equal(status, DW_OK);
            assert_true(n > 0);
            return;
        }
        assert_int_equal(status, DW_NO_MEMORY);
        assert_int_equal(err.code, DW_NO_MEMORY);
        if (check)
            check();
    }
}

#endif
