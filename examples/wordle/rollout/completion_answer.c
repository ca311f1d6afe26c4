/* POST /v1/completions, as OpenAI and vLLM have it: the answer. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "clean_text.h"
#include "completions.h"

static json_t *id_list(const int32_t *ids, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static json_t *token_text(const tokenizer *tok, int32_t id)
{
    char text[512];
    const size_t n = tokenizer_decode(tok, &id, 1, text, sizeof text);
    return clean_text(text, n < sizeof text ? n : sizeof text);
}

static json_t *describe_logprobs(const rollout *r, const batch_sample *s)
{
    json_t *texts = json_array(), *logps = json_array(), *offsets = json_array();
    clean_place at = {0};
    for (uint32_t i = 0; i < s->n_ids - s->n_prompt; i++) {
        const batch_token *token = &s->tokens[i];
        json_array_append_new(texts, token_text(r->tok, token->id));
        json_array_append_new(logps, json_real(token->logp));
        clean_text_seek(&at, s->text, s->n_text, token->offset);
        json_array_append_new(offsets, json_integer((json_int_t)at.n_characters));
    }
    return json_pack("{s:o,s:o,s:n,s:o}", "tokens", texts, "token_logprobs", logps,
                     "top_logprobs", "text_offset", offsets);
}

static json_t *describe_versions(const batch_sample *s)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < s->n_ids - s->n_prompt; i++)
        json_array_append_new(list, json_integer((json_int_t)s->tokens[i].version));
    return list;
}

static json_t *describe_sample(const completion *c, size_t index)
{
    const rollout *r = c->server;
    const batch_sample *s = &c->job->samples[index];
    char version[24];
    snprintf(version, sizeof version, "%" PRIu64, batch_sample_version(s));
    json_t *choice = json_pack("{s:i,s:o,s:s,s:s,s:o}", "index", (int)index, "text",
                               clean_text(s->text ? s->text : "", s->n_text),
                               "finish_reason", s->finish, "weight_version", version,
                               "weight_versions", describe_versions(s));
    json_object_set_new(choice, "logprobs",
                        c->wants_logprobs ? describe_logprobs(r, s) : json_null());
    if (c->wants_ids) {
        json_object_set_new(choice, "prompt_token_ids", id_list(s->ids, s->n_prompt));
        json_object_set_new(choice, "token_ids",
                            id_list(s->ids + s->n_prompt, s->n_ids - s->n_prompt));
    }
    return choice;
}

json_t *completion_describe(const completion *c)
{
    json_int_t n_prompt = 0, n_cached = 0, n_new = 0;
    char id[32], stream[64];
    json_t *choices = json_array();
    for (size_t i = 0; i < c->job->n_samples; i++) {
        const batch_sample *s = &c->job->samples[i];
        json_array_append_new(choices, describe_sample(c, i));
        n_prompt += i % c->n == 0 ? s->n_prompt : 0;
        n_cached += i % c->n == 0 ? s->n_cached : 0;
        n_new += s->n_ids - s->n_prompt;
    }
    serving_stream(c->server->serving, stream);
    snprintf(id, sizeof id, "cmpl-%" PRIu64, c->number);
    return json_pack("{s:s,s:s,s:I,s:s,s:s,s:o,s:{s:I,s:I,s:I,s:{s:I}}}", "id", id,
                     "object", "text_completion", "created", (json_int_t)time(NULL),
                     "model", c->server->model_name, "weight_stream", stream, "choices",
                     choices, "usage", "prompt_tokens", n_prompt, "completion_tokens",
                     n_new, "total_tokens", n_prompt + n_new, "prompt_tokens_details",
                     "cached_tokens", n_cached);
}
