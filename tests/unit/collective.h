/* The collective call of ranks that are threads: the largest over all of them, as
 * torch.distributed.all_reduce makes it. If a rank does not come in time, it is broken
 * for good, as a process group is. */
#ifndef UNIT_COLLECTIVE_H
#define UNIT_COLLECTIVE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "deltawire/publish.h"

typedef struct collective {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_ranks, n_here;
    unsigned limit_s;
    uint64_t n_rounds; /* that all took part in */
    uint32_t *values[2];
    bool is_broken;
} collective;

static inline void collective_open(collective *c, uint32_t n_ranks, unsigned limit_s)
{
    *c = (collective){.lock = PTHREAD_MUTEX_INITIALIZER,
                      .changed = PTHREAD_COND_INITIALIZER,
                      .n_ranks = n_ranks,
                      .limit_s = limit_s};
}

static inline void collective_close(collective *c)
{
    free(c->values[0]);
    free(c->values[1]);
}

static inline dw_status collective_agree(void *context, uint32_t *maxima, size_t n,
                                         dw_error *err)
{
    collective *c = context;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += c->limit_s;
    pthread_mutex_lock(&c->lock);
    const uint64_t round = c->n_rounds;
    uint32_t **values = &c->values[round % 2]; /* the other one is still being read */
    if (c->n_here++ == 0) {
        *values = realloc(*values, n * sizeof **values);
        memset(*values, 0, n * sizeof **values);
    }
    for (size_t i = 0; i < n; i++)
        if (maxima[i] > (*values)[i])
            (*values)[i] = maxima[i];
    if (c->n_here == c->n_ranks) {
        c->n_here = 0;
        c->n_rounds++;
        pthread_cond_broadcast(&c->changed);
    }
    while (c->n_rounds == round && !c->is_broken)
        c->is_broken = pthread_cond_timedwait(&c->changed, &c->lock, &end) != 0;
    pthread_cond_broadcast(&c->changed);
    const bool is_good = c->n_rounds > round;
    if (is_good)
        memcpy(maxima, *values, n * sizeof *maxima);
    pthread_mutex_unlock(&c->lock);
    if (!is_good && err) {
        err->code = DW_UNAVAILABLE;
        snprintf(err->text, sizeof err->text, "timed out after %u s", c->limit_s);
    }
    return is_good ? DW_OK : DW_UNAVAILABLE;
}

#endif
