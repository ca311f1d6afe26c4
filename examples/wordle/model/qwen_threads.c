#include "qwen_threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "fail.h"

/* Below this, waking a thread takes longer than the work. */
#define MIN_FLOPS_TO_SHARE 1e6

enum { MAX_THREADS = 256, ALIGNMENT = 64 };

struct qwen_pool {
    unsigned n_threads; /* with the caller */
    unsigned n_started;
    pthread_t threads[MAX_THREADS];
    size_t scratch_bytes;
    char *scratch; /* [n_threads][scratch_bytes]; the caller's is the first */

    /* the loop at hand: written while no worker is busy */
    qwen_task *task;
    void *context;
    size_t n_tasks;
    atomic_size_t next_task;

    pthread_mutex_t lock;
    pthread_cond_t work; /* a round has begun, or all is over */
    pthread_cond_t idle; /* the last worker is done */
    unsigned long round;
    unsigned n_busy;
    bool over;
};

typedef struct worker {
    qwen_pool *pool;
    void *scratch;
} worker;

static void take_tasks(qwen_pool *pool, void *scratch)
{
    size_t i;
    while ((i = atomic_fetch_add(&pool->next_task, 1)) < pool->n_tasks)
        pool->task(pool->context, i, scratch);
}

static void *work(void *arg)
{
    worker self = *(worker *)arg;
    free(arg);
    qwen_pool *pool = self.pool;
    unsigned long seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->round == seen && !pool->over)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->over)
            break;
        seen = pool->round;
        pthread_mutex_unlock(&pool->lock);
        take_tasks(pool, self.scratch);
        pthread_mutex_lock(&pool->lock);
        if (--pool->n_busy == 0)
            pthread_cond_signal(&pool->idle);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static bool start_worker(qwen_pool *pool)
{
    worker *w = malloc(sizeof *w);
    if (w == NULL)
        return false;
    w->pool = pool;
    w->scratch = pool->scratch + (pool->n_started + 1) * pool->scratch_bytes;
    if (pthread_create(&pool->threads[pool->n_started], NULL, work, w) != 0) {
        free(w);
        return false;
    }
    pool->n_started++;
    return true;
}

dw_status qwen_pool_new(qwen_pool **out, unsigned n_threads, size_t scratch_bytes,
                        dw_error *err)
{
    if (n_threads == 0) {
        long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
        n_threads = n_cores < 1 ? 1 : (unsigned)n_cores;
    }
    if (n_threads > MAX_THREADS)
        n_threads = MAX_THREADS;
    qwen_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return wordle_fail(err, DW_NO_MEMORY, "threads", "out of memory");
    pool->n_threads = n_threads;
    pool->scratch_bytes = (scratch_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->idle, NULL);
    pool->scratch = aligned_alloc(ALIGNMENT, n_threads * pool->scratch_bytes);
    bool whole = pool->scratch != NULL;
    while (whole && pool->n_started + 1 < n_threads)
        whole = start_worker(pool);
    if (!whole) {
        qwen_pool_free(pool);
        return wordle_fail(err, DW_NO_MEMORY, "threads", "%u threads cannot be started",
                           n_threads);
    }
    *out = pool;
    return DW_OK;
}

void qwen_pool_free(qwen_pool *pool)
{
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->over = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->n_started; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->idle);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->scratch);
    free(pool);
}

void qwen_pool_run(qwen_pool *pool, size_t n_tasks, double n_flops, qwen_task *task,
                   void *context)
{
    if (pool->n_threads == 1 || n_tasks < 2 || n_flops < MIN_FLOPS_TO_SHARE) {
        for (size_t i = 0; i < n_tasks; i++)
            task(context, i, pool->scratch);
        return;
    }
    pool->task = task;
    pool->context = context;
    pool->n_tasks = n_tasks;
    atomic_store(&pool->next_task, 0);
    pthread_mutex_lock(&pool->lock);
    pool->round++;
    pool->n_busy = pool->n_started;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    take_tasks(pool, pool->scratch);
    pthread_mutex_lock(&pool->lock);
    while (pool->n_busy > 0)
        pthread_cond_wait(&pool->idle, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}
