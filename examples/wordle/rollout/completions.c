/* POST /v1/completions, as OpenAI and vLLM have it: the request. */
#include "completions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "program.h"

enum {
    MAX_PROMPTS = 1024,
    MAX_N = 256,
    MAX_SAMPLES = 4096,
    MAX_STOP = 64,
    /* of all samples together; one sample may have the server's length anyway */
    MAX_NEW = 1 << 18, /* tokens to generate */
    MAX_IDS = 1 << 20, /* those, and each sample's own prompt */
};

/* ---- numbers ---- */

static dw_status wrong(dw_error *err, const char *name, const char *what)
{
    return wordle_fail(err, DW_INVALID, name, "%s", what);
}

static dw_status get_integer(const json_t *body, const char *name, json_int_t min,
                             json_int_t max, json_int_t *out, dw_error *err)
{
    const json_t *value = json_object_get(body, name);
    if (!value || json_is_null(value))
        return DW_OK;
    *out = json_integer_value(value);
    if (json_is_integer(value) && *out >= min && *out <= max)
        return DW_OK;
    return wordle_fail(err, DW_INVALID, name,
                       "is to be a whole number from %" JSON_INTEGER_FORMAT
                       " to %" JSON_INTEGER_FORMAT,
                       min, max);
}

static dw_status get_real(const json_t *body, const char *name, double min, double max,
                          float *out, dw_error *err)
{
    const json_t *value = json_object_get(body, name);
    if (!value || json_is_null(value))
        return DW_OK;
    const double number = json_number_value(value);
    *out = (float)number;
    if (json_is_number(value) && number >= min && number <= max)
        return DW_OK;
    return wordle_fail(err, DW_INVALID, name, "is to be a number from %g to %g", min,
                       max);
}

/* Refuses unsupported options that would change the samples.
 */
static dw_status check_not_done(const json_t *body, dw_error *err)
{
    static const struct {
        const char *name;
        double neutral[2];
    } others[] = {
        {"stream", {0, 0}},          {"echo", {0, 0}},
        {"top_k", {0, -1}},          {"min_p", {0, 0}},
        {"best_of", {1, 1}},         {"presence_penalty", {0, 0}},
        {"min_tokens", {0, 0}},      {"frequency_penalty", {0, 0}},
        {"ignore_eos", {0, 0}},      {"repetition_penalty", {1, 1}},
        {"logit_bias", {0, 0}},      {"stop_token_ids", {0, 0}},
        {"suffix", {0, 0}},          {"structured_outputs", {0, 0}},
        {"prompt_logprobs", {0, 0}},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const json_t *value = json_object_get(body, others[i].name);
        const double number = json_number_value(value);
        if (!value || json_is_null(value) || json_is_false(value) ||
            (json_is_number(value) &&
             (number == others[i].neutral[0] || number == others[i].neutral[1])) ||
            (json_is_array(value) && json_array_size(value) == 0))
            continue;
        return wrong(err, others[i].name, "is not offered by this server: leave it out");
    }
    return DW_OK;
}

/* ---- stops ---- */

static dw_status add_stop(batch_params *p, const json_t *stop, dw_error *err)
{
    const size_t n = json_string_length(stop);
    if (!json_is_string(stop) || n == 0 || n > MAX_STOP || p->n_stops == BATCH_MAX_STOPS)
        return wrong(err, "stop", "is to be a text of 1 to 64 bytes, or at most 16");
    memcpy(p->stops[p->n_stops++], json_string_value(stop), n + 1);
    return DW_OK;
}

static dw_status get_stops(const json_t *body, batch_params *p, dw_error *err)
{
    const json_t *stop = json_object_get(body, "stop");
    if (!stop || json_is_null(stop))
        return DW_OK;
    if (!json_is_array(stop))
        return add_stop(p, stop, err);
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < json_array_size(stop); i++)
        status = add_stop(p, json_array_get(stop, i), err);
    return status;
}

/* ---- prompts ---- */

/* One prompt: a text, or a list of tokens. */
static dw_status read_prompt(const rollout *r, const json_t *prompt, int32_t *ids,
                             uint32_t *n_ids, dw_error *err)
{
    size_t n = 0;
    if (json_is_string(prompt)) {
        const size_t max_bytes = (size_t)r->max_len * r->n_longest;
        if (json_string_length(prompt) > max_bytes)
            return wordle_fail(err, DW_INVALID, "prompt",
                               "has more than %zu bytes, which are more than %u tokens, "
                               "the most of this server with what is generated",
                               max_bytes, r->max_len - 1);
        n = tokenizer_encode(r->tok, json_string_value(prompt),
                             json_string_length(prompt), ids, r->max_len);
    } else {
        n = json_array_size(prompt);
        for (size_t i = 0; i < n && i < r->max_len; i++) {
            const json_t *id = json_array_get(prompt, i);
            if (!json_is_integer(id) || json_integer_value(id) < 0 ||
                json_integer_value(id) >= r->config.n_vocab)
                return wrong(err, "prompt", "has something in it that is no token");
            ids[i] = (int32_t)json_integer_value(id);
        }
    }
    if (n == 0)
        return wrong(err, "prompt", "is empty");
    if (n >= r->max_len)
        return wordle_fail(err, DW_INVALID, "prompt",
                           "has more than %u tokens, the most of this server with what "
                           "is generated",
                           r->max_len - 1);
    *n_ids = (uint32_t)n;
    return DW_OK;
}

static bool is_list(const json_t *prompt)
{
    const json_t *first = json_array_get(prompt, 0);
    return json_is_array(prompt) && (json_is_string(first) || json_is_array(first));
}

/* A limit on a request's tokens that allows one sample of any length. */
static size_t at_least_one(const rollout *r, size_t max)
{
    return max > r->max_len ? max : r->max_len;
}

