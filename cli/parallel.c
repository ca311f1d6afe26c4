#include "parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "error.h"

#define MAX_WORKERS 256

typedef struct loop {
    cli_item_fn fn;
    void *context;
    size_t n_items;
    const dw_progress *progress;
    atomic_size_t next;
    atomic_bool cancelled, failed;
} loop;

typedef struct worker {
    loop *loop;
    unsigned number;
    pthread_t thread;
} worker;

unsigned cli_worker_count(unsigned n_threads)
{
    long n = n_threads ? (long)n_threads : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MAX_WORKERS ? MAX_WORKERS : (unsigned)n;
}

static void report(loop *l, size_t n_done)
{
    const dw_progress *p = l->progress;
    if (p && p->report && p->report(p->context, n_done, l->n_items) != 0)
        atomic_store(&l->cancelled, true);
}

static void *work(void *argument)
{
    worker *w = argument;
    loop *l = w->loop;
    while (!atomic_load(&l->cancelled) && !atomic_load(&l->failed)) {
        size_t i = atomic_fetch_add(&l->next, 1);
        if (i >= l->n_items)
            break;
        if (!l->fn(l->context, i, w->number))
            atomic_store(&l->failed, true);
        if (w->number == 0)
            report(l, i + 1);
    }
    return NULL;
}

dw_status cli_parallel(unsigned n_workers, size_t n_items, cli_item_fn fn, void *context,
                       const dw_progress *progress, dw_error *err)
{
    loop l = {.fn = fn, .context = context, .n_items = n_items, .progress = progress};
    worker workers[MAX_WORKERS] = {{.loop = &l}}; /* the first is the caller */
    unsigned n_started = 1;
    report(&l, 0); /* of a few items the caller's thread may get none */
    for (unsigned i = 1; i < n_workers; i++)
        workers[i] = (worker){.loop = &l, .number = i};
    /* a thread that cannot be had is done without */
    while (n_started < n_workers && n_started < n_items &&
           pthread_create(&workers[n_started].thread, NULL, work, &workers[n_started]) ==
               0)
        n_started++;
    work(&workers[0]);
    for (unsigned i = 1; i < n_started; i++)
        pthread_join(workers[i].thread, NULL);
    if (atomic_load(&l.failed))
        return cli_error_set(err, DW_NO_MEMORY, "", "out of memory");
    if (atomic_load(&l.cancelled))
        return cli_error_set(err, DW_CANCELLED, "", "stopped");
    return DW_OK;
}
