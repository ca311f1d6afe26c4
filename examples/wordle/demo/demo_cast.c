#include "demo_cast.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"

enum { START_MS = 180000, GRACE_MS = 10000 };

typedef char path[DEMO_PATH_BYTES];

static dw_status make_dir(const char *name, dw_error *err)
{
    if (mkdir(name, 0777) == 0 || errno == EEXIST)
        return DW_OK;
    return wordle_fail(err, DW_IO, name, "cannot be made: %s", strerror(errno));
}

static void number(char out[24], uint64_t n)
{
    snprintf(out, 24, "%" PRIu64, n);
}

void demo_cast_weights(const demo_cast *c, size_t i, char out[DEMO_PATH_BYTES])
{
    snprintf(out, DEMO_PATH_BYTES, "%s/rollout-%zu", c->dir, i);
}

/* ---- the roles ---- */

/* HOST and the port of URL, or any port if that is not known yet: a restarted process
 * listens at the same address. */
static void listen_on(path out, const char *host, const char *url)
{
    const char *port = strrchr(url, ':');
    snprintf(out, sizeof(path), "%s%s", host, port ? port : ":0");
}

static dw_status start_env(demo_cast *c, dw_error *err)
{
    path program, listen;
    char answers[24];
    snprintf(program, sizeof program, "%s/wordle-env", c->programs);
    listen_on(listen, c->options->env_host, c->env_url);
    number(answers, c->options->n_answers);
    char *argv[] = {program, "--listen", listen, "--answers", answers, NULL};
    dw_status status = demo_start(&c->env, c->dir, "env", c->options->on_env, argv, err);
    return status == DW_OK ? demo_address(&c->env, "listening on", c->env_url,
                                          DEMO_URL_BYTES, START_MS, err)
                           : status;
}

static dw_status start_rollout(demo_cast *c, size_t i, dw_error *err)
{
    path program, listen, control, weights, model;
    char name[32];
    demo_process *p = &c->rollouts[i];
    snprintf(program, sizeof program, "%s/wordle-rollout", c->programs);
    listen_on(listen, c->options->rollout_host, c->rollout_urls[i]);
    listen_on(control, "127.0.0.1", c->control_urls[i]);
    snprintf(model, sizeof model, "%s/model", c->dir);
    snprintf(name, sizeof name, "rollout-%zu", i);
    demo_cast_weights(c, i, weights);
    char *argv[] = {program,    "--weights", weights,     "--model", model,
                    "--listen", listen,      "--control", control,   NULL};
    dw_status status = demo_start(p, c->dir, name, c->options->on_rollouts, argv, err);
    if (status == DW_OK)
        status = demo_address(p, "listening on", c->rollout_urls[i], DEMO_URL_BYTES,
                              START_MS, err);
    if (status == DW_OK)
        status = demo_address(p, "controlled on", c->control_urls[i], DEMO_URL_BYTES,
                              START_MS, err);
    return status;
}

static dw_status start_agent(demo_cast *c, size_t i, dw_error *err)
{
    path weights, engine;
    char name[32];
    snprintf(engine, sizeof engine, "vllm=%s", c->control_urls[i]);
    snprintf(name, sizeof name, "agent-%zu", i);
    demo_cast_weights(c, i, weights);
    char *argv[] = {c->deltawire,  "follow",
                    c->store,      "--into",
                    weights,       "--engine",
                    engine,        "--listen",
                    "127.0.0.1:0", "--interval",
                    "0.2",         "--engine-check",
                    "1",           "--engine-patience",
                    "5",           "--threads",
                    "1",           "--id",
                    name,          "--json",
                    NULL};
    return demo_start(&c->agents[i], c->dir, name, c->options->on_rollouts, argv, err);
}

static dw_status start_trainer(demo_cast *c, dw_error *err)
{
    const demo_options *o = c->options;
    path program, model, state, metrics;
    char warmup[24], steps[24], seed[24];
    snprintf(program, sizeof program, "%s/wordle-train", c->programs);
    snprintf(model, sizeof model, "%s/model", c->dir);
    snprintf(state, sizeof state, "%s/trainer", c->dir);
    snprintf(metrics, sizeof metrics, "%s/train.jsonl", c->dir);
    number(warmup, o->n_warmup);
    number(steps, o->n_steps);
    number(seed, o->seed);
    char *argv[DEMO_MAX_ARGUMENTS] = {
        program, "--model",   model,   "--store", c->store,   "--state",
        state,   "--metrics", metrics, "--env",   c->env_url, "--warmup",
        warmup,  "--steps",   steps,   "--seed",  seed};
    size_t n = 0;
    while (argv[n])
        n++;
    for (size_t i = 0; i < o->n_servers; i++) {
        argv[n++] = "--server";
        argv[n++] = c->rollout_urls[i];
    }
    argv[n++] = "--evaluate";
    argv[n++] = "16";
    if (o->no_sync)
        argv[n++] = "--no-sync";
    if (o->lr) {
        argv[n++] = "--lr";
        argv[n++] = (char *)(uintptr_t)o->lr;
    }
    return demo_start(&c->trainer, c->dir, "trainer", o->on_trainer, argv, err);
}

