/* Inference: rows of tokens go through the layers together; keys and values of each
 * sequence are kept for the rows to come.
 *
 *     x += o( attention( rope(norm(q(norm x))), cache ) )
 *     x += down( silu(gate(norm x)) * up(norm x) )
 *     logits = embedding(norm x)
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "model.h"
#include "program.h"

/* Rows that go through the layers at a time; longer steps go in several parts. */
enum { MAX_ROWS = 64 };

typedef float cache[MODEL_LAYERS][MODEL_MAX_LEN][MODEL_KV];

struct model_session {
    model_rope rope;
    uint32_t n_seqs;
    uint32_t *lengths;    /* [n_seqs] */
    cache *keys, *values; /* [n_seqs] */
    size_t positions[MAX_ROWS];
    float x[MAX_ROWS * MODEL_HIDDEN], normed[MAX_ROWS * MODEL_HIDDEN];
    float q[MAX_ROWS * MODEL_Q], attended[MAX_ROWS * MODEL_Q];
    float key[MAX_ROWS * MODEL_KV], value[MAX_ROWS * MODEL_KV];
    float gate[MAX_ROWS * MODEL_INTER], up[MAX_ROWS * MODEL_INTER];
    float inner[MAX_ROWS * MODEL_INTER];
};

model_session *model_session_new(uint32_t n_seqs)
{
    model_session *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->n_seqs = n_seqs;
    s->lengths = calloc(n_seqs, sizeof *s->lengths);
    s->keys = calloc(n_seqs, sizeof *s->keys);
    s->values = calloc(n_seqs, sizeof *s->values);
    model_rope_init(&s->rope);
    if (s->lengths && s->keys && s->values)
        return s;
    model_session_free(s);
    return NULL;
}

void model_session_free(model_session *s)
{
    if (!s)
        return;
    free(s->lengths);
    free(s->keys);
    free(s->values);
    free(s);
}

void model_session_cut(model_session *s, uint32_t seq, uint32_t n)
{
    if (n < s->lengths[seq])
        s->lengths[seq] = n;
}

static void norm_rows(float *out, const float *in, const float *w, size_t n)
{
    for (size_t r = 0; r < n; r++)
        kernel_norm(out + r * MODEL_HIDDEN, in + r * MODEL_HIDDEN, w, MODEL_HIDDEN);
}

/* Norms and turns the heads of a row; keys and values go into the cache. */
static void place_row(model_session *s, const float *w, size_t layer, uint32_t seq,
                      size_t r)
{
    const size_t position = s->positions[r], dim = MODEL_HEAD_DIM;
    float raw[MODEL_Q], *q = s->q + r * MODEL_Q;
    float *key = s->keys[seq][layer][position];
    memcpy(raw, q, sizeof raw);
    for (size_t h = 0; h < MODEL_HEADS; h++) {
        kernel_norm(q + h * dim, raw + h * dim, w + AT_Q_NORM, dim);
        model_rope_turn(&s->rope, q + h * dim, position, false);
    }
    for (size_t h = 0; h < MODEL_KV_HEADS; h++) {
        kernel_norm(key + h * dim, s->key + r * MODEL_KV + h * dim, w + AT_K_NORM, dim);
        model_rope_turn(&s->rope, key + h * dim, position, false);
    }
    memcpy(s->values[seq][layer][position], s->value + r * MODEL_KV,
           MODEL_KV * sizeof(float));
}

static void attend(model_session *s, size_t layer, uint32_t seq, size_t r)
{
    const size_t n = s->positions[r] + 1, dim = MODEL_HEAD_DIM;
    float weights[MODEL_MAX_LEN];
    for (size_t h = 0; h < MODEL_HEADS; h++) {
        const size_t at = r * MODEL_Q + h * dim,
                     kv = h * MODEL_KV_HEADS / MODEL_HEADS * dim;
        kernel_dots(weights, s->q + at, s->keys[seq][layer][0] + kv, MODEL_KV, n, dim);
        kernel_softmax(weights, n, 1.0f / sqrtf((float)dim));
        kernel_mix(s->attended + at, weights, s->values[seq][layer][0] + kv, MODEL_KV, n,
                   dim);
    }
}

