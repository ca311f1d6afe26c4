#include "train_learn.h"

#include <stdlib.h>

#include "fail.h"
#include "grpo.h"
#include "player.h"
#include "program.h"

enum { MAX_GROUPS = 1024, PUBLISH_AGAIN_MS = 1000 };

typedef struct lesson {
    train_run *run;
    group_queue *queue;
    players *who;
    uint64_t first_version; /* older samples are from before the warm-up's end */
    played_group *groups[MAX_GROUPS];
    size_t n_groups;
    uint64_t n_dropped;
    double lag, most_lag; /* steps between a group and the weights it moves */
    double waited_s;
    uint64_t tried_ms; /* when a version that failed was last begun again */
    json_t *line;      /* of the step before, until its version is committed or failed */
    uint64_t told;     /* failures of players that were reported */
} lesson;

/* Whether a group is useless: from before the warm-up's end, of a foreign version, or too
 * old. Without syncing all groups are too old. */
static bool is_refused(const lesson *l, const played_group *group, uint64_t lag)
{
    const train_options *o = l->run->options;
    return group->version < l->first_version ||
           group->version > versions_newest(l->run->stream) + 1 || lag == UINT64_MAX ||
           (!o->no_sync && lag > o->max_lag);
}

/* While a version fails the servers stay behind, and soon all their samples are too old.
 * So it is published again before the next step. */
static dw_status keep_publishing(lesson *l, dw_error *err)
{
    const uint64_t now_ms = program_clock_ms();
    if (!l->run->unsettled || now_ms - l->tried_ms < PUBLISH_AGAIN_MS)
        return DW_OK;
    l->tried_ms = now_ms;
    json_t *line = l->line ? json_incref(l->line) : json_object();
    dw_status status = train_run_publish_again(l->run, line, err);
    json_decref(line);
    return status;
}

/* Waits for a store, a server or an environment that fails; reports it once. */
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

/* Waits until there are N groups, or a signal asks to stop. */
static dw_status gather(lesson *l, size_t n, dw_error *err)
{
    dw_status status = DW_OK;
    const double began_s = metrics_seconds(l->run->log);
    l->n_dropped = 0;
    l->lag = l->most_lag = 0;
    l->tried_ms = program_clock_ms();
    while (status == DW_OK && l->n_groups < n && !train_run_stopped(l->run)) {
        played_group *group = group_queue_pop(l->queue, 500);
        status = keep_publishing(l, err);
        if (!group) {
            tell_failures(l);
            continue;
        }
        const uint64_t lag = train_run_lag(l->run, group->version);
        if (is_refused(l, group, lag)) {
            l->n_dropped++;
            free(group);
            continue;
        }
        l->groups[l->n_groups++] = group;
        l->lag += (double)lag / (double)n;
        l->most_lag = (double)lag > l->most_lag ? (double)lag : l->most_lag;
    }
    l->waited_s = metrics_seconds(l->run->log) - began_s;
    return status;
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
    metrics_put(line, "reward", r->reward);
    metrics_put(line, "win_rate", r->win_rate);
    metrics_put(line, "guesses", r->guesses);
    metrics_put(line, "invalid_rate", r->invalid_rate);
    metrics_put(line, "consistent_rate", r->consistent_rate);
}

static json_t *line_of(lesson *l, uint64_t step, const grpo_report *r, double norm)
{
    json_t *line =
        json_pack("{s:I, s:I, s:I, s:I}", "step", (json_int_t)step, "tokens",
                  (json_int_t)r->n_tokens, "sequences", (json_int_t)r->n_sequences,
                  "dropped", (json_int_t)l->n_dropped);
    put_games(line, r);
    metrics_put(line, "entropy", r->entropy);
    metrics_put(line, "ratio", r->ratio);
    metrics_put(line, "ratio_off", r->ratio_off);
    metrics_put(line, "clip_rate", r->clip_rate);
    metrics_put(line, "norm", norm);
    metrics_put(line, "lag", l->lag);
    metrics_put(line, "max_lag", l->most_lag);
    metrics_put(line, "waited_s", l->waited_s);
    return line;
}

/* The line of a step is written when the result of its version is known, a step later. */
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
    dw_status status = gather(l, o->n_groups, err);
    if (status != DW_OK || l->n_groups < o->n_groups)
        return status; /* asked to stop */
    status = grpo_backward(l->run->trainer, &clip, l->groups, l->n_groups, &report, err);
    json_t *none = l->line ? NULL : json_object();
    if (status == DW_OK)
        status = train_run_step(l->run, o->lr, !o->no_sync, "step", step, &norm,
                                l->line ? l->line : none, err);
    json_decref(none);
    write_line(l);
    if (status == DW_OK)
        l->line = line_of(l, step, &report, norm);
    forget(l);
    tell_failures(l);
    return status == DW_OK ? train_run_save_if_due(l->run, err) : status;
}

/* Evaluates the weights: only games of the newest version. */
static dw_status evaluate(lesson *l, dw_error *err)
{
    train_run *run = l->run;
    const size_t n = run->options->n_evaluate;
    json_t *line = json_object();
    dw_status status = DW_OK;
    if (run->options->no_sync)
        status =
            train_run_publish(run, "evaluated", qwen_trainer_steps(run->trainer), err);
    if (status == DW_OK)
        status = train_run_finish(run, line, err);
    l->first_version = versions_newest(run->stream);
    if (status == DW_OK && !run->unsettled)
        status = gather(l, n, err);
    if (status == DW_OK && l->n_groups == n) {
        grpo_report r;
        grpo_count(&r, l->groups, n);
        put_games(line, &r);
        metrics_write(run->log, "evaluation", json_incref(line));
    }
    json_decref(line);
    forget(l);
    return status;
}

dw_status train_learn(train_run *run, dw_error *err)
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
        .n_vocab = run->n_vocab,
        .stream = versions_stream(run->stream),
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
    json_t *none = l->line ? NULL : json_object();
    if (status == DW_OK)
        status = train_run_finish(run, l->line ? l->line : none, err);
    json_decref(none);
    write_line(l);
    if (status == DW_OK && o->n_evaluate > 0 && !train_run_stopped(run))
        status = evaluate(l, err);
    players_stop(l->who);
    forget(l);
    group_queue_free(l->queue);
    free(l);
    return status;
}
