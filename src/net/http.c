#include "net/http.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <curl/curl.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "net/http_easy.h"

enum { MAX_THREADS = 2, MAX_CONNECTIONS = 256 };

/* A thread of the engine. Its members are grouped by the threads that may use them. */
typedef struct dw_http_thread {
    CURLM *multi; /* used by its thread, except for curl_multi_wakeup */
    char *ca_bundle;
    unsigned max_active;
    pthread_t thread;
    atomic_uint n_calls; /* submitted and not finished */

    pthread_mutex_t lock; /* guards what follows */
    dw_http_call *submitted, *submitted_last;
    bool stop;
    bool cancels; /* some call has `cancel` set */

    /* Used only by the thread. */
    dw_http_call *waiting, *waiting_last;
    dw_http_call *active[MAX_CONNECTIONS];
    unsigned n_active;
    CURL *idle[MAX_CONNECTIONS];
    unsigned n_idle;
    dw_http_sockets sockets;
} dw_http_thread;

struct dw_http {
    unsigned n_threads;
    dw_http_thread *threads[MAX_THREADS];
};

/* ---- the inbox ---- */

dw_status dw_http_inbox_init(dw_http_inbox *inbox, dw_error *err)
{
    inbox->first = inbox->last = NULL;
    if (pthread_mutex_init(&inbox->lock, NULL) != 0)
        return dw_fail_memory(err, NULL);
    if (!dw_condition_init(&inbox->arrived)) {
        pthread_mutex_destroy(&inbox->lock);
        return dw_fail_memory(err, NULL);
    }
    return DW_OK;
}

void dw_http_inbox_release(dw_http_inbox *inbox)
{
    pthread_cond_destroy(&inbox->arrived);
    pthread_mutex_destroy(&inbox->lock);
}

static void append(dw_http_call **first, dw_http_call **last, dw_http_call *call)
{
    call->next = NULL;
    if (*first)
        (*last)->next = call;
    else
        *first = call;
    *last = call;
}

static dw_http_call *take_first(dw_http_call **first)
{
    dw_http_call *call = *first;
    if (call)
        *first = call->next;
    return call;
}

dw_http_call *dw_http_wait(dw_http_inbox *inbox, uint64_t timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(timeout_ms / 1000);
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&inbox->lock);
    while (!inbox->first && timeout_ms > 0)
        if (pthread_cond_timedwait(&inbox->arrived, &inbox->lock, &until) != 0)
            break;
    dw_http_call *call = take_first(&inbox->first);
    pthread_mutex_unlock(&inbox->lock);
    return call;
}

/* Signals under the lock: once it is free, the caller may destroy the inbox. */
static void deliver(dw_http_call *call)
{
    dw_http_inbox *inbox = call->inbox;
    pthread_mutex_lock(&inbox->lock);
    append(&inbox->first, &inbox->last, call);
    pthread_cond_signal(&inbox->arrived);
    pthread_mutex_unlock(&inbox->lock);
}

/* ---- an I/O thread ---- */

static void finish(dw_http_thread *t, dw_http_call *call)
{
    CURL *easy = call->easy;
    dw_http_easy_detach(call);
    if (easy && t->n_idle < MAX_CONNECTIONS)
        t->idle[t->n_idle++] = easy; /* keep it for reuse */
    else if (easy)
        curl_easy_cleanup(easy);
    atomic_fetch_sub(&t->n_calls, 1);
    deliver(call);
}

static void finish_active(dw_http_thread *t, unsigned i)
{
    dw_http_call *call = t->active[i];
    t->active[i] = t->active[--t->n_active];
    curl_multi_remove_handle(t->multi, call->easy);
    finish(t, call);
}

static void start(dw_http_thread *t, dw_http_call *call)
{
    CURL *easy = t->n_idle > 0 ? t->idle[--t->n_idle] : curl_easy_init();
    if (!easy || !dw_http_easy_attach(call, easy, &t->sockets, t->ca_bundle) ||
        curl_multi_add_handle(t->multi, easy) != CURLM_OK) {
        call->easy = easy;
        dw_http_easy_fail(call, DW_HTTP_HOPELESS, "out of memory");
        finish(t, call);
        return;
    }
    t->active[t->n_active++] = call;
}

static void end_cancelled(dw_http_thread *t)
{
    for (unsigned i = t->n_active; i-- > 0;)
        if (t->active[i]->cancel) {
            dw_http_easy_fail(t->active[i], DW_HTTP_CANCELLED, "cancelled");
            finish_active(t, i);
        }
    dw_http_call *rest = t->waiting;
    t->waiting = NULL;
    for (dw_http_call *call; (call = take_first(&rest)) != NULL;) {
        if (!call->cancel) {
            append(&t->waiting, &t->waiting_last, call);
            continue;
        }
        dw_http_easy_fail(call, DW_HTTP_CANCELLED, "cancelled");
        finish(t, call);
    }
}

static void collect_finished(dw_http_thread *t)
{
    int n_left;
    for (CURLMsg *m; (m = curl_multi_info_read(t->multi, &n_left)) != NULL;) {
        if (m->msg != CURLMSG_DONE)
            continue;
        for (unsigned i = 0; i < t->n_active; i++)
            if (t->active[i]->easy == m->easy_handle) {
                dw_http_easy_finish(t->active[i], m->data.result);
                finish_active(t, i);
                break;
            }
    }
}

static void end_handles(dw_http_thread *t)
{
    while (t->n_idle > 0)
        curl_easy_cleanup(t->idle[--t->n_idle]);
    curl_multi_cleanup(t->multi);
    t->multi = NULL;
}

