#include "base/parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"

typedef struct loop {
    dw_item_fn fn;
    void *context;
    size_t n_items;
    const dw_parallel_progress *progress;
    atomic_size_t next;
    atomic_bool stop;
    atomic_ullong bytes_done;

    pthread_mutex_t lock; /* guards what follows */
    size_t failed_item;
    dw_status status;
    dw_error error;
} loop;

typedef struct worker {
    loop *loop;
    unsigned number;
    pthread_t thread;
    dw_error error;
} worker;

unsigned dw_worker_count(unsigned n_threads, size_t n_items)
{
    if (n_threads == 0) {
        long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
        n_threads = n_cores > 0 ? (unsigned)n_cores : 1;
    }
    if (n_threads > 256)
        n_threads = 256;
    if (n_items < n_threads)
        n_threads = n_items > 0 ? (unsigned)n_items : 1;
    return n_threads;
}

static void record_failure(loop *l, size_t item, dw_status status, const dw_error *error)
{
    pthread_mutex_lock(&l->lock);
    if (l->status == DW_OK || item < l->failed_item) {
        l->failed_item = item;
        l->status = status;
        l->error = *error;
    }
    pthread_mutex_unlock(&l->lock);
    atomic_store(&l->stop, true);
}

/* Only the caller's own thread reports, between its items. */
static void report_progress(worker *w, size_t item)
{
    const dw_parallel_progress *p = w->loop->progress;
    if (!p || !p->report.report)
        return;
    uint64_t bytes = p->bytes_of(w->loop->context, item);
    uint64_t done = atomic_fetch_add(&w->loop->bytes_done, bytes) + bytes;
    if (w->number != 0)
        return;
    if (p->report.report(p->report.context, done, p->bytes_total) != 0) {
        dw_fail(&w->error, DW_CANCELLED, NULL, "stopped at the caller's request");
        record_failure(w->loop, item, DW_CANCELLED, &w->error);
    }
}

static void *work(void *argument)
{
    worker *w = argument;
    loop *l = w->loop;
    while (!atomic_load(&l->stop)) {
        size_t i = atomic_fetch_add(&l->next, 1);
        if (i >= l->n_items)
            break;
        dw_status status = l->fn(l->context, i, w->number, &w->error);
        if (status != DW_OK)
            record_failure(l, i, status, &w->error);
        else
            report_progress(w, i);
    }
    return NULL;
}

dw_status dw_parallel(unsigned n_workers, size_t n_items, dw_item_fn fn, void *context,
                      const dw_parallel_progress *progress, dw_error *err)
{
    /* ask before the first item, because the caller's thread may get none */
    if (progress && progress->report.report &&
        progress->report.report(progress->report.context, 0, progress->bytes_total) != 0)
        return dw_fail(err, DW_CANCELLED, NULL, "stopped at the caller's request");
    loop l = {.fn = fn, .context = context, .n_items = n_items, .progress = progress};
    worker *workers = dw_alloc_zeroed(n_workers, sizeof *workers);
    if (!workers)
        return dw_fail_memory(err, NULL);
    pthread_mutex_init(&l.lock, NULL);

    /* If a thread cannot be started, the others take its items. */
    unsigned n_started = 0;
    for (unsigned i = 0; i < n_workers; i++) {
        workers[i].loop = &l;
        workers[i].number = i;
    }
    for (unsigned i = 1; i < n_workers; i++) {
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            break;
        n_started = i;
    }
    work(&workers[0]);
    for (unsigned i = 1; i <= n_started; i++)
        pthread_join(workers[i].thread, NULL);

    dw_status status = l.status;
    if (status != DW_OK && err)
        *err = l.error;
    else if (status == DW_OK && progress && progress->report.report)
        progress->report.report(progress->report.context, progress->bytes_total,
                                progress->bytes_total);
    pthread_mutex_destroy(&l.lock);
    dw_free(workers);
    return status;
}