/* Prompt NUMBER, N samples of it; N_LEFT ids may still be copied. */
static dw_status add_prompt(rollout *r, batch_job *job, const json_t *prompt,
                            size_t number, size_t n, uint64_t *rng, int32_t *ids,
                            size_t *n_left, dw_error *err)
{
    uint32_t n_ids = 0;
    if (!json_is_string(prompt) && !json_is_array(prompt))
        return wrong(err, "prompt",
                     "is to be a text, a list of tokens, or a list of these");
    dw_status status = read_prompt(r, prompt, ids, &n_ids, err);
    if (status == DW_OK && n_ids + job->params.max_tokens > r->max_len)
        status = wordle_fail(err, DW_INVALID, "max_tokens",
                             "with a prompt of %u it is more than %u tokens, the most of "
                             "this server",
                             n_ids, r->max_len);
    const size_t n_copied = n * ((size_t)n_ids + job->params.max_tokens);
    if (status == DW_OK && n_copied > *n_left)
        status = wordle_fail(err, DW_INVALID, "prompt",
                             "with n and max_tokens the prompts are more than %zu "
                             "tokens: send fewer at once",
                             at_least_one(r, MAX_IDS));
    else if (status == DW_OK)
        *n_left -= n_copied;
    for (size_t i = 0; status == DW_OK && i < n; i++)
        if (!batch_job_prompt(job, number * n + i, ids, n_ids, program_next_random(rng)))
            status = wordle_fail(err, DW_NO_MEMORY, "prompt", "out of memory");
    return status;
}

static dw_status make_job(rollout *r, const json_t *body, completion *c, dw_error *err)
{
    const json_t *prompt = json_object_get(body, "prompt");
    json_int_t n = 1, max_tokens = 16, seed = -1;
    batch_params params = {.temperature = 1, .top_p = 1};
    dw_status status = check_not_done(body, err);
    if (status == DW_OK)
        status = get_integer(body, "n", 1, MAX_N, &n, err);
    if (status == DW_OK)
        status = get_integer(body, "max_tokens", 1, r->max_len, &max_tokens, err);
    if (status == DW_OK)
        status = get_integer(body, "seed", INT64_MIN, INT64_MAX, &seed, err);
    if (status == DW_OK)
        status = get_real(body, "temperature", 0, 100, &params.temperature, err);
    if (status == DW_OK)
        status = get_real(body, "top_p", 1e-6, 1, &params.top_p, err);
    if (status == DW_OK)
        status = get_stops(body, &params, err);
    if (status != DW_OK)
        return status;
    const size_t n_prompts = is_list(prompt) ? json_array_size(prompt) : 1;
    if (n_prompts > MAX_PROMPTS || n_prompts * (size_t)n > MAX_SAMPLES)
        return wrong(err, "prompt", "makes more than 4096 samples with n: send fewer");
    if (n_prompts * (size_t)n * (size_t)max_tokens > at_least_one(r, MAX_NEW))
        return wordle_fail(err, DW_INVALID, "max_tokens",
                           "with n and the prompts it makes more than %zu tokens: send "
                           "fewer at once",
                           at_least_one(r, MAX_NEW));
    params.max_tokens = (uint32_t)max_tokens;
    size_t n_left = at_least_one(r, MAX_IDS);
    const json_t *asked = json_object_get(body, "seed");
    uint64_t rng = json_is_integer(asked) ? (uint64_t)seed : program_random();
    int32_t *ids = calloc(r->max_len, sizeof *ids);
    c->job = batch_job_new(n_prompts * (size_t)n);
    c->n = (size_t)n;
    if (!ids || !c->job)
        status = wordle_fail(err, DW_NO_MEMORY, "request", "out of memory");
    else
        c->job->params = params;
    for (size_t i = 0; status == DW_OK && i < n_prompts; i++)
        status =
            add_prompt(r, c->job, is_list(prompt) ? json_array_get(prompt, i) : prompt, i,
                       c->n, &rng, ids, &n_left, err);
    free(ids);
    return status;
}

/* ---- the call ---- */

static void release(void *context)
{
    completion *c = context;
    batch_job_free(c->job);
    free(c);
}

static void resume(void *context)
{
    completion *c = context;
    web_resume(c->call);
}

static bool gone(void *context)
{
    const completion *c = context;
    return web_is_gone(c->call);
}

static void finish(web_call *call, void *context)
{
    const completion *c = context;
    if (c->job->trouble.code == DW_OK)
        web_reply(call, 200, completion_describe(c));
    else
        rollout_refuse(call, &c->job->trouble);
}

void completions_answer(rollout *r, web_call *call)
{
    json_t *body = web_body(call);
    dw_error err;
    completion *c = calloc(1, sizeof *c);
    dw_status status = c ? rollout_load(r, &err)
                         : wordle_fail(&err, DW_NO_MEMORY, "request", "out of memory");
    if (status == DW_OK)
        status = make_job(r, body, c, &err);
    if (status != DW_OK) {
        rollout_refuse(call, &err);
        if (c)
            release(c);
        return;
    }
    const json_t *logprobs = json_object_get(body, "logprobs");
    c->server = r;
    c->call = call;
    c->number = ++r->n_requests;
    c->wants_logprobs = json_is_integer(logprobs) || json_is_true(logprobs);
    c->wants_ids = json_is_true(json_object_get(body, "return_token_ids"));
    c->job->done = resume;
    c->job->gone = gone;
    c->job->context = c;
    web_put_off(call, c, finish, release);
    if (batch_submit(r->batch, c->job))
        return;
    wordle_fail(&c->job->trouble, DW_UNAVAILABLE, "request",
                "too many wait already: try later");
    web_resume(call);
}
