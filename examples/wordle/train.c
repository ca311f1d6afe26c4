/* wordle-train: asynchronous reinforcement learning, whose only tie to the machines that
 * sample is a stream of weights in a store, and text over HTTP.
 *
 *     players --> queue --> batch --> GRPO --> AdamW --> publish --+
 *        ^                                                         |
 *        +-- rollout servers <-- follow <-- bucket <---------------+
 *
 * Nobody waits for anybody: players sample with whatever version the servers have, and a
 * batch is made of what is there.
 */
#include <curl/curl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "grpo.h"
#include "http_client.h"
#include "init_model.h"
#include "player.h"
#include "program.h"
#include "train_run.h"
#include "warmup.h"

enum {
    WARMUP_GAMES = 32,
    WARMUP_PUBLISH_EVERY = 25, /* steps */
    MAX_GROUPS = 1024,
    ENV_PATIENCE_MS = 30000,
};

/* ---- the words ---- */

static dw_status take_words(words *out, const json_t *answer, const char *url,
                            dw_error *err)
{
    const json_t *list = json_object_get(answer, "words"), *text;
    size_t n = json_array_size(list), i;
    if (n == 0 || n > MAX_WORDS)
        return wordle_fail(err, DW_INVALID, url, "answers without words");
    out->list = calloc(n, sizeof *out->list);
    if (!out->list)
        return wordle_fail(err, DW_NO_MEMORY, url, "out of memory");
    json_array_foreach(list, i, text)
    {
        const char *letters = json_string_value(text);
        if (!letters || strlen(letters) != WORD_LETTERS ||
            strspn(letters, "abcdefghijklmnopqrstuvwxyz") != WORD_LETTERS)
            return wordle_fail(err, DW_INVALID, url, "answers with what is no word");
        memcpy(out->list[out->n++], letters, sizeof(word));
    }
    return DW_OK;
}

/* From the environment, which may still be starting. */
static dw_status fetch_words(train_run *run, words *out, dw_error *err)
{
    char url[1024];
    snprintf(url, sizeof url, "%s/words", run->options->env);
    http_client *client = NULL;
    dw_status status = http_client_new(&client, NULL, err);
    if (status != DW_OK)
        return status;
    json_t *answer = NULL;
    const uint64_t began_ms = program_clock_ms();
    do {
        status = http_client_ask(client, "GET", url, NULL, 5000, &answer, err);
        if (status == DW_UNAVAILABLE)
            http_client_pause(client, 200);
    } while (status == DW_UNAVAILABLE && !train_run_stopped(run) &&
             program_clock_ms() - began_ms < ENV_PATIENCE_MS);
    if (status == DW_OK)
        status = take_words(out, answer, url, err);
    json_decref(answer);
    http_client_free(client);
    return status;
}

/* ---- the warm-up ---- */

static dw_status save_now_and_then(train_run *run, dw_error *err)
{
    return qwen_trainer_steps(run->trainer) % run->options->save_every == 0
               ? train_run_save(run, err)
               : DW_OK;
}

/* Settles, steps, and publishes where PUBLISH; what LINE says gets what became of the
 * version before. */
static dw_status step_and_publish(train_run *run, float lr, bool publish,
                                  const char *kind, uint64_t number, double *norm,
                                  json_t *line, dw_error *err)
{
    const qwen_adamw adamw = {lr, 0.9f, 0.95f, 1e-8f, 0.0f, 1.0f};
    dw_status status = train_run_settle(run, line, err);
    if (status != DW_OK)
        return status;
    *norm = (double)qwen_trainer_step(run->trainer, &adamw);
    return publish ? train_run_publish(run, kind, number, err) : DW_OK;
}

