/* An engine that does not answer a pause is asked again on a thread of its own, so that
 * the others get their versions meanwhile. While that thread runs, nobody else calls the
 * engine. The thread only pauses the engine. Whether it may be resumed is decided after
 * the join, by what is known of its weights by then. */
#include <pthread.h>
#include <signal.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/rollout.h"

static void *ask_to_pause(void *context)
{
    dw_host_engine *e = context;
    static const dw_engine_update none = {.from = DW_NO_VERSION,
                                          .version = DW_NO_VERSION};
    e->retry.status = dw_engine_pause(e->engine, &none, &e->retry.err);
    atomic_store(&e->retry.done, true);
    return NULL;
}

void dw_host_engine_retry_pause(dw_host_engine *e)
{
    if (!dw_host_engine_hangs(e) || e->retry.running || dw_clock_ms() < e->try_at)
        return;
    sigset_t all, before;
    atomic_store(&e->retry.done, false);
    sigfillset(&all); /* signals belong to the host's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    e->retry.running = pthread_create(&e->retry.thread, NULL, ask_to_pause, e) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

bool dw_host_engine_collect_retry(dw_host_engine *e)
{
    if (!e->retry.running || !atomic_load(&e->retry.done))
        return false;
    pthread_join(e->retry.thread, NULL);
    e->retry.running = false;
    if (e->retry.status == DW_OK)
        dw_host_engine_paused_late(e);
    else
        dw_host_engine_back_off(e);
    return e->retry.status == DW_OK;
}

void dw_host_engine_end_retry(dw_host_engine *e)
{
    if (e->retry.running)
        pthread_join(e->retry.thread, NULL);
    e->retry.running = false;
    dw_host_engine_give_up(e);
}
