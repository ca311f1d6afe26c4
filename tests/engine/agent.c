/* A rollout host that syncs without a pause, unlike `deltawire follow`, which waits:
 *
 *     agent STORE DIR LIMIT_MS SEED SPEC...
 *
 * It runs until SIGTERM, or until it kills itself: at the beginning of a random phase, or
 * a few milliseconds later, or at that of the phase AGENT_LAST_PHASE. Exit status: 0, or
 * 2 after an error that waiting cannot cure. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "engine/rollout.h"
#include "soak/process.h"
#include "soak/role.h"
#include "soak/truth.h"

#define T_REST_MS  2
#define T_CHECK_MS 20
#define N_PHASES   150  /* one in so many is the last */
#define T_LAST_US  4000 /* the longest time from its beginning to the kill */

static volatile sig_atomic_t is_over;

static void end(int number)
{
    (void)number;
    is_over = 1;
}

static uint64_t luck;

static void die(int number)
{
    (void)number;
    kill(getpid(), SIGKILL);
}

static void begin_phase(void *context, dw_phase phase, uint64_t version)
{
    const char *last = getenv("AGENT_LAST_PHASE");
    (void)context;
    (void)version;
    if (last && phase == (dw_phase)atoi(last))
        die(0);
    if (luck == 0 || phase == DW_PHASE_IDLE || soak_below(&luck, N_PHASES) > 0)
        return;
    const long wait_us = (long)soak_below(&luck, 2) * (long)soak_below(&luck, T_LAST_US);
    if (wait_us == 0)
        die(0);
    signal(SIGALRM, die);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {.tv_usec = wait_us}}, NULL);
}

/* Prints an error, unless it is the same as the last one. */
static void report(const char *action, dw_status status, const dw_error *err)
{
    static char last[DW_ERROR_TEXT_SIZE];
    if (strcmp(last, err->text) == 0)
        return;
    strcpy(last, err->text);
    soak_say(action, status, err);
}

static dw_status run(dw_rollout *rollout)
{
    uint64_t checked_at = 0;
    dw_status status = DW_OK;
    while (!is_over && (status == DW_OK || status == DW_UNAVAILABLE)) {
        dw_error err = {0};
        status = dw_rollout_sync(rollout, DW_NEWEST, NULL, &err);
        if (status != DW_OK)
            report("sync", status, &err);
        else if (soak_now_ms() >= checked_at + T_CHECK_MS) {
            status = dw_rollout_check(rollout, &err);
            checked_at = soak_now_ms();
            if (status != DW_OK)
                report("check", status, &err);
        }
        soak_sleep_ms(T_REST_MS);
    }
    return status == DW_UNAVAILABLE ? DW_OK : status;
}

int main(int argc, char **argv)
{
    dw_engine *engines[DW_MAX_ENGINES] = {0};
    dw_store *store;
    dw_error err = {0};
    if (argc < 6 || argc - 5 > DW_MAX_ENGINES)
        return 1;
    signal(SIGTERM, end);
    luck = strtoull(argv[4], NULL, 10);
    const unsigned limit_ms = (unsigned)strtoul(argv[3], NULL, 10);
    const dw_engine_options engine_options = {
        .pause_ms = limit_ms, .apply_ms = limit_ms, .probe_ms = limit_ms};
    dw_status status = soak_store_open(&store, argv[1], &err);
    dw_rollout_options options = {0};
    for (; status == DW_OK && options.n_engines < (size_t)argc - 5; options.n_engines++)
        status = dw_engine_open(&engines[options.n_engines], argv[5 + options.n_engines],
                                &engine_options, &err);
    options.engines = engines;
    options.watch.phase = begin_phase;
    dw_follow_options follow;
    dw_follow_options_init(&follow);
    follow.into = argv[2];
    follow.n_threads = 1;
    dw_rollout *rollout = NULL;
    while (status == DW_OK && !rollout && !is_over) {
        status = dw_rollout_open(&rollout, store, &follow, &options, &err);
        if (status != DW_OK)
            report("open", status, &err);
        if (status == DW_UNAVAILABLE)
            status = DW_OK;
        if (!rollout)
            soak_sleep_ms(T_REST_MS);
    }
    if (rollout)
        status = run(rollout);
    dw_rollout_close(rollout);
    for (size_t i = 0; i < options.n_engines; i++)
        dw_engine_close(engines[i]);
    dw_store_close(store);
    return status == DW_OK ? SOAK_FINE : SOAK_FAULT;
}
