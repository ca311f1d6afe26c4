/* Inference: rows of tokens go through the layers together, keys and values of each
 * sequence are kept for the rows to come.
 *
 *     x += o( attention( rope(norm(q(norm x))), cache ) )
 *     x += down( silu(gate(norm x)) * up(norm x) )
 *     logits = head(norm x)
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "qwen_matmul.h"
#include "qwen_model.h"
#include "qwen_rope.h"

/* Rows that go through the layers at a time; longer steps go in several parts. */
enum { MAX_ROWS = 64 };

struct qwen_session {
    qwen_config config;
    const qwen_kernels *k;
    qwen_pool *pool;
    qwen_rope rope;
    uint32_t n_seqs, max_tokens;
    uint32_t *lengths; /* [n_seqs] */
    uint32_t *planned; /* [n_seqs], lengths after the step at hand */

    /* [n_layers][n_seqs][n_kv_heads][max_tokens][head_dim] */
    float *keys, *values;

    /* the rows at hand: [MAX_ROWS][width] */
    float *x, *normed, *q, *key, *value, *attended, *gate, *up;
    float *memory; /* the memory of all of them */
    const uint32_t *seqs;
    uint32_t positions[MAX_ROWS];
    size_t n_rows;
    size_t layer;
};

static float *cache_of(const qwen_session *s, float *cache, size_t layer, size_t seq,
                       size_t kv_head)
{
    const qwen_config *c = &s->config;
    return cache + ((layer * s->n_seqs + seq) * c->n_kv_heads + kv_head) * s->max_tokens *
                       c->head_dim;
}

/* ---- attention --------------------------------------------------------------------- */

/* The heads of row TASK / n_kv_heads that share one head of keys and values. */
static void attend(void *context, size_t task, void *scratch)
{
    const qwen_session *s = context;
    const qwen_config *c = &s->config;
    size_t row = task / c->n_kv_heads, kv_head = task % c->n_kv_heads;
    size_t dim = c->head_dim, group = c->n_heads / c->n_kv_heads;
    size_t n = s->positions[row] + 1u;
    const float *keys = cache_of(s, s->keys, s->layer, s->seqs[row], kv_head);
    const float *values = cache_of(s, s->values, s->layer, s->seqs[row], kv_head);
    float scale = 1.0f / sqrtf((float)dim);
    float *weights = scratch; /* [n] */
    for (size_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
        const float *q = s->q + (row * c->n_heads + h) * dim;
        float *out = s->attended + (row * c->n_heads + h) * dim;
        s->k->dots(weights, q, keys, dim, n, dim);
        float shift = scale * s->k->max(weights, n);
        float inv_sum = 1.0f / s->k->exp_sum(weights, n, scale, shift);
        memset(out, 0, dim * sizeof *out);
        s->k->mix(out, weights, values, dim, n, dim);
        for (size_t i = 0; i < dim; i++)
            out[i] *= inv_sum;
    }
}

/* Normalizes and rotates the heads of queries, which are in ATTENDED until then, and of
 * keys; keys and values go into the cache. */
static void place_row(qwen_session *s, const qwen_weights *w, size_t row)
{
    const qwen_config *c = &s->config;
    size_t dim = c->head_dim, position = s->positions[row];
    const uint16_t *q_norm = w->tensors[qwen_tensor_of(s->layer, QWEN_Q_NORM)];
    const uint16_t *k_norm = w->tensors[qwen_tensor_of(s->layer, QWEN_K_NORM)];
    for (size_t h = 0; h < c->n_heads; h++) {
        float *q = s->q + (row * c->n_heads + h) * dim;
        s->k->rms_norm(q, s->attended + (row * c->n_heads + h) * dim, q_norm, dim,
                       c->rms_eps);
        qwen_rope_turn(&s->rope, q, position);
    }
    for (size_t h = 0; h < c->n_kv_heads; h++) {
        size_t from = (row * c->n_kv_heads + h) * dim, to = position * dim;
        float *key = cache_of(s, s->keys, s->layer, s->seqs[row], h) + to;
        float *value = cache_of(s, s->values, s->layer, s->seqs[row], h) + to;
        s->k->rms_norm(key, s->key + from, k_norm, dim, c->rms_eps);
        qwen_rope_turn(&s->rope, key, position);
        memcpy(value, s->value + from, dim * sizeof *value);
    }
}

/* ---- layers ------------------------------------------------------------------------ */

