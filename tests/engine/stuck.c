/* Engines that freeze, and agents that are killed, with real processes: no engine waits
 * for a frozen one, and none with whole weights is left paused.
 *
 *     stuck
 *
 * Engines check all they serve (weights.h). Nothing is timed: what does not come within
 * five minutes does not come. */
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/rollout.h"
#include "engine/engine_http.h"
#include "soak/process.h"
#include "soak/truth.h"
#include "find_patch.h"
#include "port.h"
#include "trainer.h"

enum { N_ENGINES = 2, HANG_MS = 300000 };

static struct {
    trainer trainer;
    char into[SOAK_PATH], nowhere[SOAK_PATH];
    pid_t engines[N_ENGINES], agent;
    char urls[N_ENGINES][64], specs[N_ENGINES][80];
    bool good;
} run = {.good = true};

/* ---- processes ---- */

static void start_engine(size_t i)
{
    char port[16];
    const unsigned number = port_find((unsigned)getpid() * 7 + (unsigned)i);
    snprintf(port, sizeof port, "%u", number);
    snprintf(run.urls[i], sizeof run.urls[i], "http://127.0.0.1:%u", number);
    snprintf(run.specs[i], sizeof run.specs[i], "vllm=%s", run.urls[i]);
    const char *argv[] = {"--port",          port,        "--dir", run.into, "--truth",
                          run.trainer.truth, "--own-copy"};
    run.engines[i] = soak_start_program(HTTP_ENGINE, argv, sizeof argv / sizeof *argv);
}

static void start_follow(const char *store)
{
    const char *argv[] = {"follow",     store,        "--into",   run.into,
                          "--engine",   run.specs[0], "--engine", run.specs[1],
                          "--interval", "0.2",        "--quiet",  "--threads",
                          "1"};
    run.agent = soak_start_program(getenv("DELTAWIRE"), argv, sizeof argv / sizeof *argv);
}

/* An agent that kills itself when PHASE begins. */
static void start_agent(dw_phase phase)
{
    char number[8];
    snprintf(number, sizeof number, "%d", (int)phase);
    setenv("AGENT_LAST_PHASE", number, 1);
    const char *argv[] = {run.trainer.store, run.into,    "5000", "0",
                          run.specs[0],      run.specs[1]};
    run.agent = soak_start_program(AGENT_PROGRAM, argv, sizeof argv / sizeof *argv);
    unsetenv("AGENT_LAST_PHASE");
}

static void end_agent(int number)
{
    if (run.agent == 0)
        return;
    kill(run.agent, number);
    waitpid(run.agent, NULL, 0);
    run.agent = 0;
}

/* ---- engines ---- */

/* Asks an engine. False if it does not answer. */
static bool ask(size_t i, const char *path, dw_engine_answer *answer)
{
    dw_engine_http http;
    dw_engine_options options = {.probe_ms = 2000};
    dw_engine_question question = {"GET", path, NULL, options.probe_ms, ""};
    const bool good = dw_engine_http_init(&http, run.urls[i], &options, NULL) == DW_OK &&
                      dw_engine_ask(&http, &question, answer, NULL) == DW_OK;
    dw_engine_http_release(&http);
    return good;
}

/* The version that it names, or -1. */
static int64_t version_of(size_t i)
{
    dw_engine_answer answer = {0};
    int64_t version = -1;
    if (ask(i, "/test/status", &answer))
        dw_json_integer(dw_json_get(answer.body, "version"), &version);
    dw_json_free(answer.body);
    return version;
}

static bool serves(size_t i)
{
    dw_engine_answer answer = {0};
    bool is_paused = true;
    if (ask(i, "/is_paused", &answer))
        dw_json_bool(dw_json_get(answer.body, "is_paused"), &is_paused);
    dw_json_free(answer.body);
    return !is_paused && version_of(i) >= 0;
}

static bool is_alive(pid_t pid)
{
    return pid != 0 && waitpid(pid, NULL, WNOHANG) == 0;
}

/* Waits until engine I is at LEAST and serves. */
static void wait_for(size_t i, int64_t least, const char *what)
{
    const uint64_t begun = soak_now_ms();
    while (run.good && (version_of(i) < least || !serves(i))) {
        if (soak_now_ms() > begun + HANG_MS || !is_alive(run.engines[i])) {
            printf("%s: engine %zu is at %" PRIi64 ", serves: %d\n", what, i,
                   version_of(i), serves(i));
            run.good = false;
        }
        soak_sleep_ms(20);
    }
}

