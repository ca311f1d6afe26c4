/* The engines of a rollout host together. Each is asked on a thread of its own: a pause
 * is as long as the slowest of them, not as all of them. */
#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/parallel.h"
#include "engine/rollout.h"

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

void dw_host_engines_each(dw_rollout *r, dw_host_engine_fn fn, void *context)
{
    job j = {r, fn, context};
    if (r->n_engines == 0)
        return;
    /* where no thread can be had the caller's own does them all: none is left out */
    if (dw_parallel((unsigned)r->n_engines, r->n_engines, do_engine, &j, NULL, NULL) !=
        DW_OK)
        for (size_t i = 0; i < r->n_engines; i++)
            do_engine(&j, i, 0, NULL);
    for (size_t i = 0; i < r->n_engines; i++) {
        dw_host_engine *e = &r->engines[i];
        if (e->is_news && r->options.watch.engine)
            r->options.watch.engine(r->options.watch.context, i, &e->status);
        e->is_news = false;
    }
}

typedef struct order {
    const dw_rollout *rollout;
    const dw_engine_update *update;
} order;

/* The same for a pause: those who are done wait for the others here, for a while. */
typedef struct pause_order {
    order order;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t n_open; /* that have not answered */
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
    e->let_go = false;
    if (!dw_host_engine_counts(e))
        return;
    const bool paused =
        dw_host_engine_pause(e, p->order.update, p->order.rollout->options.patience_ms);
    pthread_mutex_lock(&p->lock);
    p->n_open--;
    pthread_cond_broadcast(&p->changed);
    e->let_go = paused && !wait_for_others(p);
    pthread_mutex_unlock(&p->lock);
    if (e->let_go)
        dw_host_engine_resume(e, p->order.update);
}

static void pause_again(dw_host_engine *e, void *context)
{
    const order *o = context;
    if (e->let_go)
        dw_host_engine_pause(e, o->update, o->rollout->options.patience_ms);
}

/* The first that counts and did not pause, or NULL. */
static const dw_host_engine *find_unpaused(const dw_rollout *r)
{
    for (size_t i = 0; i < r->n_engines; i++)
        if (dw_host_engine_counts(&r->engines[i]) && r->engines[i].t_paused == 0)
            return &r->engines[i];
    return NULL;
}

static void resume_engine(dw_host_engine *e, void *context)
{
    const order *o = context;
    dw_host_engine_resume(e, o->update);
}

static void take_over_engine(dw_host_engine *e, void *context)
{
    const order *o = context;
    if (dw_host_engine_counts(e))
        dw_host_engine_take_over(e, o->update, o->rollout->options.n_tries);
}

dw_status dw_host_engines_pause(dw_rollout *r, const dw_engine_update *update,
                                dw_error *err)
{
    static const dw_engine_update none = {.from = DW_NO_VERSION,
                                          .version = DW_NO_VERSION};
    pause_order p = {.order = {r, update ? update : &none},
                     .lock = PTHREAD_MUTEX_INITIALIZER};
    if (!dw_condition_init(&p.changed))
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < r->n_engines; i++)
        p.n_open += dw_host_engine_counts(&r->engines[i]);
    dw_host_engines_each(r, pause_engine, &p);
    pthread_cond_destroy(&p.changed);
    const dw_host_engine *missing = find_unpaused(r);
    if (!missing) {
        dw_host_engines_each(r, pause_again, &p.order);
        missing = find_unpaused(r);
    }
    if (!missing)
        return DW_OK;
    dw_host_engine_fail(missing, err); /* before a resume has something else to say */
    dw_host_engines_resume(r, update);
    return DW_UNAVAILABLE;
}

static void resume_retried(dw_host_engine *e, void *context)
{
    (void)context;
    if (e->retry.has_paused)
        dw_host_engine_resume(e, NULL);
    e->retry.has_paused = false;
}

void dw_host_engines_collect_retries(dw_rollout *r)
{
    for (size_t i = 0; i < r->n_engines; i++)
        dw_host_engine_collect_retry(&r->engines[i]);
    dw_host_engines_each(r, resume_retried, NULL);
}

void dw_host_engines_take_over(dw_rollout *r, const dw_engine_update *update)
{
    order o = {r, update};
    dw_host_engines_each(r, take_over_engine, &o);
}

void dw_host_engines_resume(dw_rollout *r, const dw_engine_update *update)
{
    order o = {r, update};
    dw_host_engines_each(r, resume_engine, &o);
}
