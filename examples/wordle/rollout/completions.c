/* POST /v1/completions: what the trainer needs of OpenAI's interface. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rollout.h"

enum { MAX_PROMPTS = 64, MAX_NEW = 16 };

typedef struct sample {
    int32_t ids[MODEL_MAX_LEN]; /* the prompt, then what was generated */
    uint32_t n_prompt, n_ids, n_fed;
    float logp[MAX_NEW];
    uint64_t random;
    uint32_t seq;
    const char *finish; /* "stop", "length"; NULL: not finished */
} sample;

typedef struct request {
    sample samples[MAX_PROMPTS];
    size_t n;
    json_int_t max_tokens;
    double temperature;
} request;

/* ---- the request ---- */

static dw_status wrong(dw_error *err, const char *name, const char *what)
{
    return wordle_fail(err, DW_INVALID, name, "%s", what);
}

/* Members that would change the samples are refused. */
static dw_status check_members(const json_t *body, dw_error *err)
{
    static const char *const known[] = {
        "model", "prompt", "max_tokens", "temperature",
        "seed",  "stop",   "logprobs",   "return_token_ids"};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, name, value)
    {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(name, known[i]) != 0)
            i++;
        if (i == sizeof known / sizeof *known)
            return wrong(err, name, "is not offered by this server: leave it out");
    }
    const json_t *stop = json_object_get(body, "stop");
    if (stop && (!json_is_string(stop) || strcmp(json_string_value(stop), "\n") != 0))
        return wrong(err, "stop", "is always the end of the line");
    return DW_OK;
}

static dw_status read_prompt(sample *s, const json_t *prompt, json_int_t max_tokens,
                             dw_error *err)
{
    size_t n;
    if (!json_is_string(prompt))
        return wrong(err, "prompt", "is to be a text, or a list of at most 64");
    if (!model_encode(json_string_value(prompt), s->ids,
                      (size_t)(MODEL_MAX_LEN - max_tokens), &n) ||
        n == 0)
        return wrong(err, "prompt",
                     "is to have letters, line ends, spaces and \" !.?\", and with "
                     "max_tokens at most 128 of them");
    s->n_prompt = s->n_ids = (uint32_t)n;
    return DW_OK;
}

static dw_status read_request(request *q, const json_t *body, dw_error *err)
{
    const json_t *prompt = json_object_get(body, "prompt");
    const json_t *seed = json_object_get(body, "seed");
    const json_t *max = json_object_get(body, "max_tokens");
    const json_t *heat = json_object_get(body, "temperature");
    uint64_t random =
        json_is_integer(seed) ? (uint64_t)json_integer_value(seed) : program_random();
    dw_status status = check_members(body, err);
    q->max_tokens = max ? json_integer_value(max) : MAX_NEW;
    q->temperature = heat ? json_number_value(heat) : 1;
    q->n = json_is_array(prompt) ? json_array_size(prompt) : 1;
    if (status == DW_OK && (q->max_tokens < 1 || q->max_tokens > MAX_NEW))
        status = wrong(err, "max_tokens", "is to be a whole number from 1 to 16");
    if (status == DW_OK && ((heat && !json_is_number(heat)) || !(q->temperature >= 0) ||
                            q->temperature > 100))
        status = wrong(err, "temperature", "is to be a number from 0 to 100");
    if (status == DW_OK && seed && !json_is_integer(seed))
        status = wrong(err, "seed", "is to be a whole number");
    if (status == DW_OK && (q->n == 0 || q->n > MAX_PROMPTS))
        status = wrong(err, "prompt", "is to be a text, or a list of at most 64");
    for (size_t i = 0; status == DW_OK && i < q->n; i++) {
        q->samples[i].random = program_next_random(&random);
        status = read_prompt(&q->samples[i],
                             json_is_array(prompt) ? json_array_get(prompt, i) : prompt,
                             q->max_tokens, err);
    }
    return status;
}

/* ---- sampling ---- */

/* A place for the sample: one whose cache its prompt goes on from, the longest; else the
 * one that was not used for the longest time. */
static void take_place(rollout *r, sample *s, uint64_t began)
{
    cached *best = NULL, *oldest = NULL;
    for (size_t i = 0; i < ROLLOUT_SEQS; i++) {
        cached *c = &r->places[i];
        if (c->used > began)
            continue; /* another sample of this request has it */
        if (!oldest || c->used < oldest->used)
            oldest = c;
        if (c->update == r->n_updates && c->n > (best ? best->n : 0) && c->n < s->n_ids &&
            memcmp(c->ids, s->ids, c->n * sizeof *c->ids) == 0)
            best = c;
    }
    cached *at = best ? best : oldest;
    at->used = ++r->n_used;
    s->seq = (uint32_t)(at - r->places);
    s->n_fed = best ? best->n : 0;
    model_session_cut(r->session, s->seq, s->n_fed);
}

