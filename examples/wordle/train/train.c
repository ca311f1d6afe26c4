/* wordle-train: asynchronous reinforcement learning. It is connected to the sampling
 * machines only by a stream of weights in a store, and by text over HTTP.
 *
 *     players --> queue --> batch --> GRPO --> AdamW --> publish --+
 *        ^                                                         |
 *        +-- rollout servers <-- follow <-- bucket <---------------+
 *
 * Nobody waits: players sample with any version that the servers have, and a batch is
 * made of the available groups.
 */
#include <curl/curl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "grpo.h"
#include "player.h"
#include "program.h"
#include "run.h"
#include "warmup.h"

static const char help[] =
    "usage: wordle-train --store URL --state DIR --env URL --server URL...\n"
    "\n"
    "Trains a small model to play Wordle, and publishes every step as a version of the\n"
    "stream at the store. Guesses are sampled by rollout servers that follow it,\n"
    "games are judged by the environment; samples are taken as they come, with the\n"
    "versions that they were sampled with (asynchronous GRPO). Started again with the\n"
    "same --state and --store it continues.\n"
    "\n"
    "  --store URL       of the stream: file:///DIR, s3://BUCKET/PREFIX, hf://...\n"
    "  --state DIR       masters, moments and the copy of the newest version\n"
    "  --env URL         wordle-env\n"
    "  --server URL      wordle-rollout; again for further ones\n"
    "  --metrics FILE    append a line of JSON for each event, and print progress\n"
    "                    (default: print those lines)\n"
    "\n"
    "  --warmup N        supervised steps on random games first (800)\n"
    "  --steps N         steps of reinforcement learning (500)\n"
    "  --groups N        groups of games a step (8)\n"
    "  --games N         games of a group, for the same answer (8)\n"
    "  --seed N          of weights, games and warm-up (1)\n"
    "  --no-sync         publish nothing after the warm-up, to see what that costs\n"
    "  --evaluate N      play N groups with the first weights, and with the last (0)\n"
    "\n"
    "Example:\n"
    "  wordle-train --store s3://bucket/wordle --state /var/tmp/train \\\n"
    "      --env http://127.0.0.1:8100 --server http://10.0.0.7:8000 \\\n"
    "      --server http://10.0.0.8:8000 --metrics train.jsonl\n";

enum {
    MAX_GROUPS = PLAYERS_MAX_QUEUED,
    MAX_LAG = 8, /* steps; older samples are dropped */
    N_PLAYERS = 4,
    WARMUP_GAMES = 32,
    WARMUP_PUBLISH_EVERY = 25, /* steps */
};

#define LEARNING_RATE 4e-4f

static struct {
    const char *store, *state, *env, *metrics;
    const char *servers[PLAYERS_MAX_SERVERS];
    size_t n_servers;
    uint64_t n_warmup, n_steps, n_groups, n_games, n_evaluate, seed;
    bool no_sync;
} args = {.n_warmup = 800, .n_steps = 500, .n_groups = 8, .n_games = 8, .seed = 1};

/* ---- the warm-up ---- */

static dw_status warm_up(run *r, dw_error *err)
{
    static words list;
    uint64_t random = args.seed + model_trainer_steps(r->trainer);
    dw_status status = DW_OK;
    words_read(&list);
    for (uint64_t step = model_trainer_steps(r->trainer) + 1;
         status == DW_OK && step <= args.n_warmup && !run_stopped(r); step++) {
        double norm = 0;
        const bool publish = step % WARMUP_PUBLISH_EVERY == 0 || step == args.n_warmup;
        const double loss = warmup_backward(r->trainer, &list, WARMUP_GAMES, &random);
        status = run_step(r, warmup_rate(step - 1, args.n_warmup), publish, "warmup",
                          step, &norm, err);
        if (publish) {
            json_t *line = json_pack("{s:I}", "step", (json_int_t)step);
            run_put(line, "loss", loss);
            run_put(line, "norm", norm);
            run_log(r, "warmup", line);
            run_say(r, true, "warm-up step %" PRIu64 "  loss %.3f", step, loss);
        }
    }
    return status == DW_OK ? run_settle(r, err) : status;
}

/* ---- learning by playing ---- */

typedef struct lesson {
    run *run;
    players *who;
    uint64_t first_version; /* older samples are from before the warm-up's end */
    played_group *groups[MAX_GROUPS];
    size_t n_groups;
    uint64_t n_dropped;
    double lag, most_lag; /* steps between a group and the weights it moves */
    double waited_s;
    uint64_t told; /* failures of players that were reported */
} lesson;

/* Whether a group is useless: from before the warm-up's end, of a foreign version, or too
 * old. Without syncing all groups are too old. */
