#include "group_queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct group_queue {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* something came, went, or the queue was closed */
    bool closed;
    size_t capacity, first, n;
    played_group *groups[]; /* a ring */
};

group_queue *group_queue_new(size_t capacity)
{
    group_queue *queue = calloc(1, sizeof *queue + capacity * sizeof(played_group *));
    if (!queue)
        return NULL;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    queue->capacity = capacity;
    return queue;
}

void group_queue_free(group_queue *queue)
{
    if (!queue)
        return;
    for (size_t i = 0; i < queue->n; i++)
        free(queue->groups[(queue->first + i) % queue->capacity]);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

bool group_queue_push(group_queue *queue, played_group *group)
{
    pthread_mutex_lock(&queue->lock);
    while (queue->n == queue->capacity && !queue->closed)
        pthread_cond_wait(&queue->changed, &queue->lock);
    bool open = !queue->closed;
    if (open) {
        queue->groups[(queue->first + queue->n) % queue->capacity] = group;
        queue->n++;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    if (!open)
        free(group);
    return open;
}

played_group *group_queue_pop(group_queue *queue, unsigned timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(timeout_ms / 1000);
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    played_group *group = NULL;
    pthread_mutex_lock(&queue->lock);
    while (queue->n == 0 && !queue->closed)
        if (pthread_cond_timedwait(&queue->changed, &queue->lock, &until) != 0)
            break;
    if (queue->n > 0 && !queue->closed) {
        group = queue->groups[queue->first];
        queue->first = (queue->first + 1) % queue->capacity;
        queue->n--;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    return group;
}

void group_queue_close(group_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->closed = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}