static dw_status warm_up_with(train_run *run, warmup *w, dw_error *err)
{
    const train_options *o = run->options;
    dw_status status = DW_OK;
    for (uint64_t step = qwen_trainer_steps(run->trainer);
         status == DW_OK && step < o->n_warmup && !train_run_stopped(run); step++) {
        double loss, norm = 0;
        const float done = (float)step / (float)o->n_warmup;
        const float rise = step < 20 ? (float)(step + 1) / 20 : 1;
        const bool publish =
            (step + 1) % WARMUP_PUBLISH_EVERY == 0 || step + 1 == o->n_warmup;
        json_t *line = json_object();
        status = warmup_backward(w, run->trainer, &loss, err);
        if (status == DW_OK)
            status = step_and_publish(run, o->warmup_lr * rise * (1 - 0.9f * done),
                                      publish, "warmup", step + 1, &norm, line, err);
        if (status == DW_OK && publish) {
            json_t *what = json_pack("{s:I, s:f, s:f}", "step", (json_int_t)step + 1,
                                     "loss", loss, "norm", norm);
            json_object_update(line, what);
            json_decref(what);
            metrics_write(run->log, "warmup", json_incref(line));
        }
        json_decref(line);
        if (status == DW_OK)
            status = save_now_and_then(run, err);
    }
    return status;
}

static dw_status warm_up(train_run *run, dw_error *err)
{
    const train_options *o = run->options;
    if (qwen_trainer_steps(run->trainer) >= o->n_warmup)
        return DW_OK;
    words list = {0};
    warmup *w = NULL;
    dw_status status = fetch_words(run, &list, err);
    if (status == DW_OK)
        status = warmup_new(&w, &list, run->tok, WARMUP_GAMES,
                            o->seed + qwen_trainer_steps(run->trainer), err);
    if (status == DW_OK)
        status = warm_up_with(run, w, err);
    warmup_free(w);
    free(list.list);
    json_t *line = json_object();
    if (status == DW_OK)
        status = train_run_settle(run, line, err);
    if (status == DW_OK)
        metrics_write(run->log, "warm", json_incref(line));
    json_decref(line);
    return status;
}

/* ---- reinforcement learning ---- */

typedef struct lesson {
    train_run *run;
    group_queue *queue;
    players *who;
    uint64_t first_version; /* older samples are of before the warm-up's end */
    played_group *groups[MAX_GROUPS];
    size_t n_groups;
    uint64_t n_dropped;
    double lag, most_lag; /* versions between a group and the weights it moves */
    double waited_s;
    json_t *line;  /* of the step before, until its version is settled */
    uint64_t told; /* failures of players */
} lesson;

static uint64_t lag_of(lesson *l, const played_group *group)
{
    const uint64_t newest = versions_newest(l->run->stream);
    return newest > group->version ? newest - group->version : 0;
}

/* A store, a server or an environment that fails is waited for; it is said once. */
static void tell_failures(lesson *l)
{
    dw_error last;
    uint64_t n = players_failures(l->who, &last);
    if (n == l->told)
        return;
    metrics_write(l->run->log, "trouble",
                  json_pack("{s:I, s:s, s:s}", "failures", (json_int_t)n, "where",
                            last.where, "text", last.text));
    l->told = n;
}

static void gather(lesson *l)
{
    const train_options *o = l->run->options;
    const double began_s = metrics_seconds(l->run->log);
    l->n_dropped = 0;
    l->lag = l->most_lag = 0;
    while (l->n_groups < o->n_groups && !train_run_stopped(l->run)) {
        played_group *group = group_queue_pop(l->queue, 500);
        if (!group) {
            tell_failures(l);
            continue;
        }
        const uint64_t lag = lag_of(l, group);
        if (group->version < l->first_version || lag > o->max_lag) {
            l->n_dropped++;
            free(group);
            continue;
        }
        l->groups[l->n_groups++] = group;
        l->lag += (double)lag / (double)o->n_groups;
        l->most_lag = (double)lag > l->most_lag ? (double)lag : l->most_lag;
    }
    l->waited_s = metrics_seconds(l->run->log) - began_s;
}

static void forget(lesson *l)
{
    for (size_t i = 0; i < l->n_groups; i++)
        free(l->groups[i]);
    l->n_groups = 0;
}

static json_t *line_of(lesson *l, uint64_t step, const grpo_report *r, double norm)
{
    json_t *line = json_pack(
        "{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "step", (json_int_t)step,
        "reward", r->reward, "win_rate", r->win_rate, "guesses", r->guesses,
        "invalid_rate", r->invalid_rate, "entropy", r->entropy, "ratio", r->ratio,
        "ratio_off", r->ratio_off, "clip_rate", r->clip_rate, "norm", norm);
    json_t *more =
        json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "games", (json_int_t)r->n_games,
                  "tokens", (json_int_t)r->n_tokens, "sequences",
                  (json_int_t)r->n_sequences, "dropped", (json_int_t)l->n_dropped, "lag",
                  l->lag, "max_lag", l->most_lag, "waited_s", l->waited_s);
    json_object_update(line, more);
    json_decref(more);
    return line;
}