static void *run_thread(void *argument)
{
    dw_http_thread *t = argument;
    /* Blocks SIGPIPE: TLS may write to connections that the peer has closed, and with
     * CURLOPT_NOSIGNAL libcurl does not block it. */
    sigset_t pipe_signal;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, NULL);
    for (;;) {
        pthread_mutex_lock(&t->lock);
        for (dw_http_call *call; (call = take_first(&t->submitted)) != NULL;)
            append(&t->waiting, &t->waiting_last, call);
        bool stop = t->stop;
        /* The flags are also set under the lock, and never reset during a call. */
        if (t->cancels)
            end_cancelled(t);
        t->cancels = false;
        pthread_mutex_unlock(&t->lock);
        if (stop)
            break;
        while (t->waiting && t->n_active < t->max_active)
            start(t, take_first(&t->waiting));
        int n_running;
        curl_multi_perform(t->multi, &n_running);
        collect_finished(t);
        if (t->waiting && t->n_active < t->max_active)
            continue;
        curl_multi_poll(t->multi, NULL, 0, 1000, NULL);
    }
    end_handles(t); /* on this thread, because closing a connection may write to it */
    return NULL;
}

/* ---- the engine ---- */

static void free_thread(dw_http_thread *t)
{
    if (t->multi)
        curl_multi_cleanup(t->multi);
    pthread_mutex_destroy(&t->lock);
    dw_free(t->ca_bundle);
    dw_free(t);
}

static dw_status new_thread(dw_http_thread **out, unsigned max_active, dw_error *err)
{
    dw_http_thread *t = dw_alloc_zeroed(1, sizeof *t);
    if (!t)
        return dw_fail_memory(err, NULL);
    if (pthread_mutex_init(&t->lock, NULL) != 0) {
        dw_free(t);
        return dw_fail_memory(err, NULL);
    }
    t->max_active = max_active;
    const char *ca_bundle = dw_http_ca_bundle();
    t->ca_bundle = ca_bundle ? dw_copy_string(ca_bundle) : NULL;
    t->multi = curl_multi_init();
    if (!t->multi || (ca_bundle && !t->ca_bundle)) {
        free_thread(t);
        return dw_fail_memory(err, NULL);
    }
    curl_multi_setopt(t->multi, CURLMOPT_MAXCONNECTS, (long)max_active);
    curl_multi_setopt(t->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    int failed = pthread_create(&t->thread, NULL, run_thread, t);
    if (failed) {
        free_thread(t);
        return dw_fail(err, DW_IO, NULL, "cannot start a thread: %s", strerror(failed));
    }
    *out = t;
    return DW_OK;
}

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_ready;

static void init_curl(void)
{
    curl_ready = curl_global_init(CURL_GLOBAL_DEFAULT);
}

dw_status dw_http_init(dw_error *err)
{
    pthread_once(&curl_once, init_curl);
    if (curl_ready != CURLE_OK)
        return dw_fail(err, DW_IO, NULL, "libcurl does not start: %s",
                       curl_easy_strerror(curl_ready));
    return DW_OK;
}

dw_status dw_http_open(dw_http **out, unsigned n_connections, dw_error *err)
{
    dw_status status = dw_http_init(err);
    if (status != DW_OK)
        return status;
    if (n_connections > MAX_CONNECTIONS)
        n_connections = MAX_CONNECTIONS;
    dw_http *http = dw_alloc_zeroed(1, sizeof *http);
    if (!http)
        return dw_fail_memory(err, NULL);
    /* One thread moves about a GB/s. On one core a second thread would not help. */
    unsigned n_threads = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? MAX_THREADS : 1;
    if (n_threads > n_connections)
        n_threads = n_connections;
    for (unsigned i = 0; i < n_threads; i++) {
        unsigned share = (n_connections + n_threads - 1 - i) / n_threads;
        status = new_thread(&http->threads[i], share, err);
        if (status != DW_OK) {
            dw_http_close(http);
            return status;
        }
        http->n_threads++;
    }
    *out = http;
    return DW_OK;
}

void dw_http_close(dw_http *http)
{
    if (!http)
        return;
    for (unsigned i = 0; i < http->n_threads; i++) {
        dw_http_thread *t = http->threads[i];
        pthread_mutex_lock(&t->lock);
        t->stop = true;
        curl_multi_wakeup(t->multi); /* under the lock, because the thread that sees
                                        `stop` ends the handle */
        pthread_mutex_unlock(&t->lock);
        pthread_join(t->thread, NULL);
        free_thread(t);
    }
    dw_free(http);
}

void dw_http_submit(dw_http *http, dw_http_call *call, dw_http_inbox *inbox)
{
    /* The least busy thread, the first of equals, so that sequential requests use one
     * connection. */
    dw_http_thread *t = http->threads[0];
    for (unsigned i = 1; i < http->n_threads; i++)
        if (atomic_load(&http->threads[i]->n_calls) < atomic_load(&t->n_calls))
            t = http->threads[i];
    atomic_fetch_add(&t->n_calls, 1);
    call->inbox = inbox;
    call->thread = t;
    pthread_mutex_lock(&t->lock);
    append(&t->submitted, &t->submitted_last, call);
    pthread_mutex_unlock(&t->lock);
    curl_multi_wakeup(t->multi);
}

void dw_http_cancel(dw_http_call *call)
{
    dw_http_thread *t = call->thread;
    pthread_mutex_lock(&t->lock);
    call->cancel = true;
    t->cancels = true;
    pthread_mutex_unlock(&t->lock);
    curl_multi_wakeup(t->multi);
}