static bool is_refused(const lesson *l, const played_group *group, uint64_t lag)
{
    return group->version < l->first_version ||
           group->version > dw_publisher_version(l->run->publisher) + 1 ||
           lag == UINT64_MAX || (!args.no_sync && lag > MAX_LAG);
}

/* Reports failures of servers or of the environment. */
static void tell_failures(lesson *l)
{
    dw_error last;
    uint64_t n = players_failures(l->who, &last);
    if (n == l->told)
        return;
    run_log(l->run, "trouble",
            json_pack("{s:I, s:s, s:s}", "failures", (json_int_t)n, "where", last.where,
                      "text", last.text));
    run_say(l->run, true, "%s: %s", last.where, last.text);
    l->told = n;
}

/* Waits until there are N groups, or a signal asks to stop. */
static void gather(lesson *l, size_t n)
{
    const double began_s = run_seconds(l->run);
    l->n_dropped = 0;
    l->lag = l->most_lag = 0;
    while (l->n_groups < n && !run_stopped(l->run)) {
        played_group *group = players_take(l->who, 500);
        tell_failures(l);
        if (!group)
            continue;
        const uint64_t lag = run_lag(l->run, group->version);
        if (is_refused(l, group, lag)) {
            l->n_dropped++;
            free(group);
            continue;
        }
        l->groups[l->n_groups++] = group;
        l->lag += (double)lag / (double)n;
        l->most_lag = fmax(l->most_lag, (double)lag);
    }
    l->waited_s = run_seconds(l->run) - began_s;
}

static void forget(lesson *l)
{
    for (size_t i = 0; i < l->n_groups; i++)
        free(l->groups[i]);
    l->n_groups = 0;
}

/* Adds the results of games. */
static void put_games(json_t *line, const grpo_report *r)
{
    json_object_set_new(line, "games", json_integer((json_int_t)r->n_games));
    run_put(line, "reward", r->reward);
    run_put(line, "win_rate", r->win_rate);
    run_put(line, "guesses", r->guesses);
    run_put(line, "invalid_rate", r->invalid_rate);
    run_put(line, "consistent_rate", r->consistent_rate);
}

static void log_step(lesson *l, uint64_t step, const grpo_report *r, double norm)
{
    json_t *line =
        json_pack("{s:I, s:I, s:I, s:I}", "step", (json_int_t)step, "tokens",
                  (json_int_t)r->n_tokens, "sequences", (json_int_t)r->n_sequences,
                  "dropped", (json_int_t)l->n_dropped);
    put_games(line, r);
    run_put(line, "entropy", r->entropy);
    run_put(line, "ratio", r->ratio);
    run_put(line, "ratio_off", r->ratio_off);
    run_put(line, "clip_rate", r->clip_rate);
    run_put(line, "norm", norm);
    run_put(line, "lag", l->lag);
    run_put(line, "max_lag", l->most_lag);
    run_put(line, "waited_s", l->waited_s);
    run_log(l->run, "step", line);
    run_say(l->run, true,
            "step %4" PRIu64 "  reward %5.2f  won %3.0f %%  no words %3.0f %%  samples "
            "%.1f steps old  version %" PRIu64,
            step, r->reward, 100 * r->win_rate, 100 * r->invalid_rate, l->lag,
            dw_publisher_version(l->run->publisher));
}

static dw_status learn_step(lesson *l, uint64_t step, dw_error *err)
{
    grpo_report report;
    double norm = 0;
    gather(l, args.n_groups);
    if (l->n_groups < args.n_groups)
        return DW_OK; /* asked to stop */
    dw_status status =
        grpo_backward(l->run->trainer, l->groups, l->n_groups, &report, err);
    if (status == DW_OK)
        status = run_step(l->run, LEARNING_RATE, !args.no_sync, "step", step, &norm, err);
    if (status == DW_OK)
        log_step(l, step, &report, norm);
    forget(l);
    return status;
}

/* Evaluates the weights, WHEN: only games of the newest version. */
static void evaluate(lesson *l, const char *when)
{
    run *r = l->run;
    l->first_version = dw_publisher_version(r->publisher);
    gather(l, args.n_evaluate);
    if (l->n_groups == args.n_evaluate && args.n_evaluate > 0) {
        grpo_report report;
        json_t *line = json_pack("{s:s}", "when", when);
        grpo_count(&report, l->groups, l->n_groups);
        put_games(line, &report);
        run_log(r, "evaluation", line);
        run_say(r, false, "%s: %zu games, reward %.2f, %.1f %% won", when, report.n_games,
                report.reward, 100 * report.win_rate);
    }
    forget(l);
}