/* The line of a step is written when its version is settled, a step later. */
static void write_line(lesson *l)
{
    if (l->line)
        metrics_write(l->run->log, "step", l->line);
    l->line = NULL;
}

static dw_status learn_step(lesson *l, uint64_t step, dw_error *err)
{
    const train_options *o = l->run->options;
    const grpo_options clip = {0.2f, 0.28f};
    grpo_report report;
    double norm = 0;
    gather(l);
    if (l->n_groups < o->n_groups)
        return DW_OK; /* asked to stop */
    dw_status status =
        grpo_backward(l->run->trainer, &clip, l->groups, l->n_groups, &report, err);
    json_t *none = l->line ? NULL : json_object();
    if (status == DW_OK)
        status = step_and_publish(l->run, o->lr, !o->no_sync, "step", step, &norm,
                                  l->line ? l->line : none, err);
    json_decref(none);
    write_line(l);
    if (status == DW_OK)
        l->line = line_of(l, step, &report, norm);
    forget(l);
    tell_failures(l);
    return status == DW_OK ? save_now_and_then(l->run, err) : status;
}

static dw_status learn(train_run *run, dw_error *err)
{
    const train_options *o = run->options;
    const uint64_t trained = qwen_trainer_steps(run->trainer);
    const player_options options = {
        .env = o->env,
        .servers = o->servers,
        .n_servers = o->n_servers,
        .n_threads = o->n_players,
        .n_games = o->n_games,
        .seed = o->seed * 1000003u + trained,
        .tok = run->tok,
    };
    lesson *l = calloc(1, sizeof *l);
    if (!l)
        return wordle_fail(err, DW_NO_MEMORY, "learning", "out of memory");
    l->run = run;
    l->first_version = versions_newest(run->stream);
    l->queue = group_queue_new(o->n_groups);
    dw_status status = l->queue
                           ? players_start(&l->who, &options, l->queue, err)
                           : wordle_fail(err, DW_NO_MEMORY, "a queue", "out of memory");
    uint64_t step = trained > o->n_warmup ? trained - o->n_warmup : 0;
    while (status == DW_OK && step < o->n_steps && !train_run_stopped(run))
        status = learn_step(l, ++step, err);
    players_stop(l->who);
    if (status == DW_OK && l->line)
        status = train_run_settle(run, l->line, err);
    write_line(l);
    forget(l);
    group_queue_free(l->queue);
    free(l);
    return status;
}

static dw_status train(train_run *run, dw_error *err)
{
    char state[17] = "";
    dw_status status = warm_up(run, err);
    if (status == DW_OK && !train_run_stopped(run))
        status = learn(run, err);
    if (status == DW_OK)
        status = train_run_save(run, err);
    if (status == DW_OK)
        status = train_run_digest(run, state, err);
    if (status == DW_OK) {
        versions_drain(run->stream);
        metrics_write(run->log, "end",
                      json_pack("{s:I, s:s, s:b, s:I}", "version",
                                (json_int_t)versions_newest(run->stream), "state", state,
                                "stopped", run->stopped, "trained",
                                (json_int_t)qwen_trainer_steps(run->trainer)));
    }
    return status;
}

int main(int argc, char **argv)
{
    const train_options options = train_options_read(argc, argv);
    train_run run = {0};
    dw_error err = {0};
    dw_status status;
    program_block_signals();
    if (options.init_dir) {
        status = init_model(options.init_dir, options.n_hidden, options.n_layers,
                            options.seed, &err);
    } else {
        curl_global_init(CURL_GLOBAL_ALL);
        status = train_run_open(&run, &options, &err);
        if (status == DW_OK)
            status = train(&run, &err);
        train_run_close(&run);
        curl_global_cleanup();
    }
    return status == DW_OK ? 0 : program_fail("wordle-train", &err);
}