static void norm_rows(qwen_session *s, float *out, const float *in, const uint16_t *w)
{
    size_t width = s->config.n_hidden;
    for (size_t r = 0; r < s->n_rows; r++)
        s->k->rms_norm(out + r * width, in + r * width, w, width, s->config.rms_eps);
}

static void run_layer(qwen_session *s, const qwen_weights *w)
{
    const qwen_config *c = &s->config;
    const uint16_t *const *t = &w->tensors[qwen_tensor_of(s->layer, 0)];
    size_t n = s->n_rows, hidden = c->n_hidden, inter = c->n_inter;
    size_t q_width = qwen_q_width(c), kv_width = qwen_kv_width(c);

    norm_rows(s, s->normed, s->x, t[QWEN_ATTN_NORM]);
    qwen_linear(s->pool, s->attended, s->normed, t[QWEN_Q], n, q_width, hidden, false);
    qwen_linear(s->pool, s->key, s->normed, t[QWEN_K], n, kv_width, hidden, false);
    qwen_linear(s->pool, s->value, s->normed, t[QWEN_V], n, kv_width, hidden, false);
    double n_attended = 0;
    for (size_t r = 0; r < n; r++) {
        place_row(s, w, r);
        n_attended += s->positions[r] + 1.0;
    }
    qwen_pool_run(s->pool, n * c->n_kv_heads, 4 * n_attended * (double)q_width, attend,
                  s);
    qwen_linear(s->pool, s->x, s->attended, t[QWEN_O], n, hidden, q_width, true);

    norm_rows(s, s->normed, s->x, t[QWEN_MLP_NORM]);
    qwen_linear(s->pool, s->gate, s->normed, t[QWEN_GATE], n, inter, hidden, false);
    qwen_linear(s->pool, s->up, s->normed, t[QWEN_UP], n, inter, hidden, false);
    s->k->times_silu(s->up, s->gate, n * inter);
    qwen_linear(s->pool, s->x, s->up, t[QWEN_DOWN], n, hidden, inter, true);
}

/* Returns how many rows of logits it wrote. */
static size_t run_rows(qwen_session *s, const qwen_weights *w, const int32_t *tokens,
                       const bool *want, float *logits)
{
    const qwen_config *c = &s->config;
    size_t hidden = c->n_hidden, n_wanted = 0;
    const uint16_t *embedding = w->tensors[qwen_tensor_embedding(c)];
    for (size_t r = 0; r < s->n_rows; r++) {
        s->positions[r] = s->lengths[s->seqs[r]]++;
        for (size_t i = 0; i < hidden; i++)
            s->x[r * hidden + i] = qwen_bf16(embedding[(size_t)tokens[r] * hidden + i]);
    }
    for (s->layer = 0; s->layer < c->n_layers; s->layer++)
        run_layer(s, w);
    for (size_t r = 0; r < s->n_rows; r++)
        if (want == NULL || want[r])
            s->k->rms_norm(s->normed + n_wanted++ * hidden, s->x + r * hidden,
                           w->tensors[qwen_tensor_norm(c)], hidden, c->rms_eps);
    if (n_wanted > 0)
        qwen_linear(s->pool, logits, s->normed, w->tensors[qwen_tensor_head(c)], n_wanted,
                    c->n_vocab, hidden, false);
    return n_wanted;
}

static dw_status check_step(qwen_session *s, const qwen_weights *w, const uint32_t *seqs,
                            const int32_t *tokens, size_t n, dw_error *err)
{
    const qwen_config *c = &s->config;
    if (!qwen_config_same_shape(&w->config, c))
        return wordle_fail(err, DW_INVALID, "step",
                           "weights and session are not of one model");
    memcpy(s->planned, s->lengths, s->n_seqs * sizeof *s->planned);
    for (size_t i = 0; i < n; i++) {
        if (seqs[i] >= s->n_seqs)
            return wordle_fail(err, DW_INVALID, "step",
                               "row %zu: there is no sequence %u, only %u of them", i,
                               seqs[i], s->n_seqs);
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= c->n_vocab)
            return wordle_fail(err, DW_INVALID, "step",
                               "row %zu: %d is no token of the vocabulary of %u", i,
                               (int)tokens[i], c->n_vocab);
        if (s->planned[seqs[i]]++ >= s->max_tokens)
            return wordle_fail(err, DW_INVALID, "step",
                               "sequence %u is full: it has room for %u tokens", seqs[i],
                               s->max_tokens);
    }
    return DW_OK;
}

