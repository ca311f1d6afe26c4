/* The last whole reply to each list of objects, for stale answers. */
#ifndef DW_TESTS_LIST_MEMORY_H
#define DW_TESTS_LIST_MEMORY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

enum { MAX_LISTS = 64, MAX_LIST_BYTES = 2 * 1024 * 1024 };

typedef struct reply_copy {
    char *bytes;
    size_t n_bytes, n_reserved;
    bool whole;
} reply_copy;

typedef struct list_memory {
    pthread_mutex_t lock;
    size_t n, oldest;
    struct {
        char *target;
        reply_copy reply;
    } lists[MAX_LISTS];
} list_memory;

bool is_list(const char *method, const char *target);

/* Adds bytes to a copy. If it grows too large or memory runs out, it is no longer whole.
 * Begin with `.whole = true`. */
void reply_copy_add(reply_copy *copy, const char *bytes, size_t n_bytes);

/* Owns COPY, and drops an older reply to the same list. */
void list_memory_put(list_memory *memory, const char *target, reply_copy copy);

/* A copy that the caller frees; NULL if there is none. */
char *list_memory_get(list_memory *memory, const char *target, size_t *n_bytes);

void list_memory_release(list_memory *memory);

#endif
