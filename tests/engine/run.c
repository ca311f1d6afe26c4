/* Publishes versions while agents and engines are killed at random instants, and while
 * the engines fail by themselves. What they serve is checked all the time (weights.h). In
 * the end all hold the last version bit for bit.
 *
 *     run vllm|sglang VERSIONS
 *
 *     SEED=n         repeats the choices of a run, but not its timing
 *     SOAK_KEEP=1    keeps logs and directories
 *
 * There are two engines. At each start, an engine decides whether it reads the directory
 * in place or has a copy. One agent in four is `deltawire follow`, the others sync
 * without rest. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "deltawire/checkpoint.h"
#include "engine/engine_http.h"
#include "mishap.h"
#include "port.h"
#include "soak/process.h"
#include "soak/truth.h"
#include "trainer.h"

enum { N_ENGINES = 2, AGENT = N_ENGINES, N_ACTORS, HANG_MS = 300000 };

typedef struct actor {
    pid_t pid; /* 0: not running */
    uint64_t start_at, kill_at;
    bool ending; /* it was asked to end */
    unsigned port;
    char url[64], spec[80], dump[SOAK_PATH];
} actor;

static struct {
    const char *api;
    uint64_t n_versions, seed, luck, slowness;
    char into[SOAK_PATH], updates[SOAK_PATH];
    trainer trainer;
    actor actors[N_ACTORS];
    uint64_t n_killed, n_died;
    bool calm, good;
} run = {.good = true};

/* ---- actors ---- */

static uint64_t draw(uint64_t n)
{
    return soak_below(&run.luck, n);
}

static void start_engine(actor *a)
{
    char port[16], seed[32];
    snprintf(port, sizeof port, "%u", a->port);
    snprintf(seed, sizeof seed, "%" PRIu64, soak_random(&run.luck));
    const char *argv[32] = {"--port",          port,       "--dir", run.into, "--truth",
                            run.trainer.truth, "--api",    run.api, "--dump", a->dump,
                            "--updates",       run.updates};
    size_t n = 12;
    if (draw(2))
        argv[n++] = "--own-copy";
    if (!run.calm) {
        const char *rates[] = {"--seed",   seed,  "--failures", "3", "--deaths",  "3",
                               "--delays", "150", "--long",     "1", "--long-ms", "600"};
        memcpy(argv + n, rates, sizeof rates);
        n += sizeof rates / sizeof *rates;
    }
    a->pid = soak_start_program(HTTP_ENGINE, argv, n);
}

static void start_agent(actor *a)
{
    const char *const specs[] = {run.actors[0].spec, run.actors[1].spec};
    if (run.calm || draw(4) == 0) {
        const char *argv[] = {"follow",   run.trainer.store,  "--into",   run.into,
                              "--engine", specs[0],           "--engine", specs[1],
                              "--quiet",  "--engine-timeout", "5",        "--interval",
                              "0.2",      "--threads",        "1"};
        a->pid =
            soak_start_program(getenv("DELTAWIRE"), argv, sizeof argv / sizeof *argv);
    } else {
        char seed[32];
        snprintf(seed, sizeof seed, "%" PRIu64, 1 + draw(UINT32_MAX));
        const char *argv[] = {run.trainer.store, run.into, "400", seed,
                              specs[0],          specs[1]};
        a->pid = soak_start_program(AGENT_PROGRAM, argv, 6);
    }
}

static void start(size_t i)
{
    actor *a = &run.actors[i];
    if (i == AGENT)
        start_agent(a);
    else
        start_engine(a);
    a->ending = false;
    a->kill_at = UINT64_MAX;
    if (!run.calm && draw(8) > 0)
        a->kill_at = soak_now_ms() + run.slowness * (20 + draw(i == AGENT ? 900 : 1300));
}

