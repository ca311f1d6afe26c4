#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "store/s3_driver.h"

enum { REPORT_MS = 100, IDLE_MS = 1000 };

typedef struct run {
    dw_s3 *s3;
    const dw_s3_job *job;
    dw_s3_task *tasks;
    size_t n_tasks;
    dw_http_inbox inbox;
    size_t n_busy; /* due or flying */
    size_t n_flying;
    bool end; /* job->next has no more */
    uint64_t bytes_done;
    uint64_t reported_ms;
    uint64_t bytes_reported;
    dw_wait wait;
    uint64_t bytes_moved; /* when the wait last looked */
} run;

static size_t window_of(run *r)
{
    if (!r->job->link)
        return r->n_tasks;
    pthread_mutex_lock(&r->s3->lock);
    size_t n = r->job->link->n_now;
    pthread_mutex_unlock(&r->s3->lock);
    return n < r->n_tasks ? n : r->n_tasks;
}

static void make_due(run *r, dw_s3_task *task)
{
    unsigned tries = task->max_tries ? task->max_tries : r->s3->n_tries;
    unsigned deadline = task->deadline_ms ? task->deadline_ms : r->s3->deadline_ms;
    dw_retry_start(&task->retry, tries, deadline, dw_clock_ms());
    task->state = DW_S3_DUE;
    task->ready_ms = 0;
    task->n_kept = 0;
    task->n_redirects = task->n_renewals = 0;
    task->region_taken = task->clock_taken = false;
    r->n_busy++;
}

static dw_status fill(run *r, dw_error *err)
{
    size_t window = window_of(r);
    for (size_t i = 0; i < r->n_tasks && r->n_busy < window && !r->end; i++) {
        dw_s3_task *task = &r->tasks[i];
        if (task->state != DW_S3_FREE)
            continue;
        bool got = false;
        dw_status status = r->job->next(r->job->context, task, &got, &r->end, err);
        if (status != DW_OK)
            return status;
        if (!got)
            break;
        make_due(r, task);
    }
    return DW_OK;
}

static dw_status send_due(run *r, dw_error *err)
{
    uint64_t now_ms = dw_clock_ms();
    for (size_t i = 0; i < r->n_tasks; i++) {
        dw_s3_task *task = &r->tasks[i];
        if (task->state != DW_S3_DUE || task->ready_ms > now_ms)
            continue;
        dw_error fault = {0};
        dw_s3_verdict verdict;
        dw_status status = dw_s3_task_build(r->s3, task, &fault);
        if (status != DW_OK) {
            status = dw_s3_task_lacks_keys(r->s3, task, &fault, &verdict, err);
            return status; /* the next one may wait as long: first see what came */
        }
        task->state = DW_S3_FLYING;
        r->n_flying++;
        dw_http_submit(r->s3->http, &task->call, &r->inbox);
    }
    return DW_OK;
}

/* The time until a retry or a report is due. */
static uint64_t time_to_wait(const run *r)
{
    uint64_t now_ms = dw_clock_ms();
    bool reports = r->job->progress && r->job->progress->report;
    uint64_t wait = reports ? REPORT_MS : IDLE_MS;
    for (size_t i = 0; i < r->n_tasks; i++) {
        const dw_s3_task *task = &r->tasks[i];
        if (task->state != DW_S3_DUE)
            continue;
        uint64_t left = task->ready_ms > now_ms ? task->ready_ms - now_ms : 0;
        if (left < wait)
            wait = left;
    }
    return wait;
}

static dw_status arrive(run *r, dw_http_call *call, dw_error *err)
{
    dw_s3_task *task = r->tasks;
    while (&task->call != call)
        task++;
    r->n_flying--;
    dw_s3_verdict verdict;
    dw_status status = dw_s3_task_judge(r->s3, task, r->job->link, &verdict, err);
    task->state = status == DW_OK && verdict == DW_S3_AGAIN ? DW_S3_DUE : DW_S3_FREE;
    if (status != DW_OK || verdict == DW_S3_AGAIN)
        return status;
    r->n_busy--;
    dw_wait_begin(&r->wait, dw_clock_ms());
    uint64_t n_bytes = task->call.n_sent + task->call.n_received + task->n_kept;
    r->bytes_done += n_bytes;
    if (r->job->link) {
        pthread_mutex_lock(&r->s3->lock);
        dw_link_observe(r->job->link, n_bytes, dw_clock_ms());
        pthread_mutex_unlock(&r->s3->lock);
    }
    return r->job->done ? r->job->done(r->job->context, task, err) : DW_OK;
}

