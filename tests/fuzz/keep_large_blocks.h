/* An allocator that keeps a few large blocks and reuses them. The coder's scratch is tens
 * of megabytes, and the sanitizer needs longer to allocate it than the fuzz target runs.
 * Small blocks go through malloc, where the sanitizer watches them. */
#ifndef DW_FUZZ_KEEP_LARGE_BLOCKS_H
#define DW_FUZZ_KEEP_LARGE_BLOCKS_H

#include <stdlib.h>

#include "deltawire/deltawire.h"

enum { KEPT_BLOCKS = 16, LARGE_BLOCK = 1 << 20 };

static struct kept_block {
    void *bytes;
    size_t n_bytes;
    int in_use;
} kept_blocks[KEPT_BLOCKS];

static void *keep_allocate(void *context, size_t n_bytes)
{
    (void)context;
    for (size_t i = 0; n_bytes >= LARGE_BLOCK && i < KEPT_BLOCKS; i++) {
        struct kept_block *b = &kept_blocks[i];
        if (!b->bytes)
            *b = (struct kept_block){malloc(n_bytes), n_bytes, 0};
        if (b->bytes && b->n_bytes == n_bytes && !b->in_use) {
            b->in_use = 1;
            return b->bytes;
        }
    }
    return malloc(n_bytes);
}

static struct kept_block *find_kept(const void *pointer)
{
    for (size_t i = 0; i < KEPT_BLOCKS; i++)
        if (pointer && kept_blocks[i].bytes == pointer)
            return &kept_blocks[i];
    return NULL;
}

static void keep_release(void *context, void *pointer)
{
    (void)context;
    struct kept_block *b = find_kept(pointer);
    if (b)
        b->in_use = 0;
    else
        free(pointer);
}

static void *keep_reallocate(void *context, void *pointer, size_t n_bytes)
{
    struct kept_block *b = find_kept(pointer);
    if (!b)
        return realloc(pointer, n_bytes);
    void *moved = malloc(n_bytes);
    if (moved) {
        memcpy(moved, pointer, b->n_bytes < n_bytes ? b->n_bytes : n_bytes);
        keep_release(context, pointer);
    }
    return moved;
}

static inline void keep_large_blocks(void)
{
    dw_set_allocator(&(dw_allocator){keep_allocate, keep_reallocate, keep_release, NULL});
}

int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    keep_large_blocks();
    return 0;
}

#endif