/* Whether the actor has ended. Prints an end that was not planned. */
static bool has_ended(size_t i)
{
    actor *a = &run.actors[i];
    int status;
    if (a->pid == 0 || waitpid(a->pid, &status, WNOHANG) != a->pid)
        return false;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    const bool planned = i != AGENT && code == DEATH_BY_PLAN;
    if (!killed && !planned && !(a->ending && code == 0)) {
        printf("%s %zu (process %d) ended with %s %d\n", i == AGENT ? "agent" : "engine",
               i, (int)a->pid, code < 0 ? "signal" : "status",
               code < 0 ? WTERMSIG(status) : code);
        run.good = false;
    }
    run.n_killed += killed;
    run.n_died += planned;
    a->pid = 0;
    a->start_at = a->ending ? UINT64_MAX : soak_now_ms() + draw(2) * draw(40);
    return true;
}

static void look_after(void)
{
    for (size_t i = 0; i < N_ACTORS; i++) {
        actor *a = &run.actors[i];
        has_ended(i);
        if (a->pid == 0 && soak_now_ms() >= a->start_at)
            start(i);
        else if (a->pid != 0 && soak_now_ms() >= a->kill_at)
            kill(a->pid, SIGKILL);
    }
    soak_sleep_ms(1);
}

/* ---- the end ---- */

/* Whether the engine has served the last version for a while. */
static bool has_newest(const actor *a)
{
    dw_engine_http http;
    dw_engine_options options = {.probe_ms = 2000};
    dw_engine_question question = {"GET", "/test/status", NULL, options.probe_ms, ""};
    dw_engine_answer answer = {0};
    uint64_t version = UINT64_MAX, n_sweeps = 0;
    if (dw_engine_http_init(&http, a->url, &options, NULL) == DW_OK &&
        dw_engine_ask(&http, &question, &answer, NULL) == DW_OK &&
        dw_json_unsigned(dw_json_get(answer.body, "version"), &version))
        dw_json_unsigned(dw_json_get(answer.body, "sweeps"), &n_sweeps);
    dw_json_free(answer.body);
    dw_engine_http_release(&http);
    return version == run.n_versions && n_sweeps >= 10;
}

static void quieten(void)
{
    const uint64_t begun = soak_now_ms();
    run.calm = true;
    for (size_t i = 0; i < N_ACTORS; i++) {
        actor *a = &run.actors[i];
        a->kill_at = i == AGENT ? begun : UINT64_MAX; /* `follow` replaces it */
    }
    bool is_quiet = false;
    while (!is_quiet && run.good) {
        look_after();
        for (size_t i = 0; i < N_ENGINES; i++)
            if (run.actors[i].pid != 0)
                kill(run.actors[i].pid,
                     SIGUSR1); /* again, because it may have just started */
        is_quiet = has_newest(&run.actors[0]) && has_newest(&run.actors[1]);
        if (soak_now_ms() > begun + HANG_MS) {
            printf("the engines do not serve the last version\n");
            run.good = false;
        }
    }
}

static void end_all(void)
{
    const uint64_t asked = soak_now_ms();
    bool left = true;
    for (size_t i = N_ACTORS; i-- > 0;) {
        actor *a = &run.actors[i];
        a->ending = true;
        a->start_at = UINT64_MAX;
        a->kill_at = run.good ? asked + HANG_MS : asked;
        if (a->pid != 0)
            kill(a->pid, run.good ? SIGTERM : SIGKILL);
    }
    while (left) {
        look_after();
        left = false;
        for (size_t i = 0; i < N_ACTORS; i++)
            left = left || run.actors[i].pid != 0;
    }
}

static bool is_last(const char *path)
{
    dw_checkpoint *ckpt;
    dw_error err = {0};
    if (dw_checkpoint_open(&ckpt, path, DW_CHECKPOINT_READ, &err) != DW_OK) {
        printf("%s: %s\n", err.where, err.text);
        return false;
    }
    size_t n;
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n);
    bool good = soak_is_step(tensors, n, run.seed, run.n_versions);
    if (!good)
        printf("%s does not hold the last version\n", path);
    dw_checkpoint_close(ckpt);
    return good;
}