static dw_status learn(run *r, dw_error *err)
{
    const uint64_t trained = model_trainer_steps(r->trainer);
    const player_options options = {
        .env = args.env,
        .servers = args.servers,
        .n_servers = args.n_servers,
        .n_threads = N_PLAYERS,
        .n_games = args.n_games,
        .n_queued = args.n_groups,
        .seed = args.seed * 1000003u + trained,
        .stream = dw_publisher_stream_id(r->publisher),
    };
    lesson l = {.run = r, .first_version = dw_publisher_version(r->publisher)};
    dw_status status = players_start(&l.who, &options, err);
    uint64_t step = trained > args.n_warmup ? trained - args.n_warmup : 0;
    if (status == DW_OK && step == 0)
        evaluate(&l, "after the warm-up");
    const uint64_t n_sent = r->n_sent, n_bytes = r->n_bytes, n_changed = r->n_changed;
    while (status == DW_OK && step < args.n_steps && !run_stopped(r))
        status = learn_step(&l, ++step, err);
    if (status == DW_OK && args.no_sync)
        status = run_publish(r, "evaluated", model_trainer_steps(r->trainer), err);
    if (status == DW_OK)
        status = run_settle(r, err);
    if (status == DW_OK && r->n_changed > n_changed)
        run_say(r, false,
                "%" PRIu64
                " versions: %.0f bytes each, %.0f as whole models; %.2f bits a "
                "change, %.1f %% of the weights change",
                r->n_sent - n_sent,
                (double)(r->n_bytes - n_bytes) / (double)(r->n_sent - n_sent),
                2.0 * MODEL_PARAMS,
                8 * (double)(r->n_bytes - n_bytes) / (double)(r->n_changed - n_changed),
                100 * (double)(r->n_changed - n_changed) / (double)(r->n_sent - n_sent) /
                    MODEL_PARAMS);
    if (status == DW_OK)
        evaluate(&l, "after the last step");
    players_stop(l.who);
    forget(&l);
    return status;
}

/* ---- all of it ---- */

static dw_status train(run *r, dw_error *err)
{
    char state[17] = "";
    dw_status status = warm_up(r, err);
    if (status == DW_OK && !run_stopped(r))
        status = learn(r, err);
    if (status == DW_OK)
        status = run_save(r, err);
    if (status == DW_OK)
        status = run_digest(r, state, err);
    if (status == DW_OK) {
        dw_publisher_drain(r->publisher, NULL); /* errors of folds do no harm */
        run_log(r, "end",
                json_pack("{s:I, s:s, s:b, s:I}", "version",
                          (json_int_t)dw_publisher_version(r->publisher), "state", state,
                          "stopped", r->stopped, "trained",
                          (json_int_t)model_trainer_steps(r->trainer)));
        run_say(r, false, "trained: version %" PRIu64 " digest %s",
                dw_publisher_version(r->publisher), state);
    }
    return status;
}

static void add_server(const char *url)
{
    if (args.n_servers == PLAYERS_MAX_SERVERS)
        program_misused("wordle-train", "there are too many --server");
    args.servers[args.n_servers++] = url;
}

int main(int argc, char **argv)
{
    static run r; /* large */
    dw_error err = {0};
    const program_option options[] = {
        {.name = "store", .text = &args.store},
        {.name = "state", .text = &args.state},
        {.name = "env", .text = &args.env},
        {.name = "server", .each = add_server},
        {.name = "metrics", .text = &args.metrics},
        {.name = "warmup", .number = &args.n_warmup, .max = 1000000},
        {.name = "steps", .number = &args.n_steps, .max = 1000000},
        {.name = "groups", .number = &args.n_groups, .min = 1, .max = MAX_GROUPS},
        {.name = "games", .number = &args.n_games, .min = 2, .max = GROUP_MAX_GAMES},
        {.name = "evaluate", .number = &args.n_evaluate, .max = MAX_GROUPS},
        {.name = "seed", .number = &args.seed, .max = UINT32_MAX},
        {.name = "no-sync", .flag = &args.no_sync},
    };
    program_options("wordle-train", help, options, sizeof options / sizeof *options, argc,
                    argv);
    if (!args.store || !args.state || !args.env || args.n_servers == 0)
        program_misused("wordle-train",
                        "--store, --state, --env and --server are needed");
    program_block_signals();
    curl_global_init(CURL_GLOBAL_ALL);
    dw_status status =
        run_open(&r, args.store, args.state, args.metrics, args.seed, &err);
    if (status == DW_OK)
        status = train(&r, &err);
    run_close(&r);
    curl_global_cleanup();
    return status == DW_OK ? 0 : program_fail("wordle-train", &err);
}
