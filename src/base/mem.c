#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#include "deltawire/deltawire.h"

static void *default_allocate(void *context, size_t n_bytes)
{
    (void)context;
    return malloc(n_bytes);
}

static void *default_reallocate(void *context, void *pointer, size_t n_bytes)
{
    (void)context;
    return realloc(pointer, n_bytes);
}

static void default_release(void *context, void *pointer)
{
    (void)context;
    free(pointer);
}

static const dw_allocator defaults = {default_allocate, default_reallocate,
                                      default_release, NULL};
static dw_allocator current = {default_allocate, default_reallocate, default_release,
                               NULL};

void dw_set_allocator(const dw_allocator *allocator)
{
    current = allocator ? *allocator : defaults;
}

void *dw_alloc(size_t n_bytes)
{
    return current.allocate(current.context, n_bytes ? n_bytes : 1);
}

void *dw_alloc_array(size_t n_items, size_t n_bytes)
{
    size_t total;
    if (__builtin_mul_overflow(n_items, n_bytes, &total))
        return NULL;
    return dw_alloc(total);
}

void *dw_alloc_zeroed(size_t n_items, size_t n_bytes)
{
    void *pointer = dw_alloc_array(n_items, n_bytes);
    if (pointer)
        memset(pointer, 0, n_items * n_bytes);
    return pointer;
}

void *dw_realloc_array(void *pointer, size_t n_items, size_t n_bytes)
{
    size_t total;
    if (__builtin_mul_overflow(n_items, n_bytes, &total))
        return NULL;
    return current.reallocate(current.context, pointer, total ? total : 1);
}

bool dw_grow_array(void **array, size_t *n_room, size_t n, size_t n_bytes)
{
    if (n < *n_room)
        return true;
    size_t n_wanted = n < 32 ? 64 : 2 * n;
    void *grown = dw_realloc_array(*array, n_wanted, n_bytes);
    if (!grown)
        return false;
    *array = grown;
    *n_room = n_wanted;
    return true;
}

char *dw_copy_string(const char *text)
{
    size_t n_bytes = strlen(text) + 1;
    char *copy = dw_alloc(n_bytes);
    if (copy)
        memcpy(copy, text, n_bytes);
    return copy;
}

void dw_free(void *pointer)
{
    if (pointer)
        current.release(current.context, pointer);
}
