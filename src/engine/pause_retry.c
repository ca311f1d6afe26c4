/* An engine that does not answer is asked again on a thread of its own, so that the
 * others get their versions meanwhile. While that thread runs, nobody else calls the
 * engine. The thread only pauses it, once it answers at all: a frozen engine would find
 * all the pauses that it was asked for when it wakes. Whether it may be resumed is
 * decided after the join, by what is known of its weights by then. */
#include <pthread.h>
#include <signal.h>

#include "base/clock.h"
#include "engine/engine_int.h"
#include "engine/rollout_int.h"

static void *ask_to_pause(void *context)
{
    dw_host_engine *e = context;
    static const dw_engine_update none = {.from = DW_NO_VERSION,
                                          .version = DW_NO_VERSION};
    dw_engine_info info;
    e->retry.status = dw_engine_probe(e->engine, &info, &e->retry.err);
    if (e->retry.status != DW_UNAVAILABLE)
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

void dw_host_engine_collect_retry(dw_host_engine *e)
{
    if (!e->retry.running || !atomic_load(&e->retry.done))
        return;
    pthread_join(e->retry.thread, NULL);
    e->retry.running = false;
    dw_host_engine_retried(e, e->retry.status, &e->retry.err);
}

void dw_host_engine_end_retry(dw_host_engine *e)
{
    if (e->retry.running)
        pthread_join(e->retry.thread, NULL);
    e->retry.running = false;
    dw_host_engine_give_up(e);
}
