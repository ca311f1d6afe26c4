/* The engines of a rollout host together. Each is asked on a thread of its own: a pause
 * is as long as the slowest of them, not as all of them. */
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
    j->fn(&j->rollout->members[i], j->context);
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
            fn(&r->members[i], context);
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

static void pause_member(dw_member *m, void *context)
{
    const order *o = context;
    if (dw_member_counts(m))
        dw_member_pause(m, o->update, o->rollout->options.patience_ms);
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
    order o = {r, update ? update : &none};
    dw_crew_each(r, pause_member, &o);
    for (size_t i = 0; i < r->n_members; i++) {
        const dw_member *m = &r->members[i];
        if (!dw_member_counts(m) || m->t_paused > 0)
            continue;
        dw_member_fail(m, err); /* before a resume has something else to say */
        dw_crew_resume(r, update);
        return DW_UNAVAILABLE;
    }
    return DW_OK;
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
