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
    dw_member_fn fn;
    void *context;
} job;

static dw_status do_member(void *context, size_t i, unsigned worker, dw_error *err)
{
    const job *j = context;
    (void)worker;
    (void)err;
    dw_member *m = &j->rollout->members[i];
    if (!m->nurse.is_there)
        j->fn(m, j->context);
    return DW_OK;
}

void dw_crew_each(dw_rollout *r, dw_member_fn fn, void *context)
{
    job j = {r, fn, context};
    if (r->n_members == 0)
        return;
    /* where no thread can be had the caller's own does them all: none is left out */
    if (dw_parallel((unsigned)r->n_members, r->n_members, do_member, &j, NULL, NULL) !=
        DW_OK)
        for (size_t i = 0; i < r->n_members; i++)
            do_member(&j, i, 0, NULL);
    for (size_t i = 0; i < r->n_members; i++) {
        dw_member *m = &r->members[i];
        if (m->is_news && r->options.watch.engine)
            r->options.watch.engine(r->options.watch.context, i, &m->status);
        m->is_news = false;
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
    const uint64_t until = dw_clock_ms() + DW_CREW_GRACE_MS;
    const struct timespec end = {.tv_sec = (time_t)(until / 1000),
                                 .tv_nsec = (long)(until % 1000) * 1000000};
    while (p->n_open > 0 && dw_clock_ms() < until)
        if (pthread_cond_timedwait(&p->changed, &p->lock, &end) != 0)
            break;
    return p->n_open == 0;
}

static void pause_member(dw_member *m, void *context)
{
    pause_order *p = context;
    m->let_go = false;
    if (!dw_member_counts(m))
        return;
    const bool paused =
        dw_member_pause(m, p->order.update, p->order.rollout->options.patience_ms);
    pthread_mutex_lock(&p->lock);
    p->n_open--;
    pthread_cond_broadcast(&p->changed);
    m->let_go = paused && !wait_for_others(p);
    pthread_mutex_unlock(&p->lock);
    if (m->let_go)
        dw_member_resume(m, p->order.update);
}

static void pause_again(dw_member *m, void *context)
{
    const order *o = context;
    if (m->let_go)
        dw_member_pause(m, o->update, o->rollout->options.patience_ms);
}

/* The first that counts and did not pause, or NULL. */
static const dw_member *find_unpaused(const dw_rollout *r)
{
    for (size_t i = 0; i < r->n_members; i++)
        if (dw_member_counts(&r->members[i]) && r->members[i].t_paused == 0)
            return &r->members[i];
    return NULL;
}

static void resume_member(dw_member *m, void *context)
{
    const order *o = context;
    dw_member_resume(m, o->update);
}

static void take_over_member(dw_member *m, void *context)
{
    const order *o = context;
    if (dw_member_counts(m))
        dw_member_take_over(m, o->update, o->rollout->options.n_tries);
}

dw_status dw_crew_pause(dw_rollout *r, const dw_engine_update *update, dw_error *err)
{
    static const dw_engine_update none = {.from = DW_NO_VERSION,
                                          .version = DW_NO_VERSION};
    pause_order p = {.order = {r, update ? update : &none},
                     .lock = PTHREAD_MUTEX_INITIALIZER};
    if (!dw_condition_init(&p.changed))
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < r->n_members; i++)
        p.n_open += dw_member_counts(&r->members[i]);
    dw_crew_each(r, pause_member, &p);
    pthread_cond_destroy(&p.changed);
    const dw_member *missing = find_unpaused(r);
    if (!missing) {
        dw_crew_each(r, pause_again, &p.order);
        missing = find_unpaused(r);
    }
    if (!missing)
        return DW_OK;
    dw_member_fail(missing, err); /* before a resume has something else to say */
    dw_crew_resume(r, update);
    return DW_UNAVAILABLE;
}

static void resume_nursed(dw_member *m, void *context)
{
    (void)context;
    if (m->nurse.has_paused)
        dw_member_resume(m, NULL);
    m->nurse.has_paused = false;
}

void dw_crew_take_nursed(dw_rollout *r)
{
    for (size_t i = 0; i < r->n_members; i++)
        dw_member_take_nursed(&r->members[i]);
    dw_crew_each(r, resume_nursed, NULL);
}

void dw_crew_take_over(dw_rollout *r, const dw_engine_update *update)
{
    order o = {r, update};
    dw_crew_each(r, take_over_member, &o);
}

void dw_crew_resume(dw_rollout *r, const dw_engine_update *update)
{
    order o = {r, update};
    dw_crew_each(r, resume_member, &o);
}