static bool extend(const request *q, sample *s, const float *logits)
{
    float *logp = &s->logp[s->n_ids - s->n_prompt];
    const int32_t id = model_sample(logits, (float)q->temperature, &s->random, logp);
    s->ids[s->n_ids++] = id;
    if (model_char(id) == '\n')
        s->finish = "stop";
    else if (s->n_ids - s->n_prompt == (uint32_t)q->max_tokens)
        s->finish = "length";
    return isfinite(*logp);
}

/* One token for each sample that is not finished. Returns how many there were; *GOOD
 * becomes false if the weights give no numbers. */
static size_t step(rollout *r, request *q, bool *good)
{
    static uint32_t seqs[MAX_PROMPTS * MODEL_MAX_LEN];
    static int32_t tokens[MAX_PROMPTS * MODEL_MAX_LEN];
    static float logits[MAX_PROMPTS * MODEL_MAX_LEN * MODEL_VOCAB];
    size_t n = 0, n_open = 0, last[MAX_PROMPTS];
    for (size_t i = 0; i < q->n; i++) {
        sample *s = &q->samples[i];
        if (s->finish)
            continue;
        for (; s->n_fed < s->n_ids; s->n_fed++, n++) {
            seqs[n] = s->seq;
            tokens[n] = s->ids[s->n_fed];
        }
        last[i] = n - 1;
        n_open++;
    }
    model_session_step(r->session, &r->weights, seqs, tokens, n, logits);
    for (size_t i = 0; i < q->n; i++)
        if (!q->samples[i].finish)
            *good = extend(q, &q->samples[i], logits + last[i] * MODEL_VOCAB) && *good;
    return n_open;
}

/* All samples of a request; false if the weights give no numbers. */
static bool run(rollout *r, request *q)
{
    bool good = true;
    const uint64_t began = r->n_used;
    for (size_t i = 0; i < q->n; i++)
        take_place(r, &q->samples[i], began);
    while (good && step(r, q, &good) > 0)
        ;
    for (size_t i = 0; i < q->n; i++) {
        const sample *s = &q->samples[i];
        cached *c = &r->places[s->seq];
        memcpy(c->ids, s->ids, s->n_fed * sizeof *s->ids);
        c->n = s->n_fed;
        c->update = r->n_updates;
    }
    return good;
}

/* ---- the answer ---- */

static json_t *describe(const sample *s, size_t index, const char *version)
{
    json_t *ids = json_array(), *logps = json_array(), *prompt = json_array();
    char text[MAX_NEW + 1];
    size_t n_text = 0;
    for (uint32_t i = 0; i < s->n_prompt; i++)
        json_array_append_new(prompt, json_integer(s->ids[i]));
    for (uint32_t i = s->n_prompt; i < s->n_ids; i++) {
        json_array_append_new(ids, json_integer(s->ids[i]));
        json_array_append_new(logps, json_real((double)s->logp[i - s->n_prompt]));
        if (model_char(s->ids[i]) != '\n')
            text[n_text++] = model_char(s->ids[i]);
    }
    return json_pack("{s:i,s:s#,s:s,s:s,s:o,s:o,s:{s:o}}", "index", (int)index, "text",
                     text, (int)n_text, "finish_reason", s->finish, "weight_version",
                     version, "prompt_token_ids", prompt, "token_ids", ids, "logprobs",
                     "token_logprobs", logps);
}

static void answer(rollout *r, request *q, web_call *call)
{
    char version[24], stream[sizeof r->stream];
    if (!rollout_lock(r, call))
        return;
    const bool good = run(r, q);
    snprintf(version, sizeof version, "%" PRIu64, r->version);
    memcpy(stream, r->stream, sizeof stream);
    pthread_mutex_unlock(&r->lock);
    if (!good) {
        web_refuse(call, 503,
                   "version %s computes what is no number: publish another one", version);
        return;
    }
    json_t *choices = json_array();
    for (size_t i = 0; i < q->n; i++)
        json_array_append_new(choices, describe(&q->samples[i], i, version));
    web_reply(call, 200,
              json_pack("{s:s,s:s,s:s,s:o}", "object", "text_completion", "model",
                        "policy", "weight_stream", stream, "choices", choices));
}

void completions_answer(rollout *r, web_call *call)
{
    dw_error err;
    request *q = calloc(1, sizeof *q);
    if (!q)
        web_refuse(call, 500, "out of memory");
    else if (read_request(q, web_body(call), &err) != DW_OK)
        web_refuse(call, 400, "%s: %s", err.where, err.text);
    else
        answer(r, q, call);
    free(q);
}