static void linear(float *y, const float *x, const float *t, size_t n, size_t n_in,
                   size_t n_out, bool add)
{
    kernel_matmul(y, x, n_in, 1, t, n, n_in, n_out, add);
}

static void run_layer(model_session *s, const model_weights *weights, size_t layer,
                      const uint32_t *seqs, size_t n)
{
    const float *w = weights->w + layer * LAYER_PARAMS;
    const float *t = weights->t + layer * LAYER_PARAMS;
    norm_rows(s->normed, s->x, w + AT_ATTN_NORM, n);
    linear(s->q, s->normed, t + AT_Q, n, MODEL_HIDDEN, MODEL_Q, false);
    linear(s->key, s->normed, t + AT_K, n, MODEL_HIDDEN, MODEL_KV, false);
    linear(s->value, s->normed, t + AT_V, n, MODEL_HIDDEN, MODEL_KV, false);
    for (size_t r = 0; r < n; r++)
        place_row(s, w, layer, seqs[r], r);
    for (size_t r = 0; r < n; r++)
        attend(s, layer, seqs[r], r);
    linear(s->x, s->attended, t + AT_O, n, MODEL_Q, MODEL_HIDDEN, true);
    norm_rows(s->normed, s->x, w + AT_MLP_NORM, n);
    linear(s->gate, s->normed, t + AT_GATE, n, MODEL_HIDDEN, MODEL_INTER, false);
    linear(s->up, s->normed, t + AT_UP, n, MODEL_HIDDEN, MODEL_INTER, false);
    kernel_swiglu(s->inner, s->gate, s->up, n * MODEL_INTER);
    linear(s->x, s->inner, t + AT_DOWN, n, MODEL_INTER, MODEL_HIDDEN, true);
}

void model_session_step(model_session *s, const model_weights *weights,
                        const uint32_t *seqs, const int32_t *tokens, size_t n,
                        float *logits)
{
    for (size_t i = 0, rows; i < n; i += rows) {
        rows = n - i < MAX_ROWS ? n - i : MAX_ROWS;
        for (size_t r = 0; r < rows; r++) {
            s->positions[r] = s->lengths[seqs[i + r]]++;
            memcpy(s->x + r * MODEL_HIDDEN,
                   weights->w + AT_EMBEDDING + (size_t)tokens[i + r] * MODEL_HIDDEN,
                   MODEL_HIDDEN * sizeof(float));
        }
        for (size_t layer = 0; layer < MODEL_LAYERS; layer++)
            run_layer(s, weights, layer, seqs + i, rows);
        norm_rows(s->normed, s->x, weights->w + AT_NORM, rows);
        linear(logits + i * MODEL_VOCAB, s->normed, weights->t + AT_EMBEDDING, rows,
               MODEL_HIDDEN, MODEL_VOCAB, false);
    }
}

int32_t model_sample(const float *logits, float temperature, uint64_t *random,
                     float *logp)
{
    int32_t chosen = 0;
    double part[MODEL_VOCAB], mass = 0, plain = 0;
    for (int32_t i = 1; i < MODEL_VOCAB; i++)
        if (logits[i] > logits[chosen])
            chosen = i;
    const float top = logits[chosen];
    for (int32_t i = 0; i < MODEL_VOCAB; i++) {
        plain += exp((double)(logits[i] - top));
        part[i] = temperature > 0 ? exp((double)((logits[i] - top) / temperature)) : 0;
        mass += part[i];
    }
    if (temperature > 0) {
        double left = (double)(program_next_random(random) >> 11) * 0x1p-53 * mass;
        for (int32_t i = 0; i < MODEL_VOCAB; i++) {
            if (part[i] == 0)
                continue;
            chosen = i; /* the last one with mass, if rounding leaves a rest */
            left -= part[i];
            if (left < 0)
                break;
        }
    }
    *logp = (float)((double)(logits[chosen] - top) - log(plain));
    return chosen;
}