/* How many updates the engines took: `p` for a patch, `s` for a snapshot. */
static void count_updates(uint64_t *n_patches, uint64_t *n_snapshots)
{
    FILE *file = fopen(run.updates, "r");
    *n_patches = *n_snapshots = 0;
    for (int c; file && (c = fgetc(file)) != EOF;) {
        *n_patches += c == 'p';
        *n_snapshots += c == 's';
    }
    if (file)
        fclose(file);
}

/* Whether the engines took so few updates that the run shows nothing. */
static bool has_few_updates(void)
{
    uint64_t n_patches, n_snapshots;
    count_updates(&n_patches, &n_snapshots);
    return n_patches + n_snapshots < run.n_versions / 20;
}

/* ---- the run ---- */

static void prepare(void)
{
    soak_store_url(run.trainer.store, "stream");
    soak_subdir(run.into, "into");
    soak_subdir(run.trainer.spool, "spool");
    snprintf(run.trainer.truth, sizeof run.trainer.truth, "%s/truth", soak_dir);
    snprintf(run.updates, sizeof run.updates, "%s/updates", soak_dir);
    for (size_t i = 0; i < N_ENGINES; i++) {
        actor *a = &run.actors[i];
        a->port = port_find(draw(10000));
        snprintf(a->url, sizeof a->url, "http://127.0.0.1:%u", a->port);
        snprintf(a->spec, sizeof a->spec, "%s=%s", run.api, a->url);
        snprintf(a->dump, sizeof a->dump, "%s/engine-%zu.safetensors", soak_dir, i);
    }
}

int main(int argc, char **argv)
{
    const char *sanitizer = getenv("DW_SANITIZE");
    if (argc != 3 || !getenv("DELTAWIRE")) {
        fprintf(stderr, "usage: DELTAWIRE=PROGRAM run vllm|sglang VERSIONS\n");
        return 1;
    }
    const uint64_t begun = soak_now_ms();
    run.api = argv[1];
    run.n_versions = strtoull(argv[2], NULL, 10);
    run.seed = soak_env("SEED", (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32);
    run.luck = run.seed;
    run.slowness = sanitizer && *sanitizer ? 4 : 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("SEED=%" PRIu64 "\n", run.seed);
    signal(SIGUSR1, SIG_IGN); /* inherited by the engines until they handle it */
    if (access("/dev/shm", W_OK) == 0)
        setenv("SOAK_ROOT", "/dev/shm", 0); /* for weights that are mapped */
    soak_begin();
    prepare();
    run.trainer.seed = run.seed;
    run.trainer.n_versions = run.n_versions;
    run.trainer.pace_ms = run.slowness * (run.n_versions < 200 ? 60 : 30);
    run.good = trainer_start(&run.trainer);
    /* on a slow machine the engines have taken few versions by then, so it goes on */
    while (run.good && (trainer_works(&run.trainer) ||
                        (has_few_updates() && soak_now_ms() < begun + HANG_MS)))
        look_after();
    run.good = trainer_end(&run.trainer) && run.good;
    const uint64_t published_at = soak_now_ms();
    if (run.good)
        quieten();
    const uint64_t quiet_at = soak_now_ms();
    end_all();
    run.good = run.good && is_last(run.into) && is_last(run.actors[0].dump) &&
               is_last(run.actors[1].dump);
    if (run.good && has_few_updates()) {
        printf("too few updates\n");
        run.good = false;
    }
    uint64_t n_patches, n_snapshots;
    count_updates(&n_patches, &n_snapshots);
    printf("%" PRIu64 " versions in %" PRIu64 " s, quiet %" PRIu64 " ms later; %" PRIu64
           " killed, %" PRIu64 " died; engines took %" PRIu64 " patches and %" PRIu64
           " snapshots\n",
           run.n_versions, (published_at - begun) / 1000, quiet_at - published_at,
           run.n_killed, run.n_died, n_patches, n_snapshots);
    if (!run.good)
        printf("FAILED; to repeat: SEED=%" PRIu64 "\n", run.seed);
    return soak_end(run.good);
}