/* ---- all ---- */

/* The other programs are in the directory of this one. */
static dw_status find_programs(demo_cast *c, dw_error *err)
{
    path self;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = NULL;
    if (n > 0) {
        self[n] = '\0';
        slash = strrchr(self, '/');
    }
    if (!slash || (size_t)(slash - self) >= sizeof c->programs)
        return wordle_fail(err, DW_IO, "/proc/self/exe", "cannot be read");
    *slash = '\0';
    memcpy(c->programs, self, (size_t)(slash - self) + 1);
    int n_path = c->options->deltawire ? snprintf(c->deltawire, sizeof c->deltawire, "%s",
                                                  c->options->deltawire)
                                       : snprintf(c->deltawire, sizeof c->deltawire,
                                                  "%s/../../deltawire", c->programs);
    if (n_path >= (int)sizeof c->deltawire)
        return wordle_fail(err, DW_INVALID, c->deltawire, "is too long a path");
    return DW_OK;
}

/* The store is emptied at the end, so its name must not be truncated: it could be another
 * store's. */
static dw_status name_store(demo_cast *c, dw_error *err)
{
    int n = c->options->store
                ? snprintf(c->store, sizeof c->store, "%s/%s", c->options->store,
                           strrchr(c->dir, '/') + 1)
                : snprintf(c->store, sizeof c->store, "file://%s/bucket", c->dir);
    if (n >= 0 && (size_t)n < sizeof c->store)
        return DW_OK;
    c->store[0] = '\0';
    return wordle_fail(err, DW_INVALID, "--store", "is longer than %zu characters",
                       sizeof c->store - 32);
}

dw_status demo_cast_prepare(demo_cast *c, const demo_options *options, const char *dir,
                            dw_error *err)
{
    *c = (demo_cast){.options = options};
    if (snprintf(c->dir, sizeof c->dir, "%s", dir) >= (int)sizeof c->dir)
        return wordle_fail(err, DW_INVALID, dir, "is too long a path: set TMPDIR");
    dw_status status = name_store(c, err);
    if (status == DW_OK)
        status = find_programs(c, err);
    path program, model;
    char seed[24];
    snprintf(program, sizeof program, "%s/wordle-train", c->programs);
    snprintf(model, sizeof model, "%s/model", dir);
    number(seed, options->seed);
    char *argv[] = {program, "--init", model, "--seed", seed, NULL};
    if (status == DW_OK)
        status = demo_run(dir, "init", "", argv, err);
    for (size_t i = 0; status == DW_OK && i < options->n_servers; i++) {
        path weights;
        demo_cast_weights(c, i, weights);
        status = make_dir(weights, err);
    }
    return status;
}

dw_status demo_cast_start(demo_cast *c, dw_error *err)
{
    dw_status status = start_env(c, err);
    for (size_t i = 0; status == DW_OK && i < c->options->n_servers; i++)
        status = start_rollout(c, i, err);
    for (size_t i = 0; status == DW_OK && i < c->options->n_servers; i++)
        status = start_agent(c, i, err);
    return status == DW_OK ? start_trainer(c, err) : status;
}

static bool is_numbered(const char *name, size_t n_name, const char *role, size_t i)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%s-%zu", role, i);
    return (size_t)n == n_name && memcmp(text, name, n_name) == 0;
}

dw_status demo_cast_kill(demo_cast *c, const char *name, size_t n_name, dw_error *err)
{
    if (n_name == strlen("trainer") && memcmp(name, "trainer", n_name) == 0) {
        demo_kill_now(&c->trainer);
        return start_trainer(c, err);
    }
    if (n_name == strlen("env") && memcmp(name, "env", n_name) == 0) {
        demo_kill_now(&c->env);
        return start_env(c, err);
    }
    for (size_t i = 0; i < c->options->n_servers; i++) {
        if (is_numbered(name, n_name, "rollout", i)) {
            demo_kill_now(&c->rollouts[i]);
            return start_rollout(c, i, err);
        }
        if (is_numbered(name, n_name, "agent", i)) {
            demo_kill_now(&c->agents[i]);
            return start_agent(c, i, err);
        }
    }
    return wordle_fail(err, DW_INVALID, name, "is nobody here that could be killed");
}

demo_process *demo_cast_missing(demo_cast *c)
{
    if (!demo_runs(&c->env))
        return &c->env;
    for (size_t i = 0; i < c->options->n_servers; i++) {
        if (!demo_runs(&c->rollouts[i]))
            return &c->rollouts[i];
        if (!demo_runs(&c->agents[i]))
            return &c->agents[i];
    }
    return NULL;
}

void demo_cast_end(demo_cast *c)
{
    demo_process *all[2 * DEMO_MAX_SERVERS + 2] = {&c->trainer};
    size_t n = 1;
    demo_end(all, 1, GRACE_MS);
    n = 0;
    for (size_t i = 0; i < c->options->n_servers; i++) {
        all[n++] = &c->agents[i];
        all[n++] = &c->rollouts[i];
    }
    all[n++] = &c->env;
    demo_end(all, n, GRACE_MS);
}
