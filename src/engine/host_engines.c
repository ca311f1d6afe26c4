/* All engines of a rollout host. Each is asked on a thread of its own: a pause takes as
 * long as the slowest of them, not as all of them together. */
#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/parallel.h"
#include "engine/engine_int.h"
#include "engine/rollout_int.h"

typedef struct job {
    dw_rollout *rollout;
    dw_host_engine_fn fn;
    void *context;
} job;

static dw_status do_engine(void *context, size_t i, unsigned worker, dw_error *err)
{
    const job *j = context;
    (void)worker;
    (void)err;
    dw_host_engine *e = &j->rollout->engines[i];
    if (!e->retry.running)
        j->fn(e, j->context);
    return DW_OK;
}

static void run_each(dw_rollout *r, dw_host_engine_fn fn, void *context)
{
    job j = {r, fn, context};
    if (r->n_engines == 0)
        return;
    /* if no thread can be started, the caller's own serves all engines */
    if (dw_parallel((unsigned)r->n_engines, r->n_engines, do_engine, &j, NULL, NULL) !=
        DW_OK)
        for (size_t i = 0; i < r->n_engines; i++)
            do_engine(&j, i, 0, NULL);
}

static void report_statuses(dw_rollout *r)
{
    for (size_t i = 0; i < r->n_engines; i++) {
        dw_host_engine *e = &r->engines[i];
        if (e->status_changed && r->options.watch.engine)
            r->options.watch.engine(r->options.watch.context, i, &e->status);
        e->status_changed = false;
    }
}

void dw_host_engines_each(dw_rollout *r, dw_host_engine_fn fn, void *context)
{
    run_each(r, fn, context);
    report_statuses(r);
}

/* ---- pause ---- */

/* Engines that are paused wait here for the others, for a while. */
typedef struct pause_order {
    const dw_engine_update *update;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t n_open; /* engines that have not answered */
} pause_order;

/* Whether all have answered in time. */
static bool wait_for_others(pause_order *p)
{
    const uint64_t until = dw_clock_ms() + DW_PAUSE_GRACE_MS;
    const struct timespec end = {.tv_sec = (time_t)(until / 1000),
                                 .tv_nsec = (long)(until % 1000) * 1000000};
    while (p->n_open > 0 && dw_clock_ms() < until)
        if (pthread_cond_timedwait(&p->changed, &p->lock, &end) != 0)
            break;
    return p->n_open == 0;
}

static void pause_engine(dw_host_engine *e, void *context)
{
    pause_order *p = context;
    if (e->part != DW_PART_FULL)
        return;
    const bool paused = dw_host_engine_pause(e, p->update);
    pthread_mutex_lock(&p->lock);
    p->n_open--;
    pthread_cond_broadcast(&p->changed);
    const bool let_go = paused && !wait_for_others(p);
    pthread_mutex_unlock(&p->lock);
    if (let_go)
        dw_host_engine_resume(e, p->update);
}

/* Pauses those that did not wait for the others. */
static void pause_again(dw_host_engine *e, void *context)
{
    const pause_order *p = context;
    if (e->part == DW_PART_FULL && e->t_resume > 0)
        dw_host_engine_pause(e, p->update);
}

/* The first engine that should be paused and is not, or NULL. */
static const dw_host_engine *find_unpaused(const dw_rollout *r)
{
    for (size_t i = 0; i < r->n_engines; i++)
        if (r->engines[i].part == DW_PART_FULL && r->engines[i].t_paused == 0)
            return &r->engines[i];
    return NULL;
}

dw_status dw_host_engines_pause(dw_rollout *r, const dw_engine_update *update,
                                dw_error *err)
{
    static const dw_engine_update none = {.from = DW_NO_VERSION,
                                          .version = DW_NO_VERSION};
    pause_order p = {.update = update ? update : &none,
                     .lock = PTHREAD_MUTEX_INITIALIZER};
    if (!dw_condition_init(&p.changed))
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < r->n_engines; i++)
        p.n_open += r->engines[i].part == DW_PART_FULL;
    dw_host_engines_each(r, pause_engine, &p);
    pthread_cond_destroy(&p.changed);
    const dw_host_engine *missing = find_unpaused(r);
    if (!missing) {
        dw_host_engines_each(r, pause_again, &p);
        missing = find_unpaused(r);
    }
    if (!missing)
        return DW_OK;
    dw_host_engine_fail(missing, err); /* before a resume changes the status */
    dw_host_engines_resume(r, update);
    return DW_UNAVAILABLE;
}

void dw_host_engines_pass_by(dw_rollout *r)
{
    for (size_t i = 0; i < r->n_engines; i++) {
        dw_host_engine *e = &r->engines[i];
        if (e->part == DW_PART_LEFT_OUT && !e->engine->own_weights)
            dw_host_engine_distrust(e, NULL);
    }
}

void dw_host_engines_collect_retries(dw_rollout *r)
{
    for (size_t i = 0; i < r->n_engines; i++)
        dw_host_engine_collect_retry(&r->engines[i]);
    report_statuses(r);
}

/* ---- apply and resume ---- */

static void apply_to_engine(dw_host_engine *e, void *context)
{
    const dw_handover *h = context;
    if (e->part == DW_PART_FULL)
        dw_host_engine_apply(e, h->update);
}

static void resume_updated(dw_host_engine *e, void *context)
{
    const dw_handover *h = context;
    if (e->part == DW_PART_FULL)
        dw_host_engine_resume(e, h->update);
}

static void hand_over(dw_host_engine *e, void *context)
{
    dw_handover *h = context;
    if (e->part != DW_PART_FULL)
        return;
    dw_host_engine_apply(e, h->update);
    const bool is_ready = e->state == DW_HOST_PAUSED;
    pthread_mutex_lock(&h->lock);
    h->n_updating--;
    h->is_ready = h->is_ready || is_ready;
    pthread_cond_broadcast(&h->changed);
    while (is_ready && !h->may_resume)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
    dw_host_engine_resume(e, h->update);
}

static void *hand_over_all(void *context)
{
    dw_handover *h = context;
    run_each(h->rollout, hand_over, h);
    return NULL;
}

void dw_handover_apply(dw_handover *h, dw_rollout *r, const dw_engine_update *update)
{
    *h = (dw_handover){.rollout = r, .update = update};
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    for (size_t i = 0; i < r->n_engines; i++)
        h->n_updating +=
            r->engines[i].part == DW_PART_FULL && !r->engines[i].retry.running;
    h->has_thread =
        h->n_updating > 1 && pthread_create(&h->thread, NULL, hand_over_all, h) == 0;
    if (!h->has_thread) {
        run_each(r, apply_to_engine, h);
        return;
    }
    pthread_mutex_lock(&h->lock);
    while (!h->is_ready && h->n_updating > 0)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

void dw_handover_resume(dw_handover *h)
{
    if (h->has_thread) {
        pthread_mutex_lock(&h->lock);
        h->may_resume = true;
        pthread_cond_broadcast(&h->changed);
        pthread_mutex_unlock(&h->lock);
        pthread_join(h->thread, NULL);
    } else {
        run_each(h->rollout, resume_updated, h);
    }
    report_statuses(h->rollout);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
}

static void resume_engine(dw_host_engine *e, void *context)
{
    dw_host_engine_resume(e, context);
}

void dw_host_engines_resume(dw_rollout *r, const dw_engine_update *update)
{
    dw_host_engines_each(r, resume_engine, (void *)update);
}