/* ---- the tests ---- */

/* One engine is frozen, before the agent starts or while it works. The other goes on; and
 * the frozen one, too, when it wakes. */
static void freeze(bool before)
{
    const char *what = before ? "frozen before the agent" : "frozen";
    if (before)
        end_agent(SIGKILL);
    kill(run.engines[0], SIGSTOP);
    if (before)
        start_follow(run.trainer.store);
    wait_for(1, version_of(1) + 5, what);
    const int64_t reached = version_of(1);
    kill(run.engines[0], SIGCONT);
    wait_for(0, reached, what);
    wait_for(1, reached, what);
}

/* Overwrites the patch file in the directory, whose path is OUT then. */
static bool damage_patch(char out[PATH_MAX])
{
    struct stat st;
    FILE *file = find_patch(out, run.into) ? fopen(out, "r+b") : NULL;
    if (!file || fstat(fileno(file), &st) != 0)
        return false;
    for (off_t k = 0; k < st.st_size; k++)
        fputc(0x5a, file);
    return fclose(file) == 0;
}

/* An agent is killed at the beginning of PHASE. If DAMAGED, its patch is garbage when the
 * next one starts; else the store is away then. In both cases the engines serve. */
static void kill_at(dw_phase phase, bool damaged)
{
    char what[64], patch[PATH_MAX] = "";
    snprintf(what, sizeof what, "killed in phase %d, %s", (int)phase,
             damaged ? "patch damaged" : "store away");
    start_agent(phase);
    waitpid(run.agent, NULL, 0);
    run.agent = 0;
    if (damaged && !damage_patch(patch)) {
        printf("%s: there is no patch\n", what);
        run.good = false;
    }
    start_follow(damaged ? run.trainer.store : run.nowhere);
    for (size_t i = 0; i < N_ENGINES; i++)
        wait_for(i, 0, what);
    end_agent(SIGTERM);
    for (size_t i = 0; i < N_ENGINES; i++)
        wait_for(i, 0, what);
    if (damaged)
        unlink(patch); /* the weights beside it are whole */
}

/* An agent is killed while its stores may be half done, and then one engine freezes. The
 * next agent finishes the stores, and the other engine goes on. */
static void kill_and_freeze(void)
{
    static const char what[] = "frozen, with stores to finish";
    start_agent(DW_PHASE_APPLY);
    waitpid(run.agent, NULL, 0);
    kill(run.engines[0], SIGSTOP);
    start_follow(run.trainer.store);
    wait_for(1, version_of(1) + 5, what);
    const int64_t reached = version_of(1);
    kill(run.engines[0], SIGCONT);
    wait_for(0, reached, what);
    wait_for(1, reached, what);
    end_agent(SIGTERM);
}

int main(void)
{
    if (!getenv("DELTAWIRE")) {
        fprintf(stderr, "usage: DELTAWIRE=PROGRAM stuck\n");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (access("/dev/shm", W_OK) == 0)
        setenv("SOAK_ROOT", "/dev/shm", 0);
    soak_begin();
    soak_store_url(run.trainer.store, "stream");
    soak_store_url(run.nowhere, "nowhere");
    soak_subdir(run.into, "into");
    soak_subdir(run.trainer.spool, "spool");
    snprintf(run.trainer.truth, sizeof run.trainer.truth, "%s/truth", soak_dir);
    run.trainer.seed = 1;
    run.trainer.n_versions = 60000;
    run.trainer.pace_ms = 300;
    run.good = trainer_start(&run.trainer);
    for (size_t i = 0; i < N_ENGINES; i++)
        start_engine(i);
    start_follow(run.trainer.store);
    for (size_t i = 0; i < N_ENGINES; i++)
        wait_for(i, 2, "started");
    freeze(false);
    freeze(true);
    end_agent(SIGTERM);
    kill_and_freeze();
    for (int damaged = 0; run.good && damaged < 2; damaged++)
        for (dw_phase phase = DW_PHASE_PAUSE; run.good && phase <= DW_PHASE_FINISH;
             phase++)
            kill_at(phase, damaged);
    end_agent(SIGTERM);
    trainer_end(&run.trainer);
    for (size_t i = 0; i < N_ENGINES; i++) {
        int status = 0;
        kill(run.engines[i], SIGTERM);
        if (waitpid(run.engines[i], &status, 0) == run.engines[i] &&
            !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
            printf("engine %zu ended with %x\n", i, (unsigned)status);
            run.good = false;
        }
    }
    return soak_end(run.good);
}
