/* The batch of a forward: a copy of its tokens, and memory for what is kept of it. */
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "qwen_train.h"

typedef struct part {
    float **rows;
    size_t width; /* floats a token */
} part;

/* What one layer keeps. */
static size_t list_kept(const qwen_config *c, qwen_kept *k, part *parts)
{
    size_t q = qwen_q_width(c), kv = qwen_kv_width(c), hidden = c->n_hidden;
    const part list[] = {
        {&k->x, hidden},
        {&k->raw_q, q},
        {&k->raw_k, kv},
        {&k->q, q},
        {&k->k, kv},
        {&k->v, kv},
        {&k->attended, q},
        {&k->x_mid, hidden},
        {&k->gate, c->n_inter},
        {&k->up, c->n_inter},
        {&k->inv_rms_attn, 1},
        {&k->inv_rms_mlp, 1},
        {&k->log_sum, c->n_heads},
        {&k->inv_rms_q, c->n_heads},
        {&k->inv_rms_k, c->n_kv_heads},
    };
    memcpy(parts, list, sizeof list);
    return sizeof list / sizeof list[0];
}

/* What is there once. */
static size_t list_shared(qwen_trainer *t, part *parts)
{
    const qwen_config *c = &t->config;
    size_t q = qwen_q_width(c), kv = qwen_kv_width(c), hidden = c->n_hidden;
    const part list[] = {
        {&t->x, hidden},
        {&t->normed, hidden},
        {&t->dx, hidden},
        {&t->d_normed, hidden},
        {&t->inner, c->n_inter},
        {&t->d_inner, c->n_inter},
        {&t->d_attended, q},
        {&t->dq, q},
        {&t->d_raw_q, q},
        {&t->dk, kv},
        {&t->dv, kv},
        {&t->d_raw_k, kv},
        {&t->inv_rms, 1},
    };
    memcpy(parts, list, sizeof list);
    return sizeof list / sizeof list[0];
}

enum { MAX_PARTS = 16 };

static size_t total_width(const part *parts, size_t n)
{
    size_t width = 0;
    for (size_t i = 0; i < n; i++)
        width += parts[i].width;
    return width;
}

static float *lay_out(const part *parts, size_t n, size_t n_tokens, float *next)
{
    for (size_t i = 0; i < n; i++) {
        *parts[i].rows = next;
        next += parts[i].width * n_tokens;
    }
    return next;
}

static bool allocate_activations(qwen_trainer *t, size_t n_tokens)
{
    const qwen_config *c = &t->config;
    qwen_kept none;
    part kept[MAX_PARTS], shared[MAX_PARTS];
    size_t n_kept = list_kept(c, &none, kept), n_shared = list_shared(t, shared);
    size_t widest = c->n_hidden > c->head_dim ? c->n_hidden : c->head_dim;
    size_t n_blocks = (n_tokens + QWEN_BLOCK_ROWS - 1) / QWEN_BLOCK_ROWS;
    size_t per_token =
        c->n_layers * total_width(kept, n_kept) + total_width(shared, n_shared);
    size_t n_floats;
    if (__builtin_mul_overflow(per_token, n_tokens, &n_floats) ||
        __builtin_add_overflow(n_floats, n_blocks * widest, &n_floats) ||
        n_floats > SIZE_MAX / sizeof(float))
        return false;
    free(t->activations);
    t->max_tokens = 0;
    t->activations = malloc(n_floats * sizeof(float));
    if (t->activations == NULL)
        return false;
    float *next = lay_out(shared, n_shared, n_tokens, t->activations);
    for (size_t l = 0; l < c->n_layers; l++) {
        list_kept(c, &t->kept[l], kept);
        next = lay_out(kept, n_kept, n_tokens, next);
    }
    t->d_norm = next;
    return true;
}

static bool make_room(qwen_trainer *t, size_t n_tokens, size_t n_seqs)
{
    if (n_seqs > t->max_seqs) {
        size_t *starts = realloc(t->starts, (n_seqs + 1) * sizeof *starts);
        if (starts == NULL)
            return false;
        t->starts = starts;
        t->max_seqs = n_seqs;
    }
    if (n_tokens <= t->max_tokens)
        return true;
    n_tokens += n_tokens / 8; /* batches differ a little */
    int32_t *tokens = realloc(t->tokens, n_tokens * sizeof *tokens);
    if (tokens == NULL)
        return false;
    t->tokens = tokens;
    uint32_t *positions = realloc(t->positions, n_tokens * sizeof *positions);
    if (positions == NULL)
        return false;
    t->positions = positions;
    if (!allocate_activations(t, n_tokens))
        return false;
    t->max_tokens = n_tokens;
    return true;
}

dw_status qwen_train_take_batch(qwen_trainer *t, const int32_t *tokens,
                                const uint32_t *lengths, size_t n_seqs, dw_error *err)
{
    size_t n_tokens = 0, longest = 0;
    for (size_t s = 0; s < n_seqs; s++) {
        if (lengths[s] == 0 || lengths[s] > QWEN_MAX_LENGTH)
            return wordle_fail(err, DW_INVALID, "batch",
                               "sequence %zu has %u tokens: 1 to %d can be trained on", s,
                               lengths[s], QWEN_MAX_LENGTH);
        n_tokens += lengths[s];
        longest = lengths[s] > longest ? lengths[s] : longest;
    }
    if (n_tokens == 0)
        return wordle_fail(err, DW_INVALID, "batch", "there are no tokens in it");
    for (size_t i = 0; i < n_tokens; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= t->config.n_vocab)
            return wordle_fail(err, DW_INVALID, "batch",
                               "token %zu: %d is none of the vocabulary of %u", i,
                               (int)tokens[i], t->config.n_vocab);
    t->has_forward = false;
    if (!make_room(t, n_tokens, n_seqs) ||
        !qwen_rope_cover(&t->rope, &t->config, longest))
        return wordle_fail(err, DW_NO_MEMORY, "batch",
                           "no memory for %zu tokens: use smaller batches", n_tokens);
    memcpy(t->tokens, tokens, n_tokens * sizeof *tokens);
    t->n_tokens = n_tokens;
    t->n_seqs = n_seqs;
    size_t row = 0;
    for (size_t s = 0; s < n_seqs; s++) {
        t->starts[s] = row;
        for (uint32_t i = 0; i < lengths[s]; i++)
            t->positions[row++] = i;
    }
    t->starts[n_seqs] = row;
    return DW_OK;
}

void qwen_train_release_batch(qwen_trainer *t)
{
    free(t->tokens);
    free(t->positions);
    free(t->starts);
    free(t->activations);
}
