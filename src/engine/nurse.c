/* An engine that does not answer a pause is asked again on a thread of its own, so that
 * the others get their versions meanwhile. While that thread runs, nobody else calls the
 * engine. The thread only pauses it: whether it may be resumed is decided after the join,
 * by what is known of its weights by then. */
#include <pthread.h>
#include <signal.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/rollout.h"

static void *ask_to_pause(void *context)
{
    dw_member *m = context;
    static const dw_engine_update none = {.from = DW_NO_VERSION,
                                          .version = DW_NO_VERSION};
    m->nurse.status = dw_engine_pause(m->engine, &none, &m->nurse.err);
    atomic_store(&m->nurse.done, true);
    return NULL;
}

void dw_member_nurse(dw_member *m)
{
    if (!m->hung || m->nurse.is_there || dw_clock_ms() < m->try_at)
        return;
    sigset_t all, before;
    atomic_store(&m->nurse.done, false);
    sigfillset(&all); /* signals are the host's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    m->nurse.is_there = pthread_create(&m->nurse.thread, NULL, ask_to_pause, m) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void dw_member_take_nursed(dw_member *m)
{
    if (!m->nurse.is_there || !atomic_load(&m->nurse.done))
        return;
    pthread_join(m->nurse.thread, NULL);
    m->nurse.is_there = false;
    m->nurse.has_paused = m->nurse.status == DW_OK;
    if (m->nurse.has_paused)
        dw_member_mends(m);
    else
        dw_member_rests(m);
}

void dw_member_end_nurse(dw_member *m)
{
    if (m->nurse.is_there)
        pthread_join(m->nurse.thread, NULL);
    m->nurse.is_there = m->hung =
        false; /* it is resumed like the others, if it is whole */
}
