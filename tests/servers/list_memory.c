#include "list_memory.h"

#include <stdlib.h>
#include <string.h>

bool is_list(const char *method, const char *target)
{
    return strcmp(method, "GET") == 0 && strstr(target, "list-type=2") != NULL;
}

void reply_copy_add(reply_copy *copy, const char *bytes, size_t n_bytes)
{
    if (!copy->whole)
        return;
    size_t wanted = copy->n_bytes + n_bytes;
    if (wanted > copy->n_reserved) {
        size_t n_reserved = wanted * 2;
        char *grown = wanted > MAX_LIST_BYTES ? NULL : realloc(copy->bytes, n_reserved);
        if (grown == NULL) {
            copy->whole = false;
            return;
        }
        copy->bytes = grown;
        copy->n_reserved = n_reserved;
    }
    memcpy(copy->bytes + copy->n_bytes, bytes, n_bytes);
    copy->n_bytes = wanted;
}

void list_memory_put(list_memory *memory, const char *target, reply_copy copy)
{
    pthread_mutex_lock(&memory->lock);
    size_t i = 0;
    while (i < memory->n && strcmp(memory->lists[i].target, target) != 0)
        i++;
    if (i == memory->n) {
        size_t n = strlen(target) + 1;
        char *copied = malloc(n);
        if (copied == NULL) {
            pthread_mutex_unlock(&memory->lock);
            free(copy.bytes);
            return;
        }
        memcpy(copied, target, n);
        if (memory->n < MAX_LISTS) {
            memory->n++;
        } else { /* entries are reused in turn */
            i = memory->oldest;
            memory->oldest = (memory->oldest + 1) % MAX_LISTS;
        }
        free(memory->lists[i].target);
        memory->lists[i].target = copied;
    }
    free(memory->lists[i].reply.bytes);
    memory->lists[i].reply = copy;
    pthread_mutex_unlock(&memory->lock);
}

char *list_memory_get(list_memory *memory, const char *target, size_t *n_bytes)
{
    char *found = NULL;
    pthread_mutex_lock(&memory->lock);
    for (size_t i = 0; i < memory->n && found == NULL; i++) {
        if (strcmp(memory->lists[i].target, target) != 0)
            continue;
        *n_bytes = memory->lists[i].reply.n_bytes;
        found = malloc(*n_bytes);
        if (found == NULL)
            break;
        memcpy(found, memory->lists[i].reply.bytes, *n_bytes);
    }
    pthread_mutex_unlock(&memory->lock);
    return found;
}

void list_memory_release(list_memory *memory)
{
    for (size_t i = 0; i < memory->n; i++) {
        free(memory->lists[i].target);
        free(memory->lists[i].reply.bytes);
    }
    pthread_mutex_destroy(&memory->lock);
}
