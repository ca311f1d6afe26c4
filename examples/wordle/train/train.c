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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "http_client.h"
#include "init_model.h"
#include "program.h"
#include "train_learn.h"
#include "warmup.h"

enum {
    WARMUP_GAMES = 32,
    WARMUP_PUBLISH_EVERY = 25, /* steps */
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
            status = train_run_step(run, o->warmup_lr * rise * (1 - 0.9f * done), publish,
                                    "warmup", step + 1, &norm, line, err);
        if (status == DW_OK && publish) {
            json_object_set_new(line, "step", json_integer((json_int_t)step + 1));
            metrics_put(line, "loss", loss);
            metrics_put(line, "norm", norm);
            metrics_write(run->log, "warmup", json_incref(line));
        }
        json_decref(line);
        if (status == DW_OK)
            status = train_run_save_if_due(run, err);
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

/* ---- all of it ---- */

static dw_status train(train_run *run, dw_error *err)
{
    char state[17] = "";
    dw_status status = warm_up(run, err);
    if (status == DW_OK && !train_run_stopped(run))
        status = train_learn(run, err);
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