static uint64_t count_moved(const run *r)
{
    uint64_t n = r->bytes_done;
    for (size_t i = 0; i < r->n_tasks; i++)
        if (r->tasks[i].state == DW_S3_FLYING)
            n += r->tasks[i].n_kept + atomic_load(&r->tasks[i].call.n_moved);
    return n;
}

static void report_wait(run *r)
{
    const uint64_t n_moved = count_moved(r);
    unsigned n_tries = 0; /* the most of any task */
    for (size_t i = 0; i < r->n_tasks; i++) {
        const dw_s3_task *task = &r->tasks[i];
        if (task->state != DW_S3_FREE && task->retry.n_tries > n_tries)
            n_tries = task->retry.n_tries;
    }
    if (n_tries == 0 || n_moved > r->bytes_moved)
        dw_wait_begin(&r->wait, dw_clock_ms());
    else
        dw_wait_check(&r->wait, &r->s3->waits, r->s3->url, n_tries, dw_clock_ms());
    r->bytes_moved = n_moved;
}

static dw_status report(run *r, dw_error *err)
{
    const dw_progress *progress = r->job->progress;
    uint64_t now_ms = dw_clock_ms();
    if (!progress || !progress->report ||
        (r->reported_ms && now_ms - r->reported_ms < REPORT_MS))
        return DW_OK;
    r->reported_ms = now_ms;
    uint64_t done = count_moved(r);
    if (done > r->job->bytes_total)
        done = r->job->bytes_total;
    if (done < r->bytes_reported) /* a failed try starts again */
        done = r->bytes_reported;
    r->bytes_reported = done;
    if (progress->report(progress->context, done, r->job->bytes_total) == 0)
        return DW_OK;
    char where[DW_ERROR_WHERE_SIZE];
    return dw_fail(err, DW_CANCELLED, dw_s3_where(r->s3, r->job->key, where),
                   "stopped at the caller's request");
}

/* Requests use the caller's buffers, so none may be in progress on return. */
static void call_back(run *r)
{
    for (size_t i = 0; i < r->n_tasks; i++)
        if (r->tasks[i].state == DW_S3_FLYING)
            dw_http_cancel(&r->tasks[i].call);
    while (r->n_flying > 0)
        if (dw_http_wait(&r->inbox, IDLE_MS))
            r->n_flying--;
    for (size_t i = 0; i < r->n_tasks; i++)
        r->tasks[i].state = DW_S3_FREE;
}

static dw_status run_tasks(run *r, dw_error *err)
{
    dw_status status = dw_http_inbox_init(&r->inbox, err);
    if (status != DW_OK)
        return status;
    dw_wait_begin(&r->wait, dw_clock_ms());
    status = report(r, err); /* the caller can stop before anything is sent */
    while (status == DW_OK) {
        if (!r->end)
            status = fill(r, err);
        if (status == DW_OK)
            status = send_due(r, err);
        if (status != DW_OK || (r->n_busy == 0 && r->end))
            break;
        dw_http_call *call = dw_http_wait(&r->inbox, time_to_wait(r));
        for (; call && status == DW_OK; call = dw_http_wait(&r->inbox, 0)) {
            status = arrive(r, call, err);
            if (status != DW_OK)
                break;
        }
        if (status == DW_OK) {
            report_wait(r);
            status = report(r, err);
        }
    }
    call_back(r);
    dw_http_inbox_release(&r->inbox);
    return status;
}

dw_status dw_s3_run(dw_s3 *s3, const dw_s3_job *job, dw_error *err)
{
    run r = {.s3 = s3, .job = job, .n_tasks = s3->n_connections};
    r.tasks = dw_alloc_zeroed(r.n_tasks, sizeof *r.tasks);
    if (!r.tasks)
        return dw_fail_memory(err, s3->url);
    if (job->link) {
        pthread_mutex_lock(&s3->lock);
        dw_link_begin(job->link, dw_clock_ms());
        pthread_mutex_unlock(&s3->lock);
    }
    dw_status status = run_tasks(&r, err);
    if (job->link) {
        pthread_mutex_lock(&s3->lock);
        dw_link_end(job->link);
        pthread_mutex_unlock(&s3->lock);
    }
    for (size_t i = 0; i < r.n_tasks; i++)
        dw_s3_task_release(&r.tasks[i]);
    dw_free(r.tasks);
    return status;
}

dw_status dw_s3_ask(dw_s3 *s3, dw_s3_task *task, const dw_progress *progress,
                    dw_error *err)
{
    dw_s3_job job = {
        .progress = progress,
        .bytes_total = task->call.n_send + task->call.n_into,
        .key = task->key,
    };
    run r = {.s3 = s3, .job = &job, .tasks = task, .n_tasks = 1, .end = true};
    make_due(&r, task);
    return run_tasks(&r, err);
}
