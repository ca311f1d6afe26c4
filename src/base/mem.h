/* Allocation through the caller's allocator. */
#ifndef DW_BASE_MEM_H
#define DW_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

/* All return NULL on failure or if n_items x n_bytes does not fit a size_t. A
 * size of 0 gives a pointer that may be freed. */
void *dw_alloc(size_t n_bytes);
void *dw_alloc_array(size_t n_items, size_t n_bytes);
void *dw_alloc_zeroed(size_t n_items, size_t n_bytes);

/* On failure the old block stays valid. */
void *dw_realloc_array(void *pointer, size_t n_items, size_t n_bytes);

/* Makes sure that *ARRAY, with room for *N_ROOM items, has room for N + 1. If out of
 * memory, returns false and changes nothing. */
bool dw_grow_array(void **array, size_t *n_room, size_t n, size_t n_bytes);

char *dw_copy_string(const char *text);

/* Accepts NULL. */
void dw_free(void *pointer);

#endif