dw_status qwen_session_step(qwen_session *s, const qwen_weights *weights,
                            const uint32_t *seqs, const int32_t *tokens, const bool *want,
                            size_t n, float *logits, dw_error *err)
{
    dw_status status = check_step(s, weights, seqs, tokens, n, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; i < n; i += s->n_rows) {
        s->n_rows = n - i < MAX_ROWS ? n - i : MAX_ROWS;
        s->seqs = seqs + i;
        size_t n_wanted =
            run_rows(s, weights, tokens + i, want == NULL ? NULL : want + i, logits);
        if (n_wanted > 0)
            logits += n_wanted * s->config.n_vocab;
    }
    return DW_OK;
}

/* ---- sessions ---------------------------------------------------------------------- */

static bool allocate_rows(qwen_session *s)
{
    const qwen_config *c = &s->config;
    struct {
        float **rows;
        size_t width;
    } parts[] = {
        {&s->x, c->n_hidden},        {&s->normed, c->n_hidden},
        {&s->q, qwen_q_width(c)},    {&s->attended, qwen_q_width(c)},
        {&s->key, qwen_kv_width(c)}, {&s->value, qwen_kv_width(c)},
        {&s->gate, c->n_inter},      {&s->up, c->n_inter},
    };
    size_t n_parts = sizeof parts / sizeof parts[0], n_floats = 0;
    for (size_t i = 0; i < n_parts; i++)
        n_floats += parts[i].width * MAX_ROWS;
    s->memory = calloc(n_floats, sizeof *s->memory);
    if (s->memory == NULL)
        return false;
    float *next = s->memory;
    for (size_t i = 0; i < n_parts; i++) {
        *parts[i].rows = next;
        next += parts[i].width * MAX_ROWS;
    }
    return true;
}

/* The system gives zeroed pages as they are first written. */
static bool allocate_cache(qwen_session *s)
{
    size_t n_bytes = sizeof(float) * s->config.n_layers;
    if (__builtin_mul_overflow(n_bytes, qwen_kv_width(&s->config), &n_bytes) ||
        __builtin_mul_overflow(n_bytes, s->n_seqs, &n_bytes) ||
        __builtin_mul_overflow(n_bytes, s->max_tokens, &n_bytes))
        return false;
    s->keys = calloc(1, n_bytes);
    s->values = calloc(1, n_bytes);
    s->lengths = calloc(s->n_seqs, sizeof *s->lengths);
    s->planned = calloc(s->n_seqs, sizeof *s->planned);
    return s->keys != NULL && s->values != NULL && s->lengths != NULL &&
           s->planned != NULL;
}

dw_status qwen_session_new(qwen_session **out, const qwen_config *config, uint32_t n_seqs,
                           uint32_t max_tokens, unsigned n_threads, dw_error *err)
{
    if (n_seqs == 0 || max_tokens == 0)
        return wordle_fail(err, DW_INVALID, "session",
                           "must have room for a sequence and a token");
    qwen_session *s = calloc(1, sizeof *s);
    if (s == NULL)
        return wordle_fail(err, DW_NO_MEMORY, "session", "out of memory");
    s->config = *config;
    s->k = qwen_kernels_get();
    s->n_seqs = n_seqs;
    s->max_tokens = max_tokens;
    size_t scratch_bytes = max_tokens * sizeof(float); /* for attend */
    if (scratch_bytes < qwen_matmul_scratch_bytes())
        scratch_bytes = qwen_matmul_scratch_bytes();
    dw_status status = DW_OK;
    if (!allocate_rows(s) || !allocate_cache(s) ||
        !qwen_rope_cover(&s->rope, config, max_tokens))
        status = wordle_fail(err, DW_NO_MEMORY, "session",
                             "no memory for %u sequences of %u tokens: ask for less",
                             n_seqs, max_tokens);
    if (status == DW_OK)
        status = qwen_pool_new(&s->pool, n_threads, scratch_bytes, err);
    if (status != DW_OK) {
        qwen_session_free(s);
        return status;
    }
    *out = s;
    return DW_OK;
}

void qwen_session_free(qwen_session *s)
{
    if (s == NULL)
        return;
    qwen_pool_free(s->pool);
    qwen_rope_release(&s->rope);
    free(s->lengths);
    free(s->planned);
    free(s->keys);
    free(s->values);
    free(s->memory);
    free(s);
}

void qwen_session_reset(qwen_session *s, uint32_t seq)
{
    if (seq < s->n_seqs)
        s->lengths[seq] = 0;
}

uint32_t qwen_session_length(const qwen_session *s, uint32_t seq)
{
    return seq < s->n_seqs ? s->lengths[seq] : 0;
}
