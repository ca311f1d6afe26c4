/* Forward over a batch of packed sequences, keeping what the backward needs. */
#include <math.h>
#include <string.h>

#include "fail.h"
#include "qwen_train.h"

/* ---- loops over blocks of rows ------------------------------------------------------
 */

typedef struct norm_job {
    qwen_trainer *t;
    const float *x;
    const uint16_t *w;
    float *inv_rms;
} norm_job;

static void norm_block(void *context, size_t block, void *scratch)
{
    (void)scratch;
    const norm_job *job = context;
    const qwen_trainer *t = job->t;
    size_t width = t->config.n_hidden;
    qwen_range rows = qwen_train_block(t, block);
    for (size_t r = rows.first; r < rows.last; r++)
        job->inv_rms[r] = t->k->rms_norm(t->normed + r * width, job->x + r * width,
                                         job->w, width, t->config.rms_eps);
}

void qwen_train_norm(qwen_trainer *t, const float *x, size_t tensor, float *inv_rms)
{
    norm_job job = {t, x, qwen_train_weight(t, tensor), inv_rms};
    qwen_pool_run(t->pool, qwen_train_blocks(t),
                  QWEN_FLOPS_A_FLOAT * (double)(t->n_tokens * t->config.n_hidden),
                  norm_block, &job);
}

typedef struct layer_job {
    qwen_trainer *t;
    size_t layer;
} layer_job;

/* Norms and turns N_HEADS heads of a row. */
static void turn_heads(const qwen_trainer *t, float *out, const float *raw,
                       const uint16_t *norm, float *inv_rms, size_t n_heads,
                       size_t position)
{
    size_t dim = t->config.head_dim;
    for (size_t h = 0; h < n_heads; h++) {
        inv_rms[h] =
            t->k->rms_norm(out + h * dim, raw + h * dim, norm, dim, t->config.rms_eps);
        qwen_rope_turn(&t->rope, out + h * dim, position);
    }
}

static void turn_block(void *context, size_t block, void *scratch)
{
    (void)scratch;
    const layer_job *job = context;
    const qwen_trainer *t = job->t;
    const qwen_config *c = &t->config;
    const qwen_kept *kept = &t->kept[job->layer];
    size_t q_width = qwen_q_width(c), kv_width = qwen_kv_width(c);
    const uint16_t *q_norm =
        qwen_train_weight(t, qwen_tensor_of(job->layer, QWEN_Q_NORM));
    const uint16_t *k_norm =
        qwen_train_weight(t, qwen_tensor_of(job->layer, QWEN_K_NORM));
    qwen_range rows = qwen_train_block(t, block);
    for (size_t r = rows.first; r < rows.last; r++) {
        turn_heads(t, kept->q + r * q_width, kept->raw_q + r * q_width, q_norm,
                   kept->inv_rms_q + r * c->n_heads, c->n_heads, t->positions[r]);
        turn_heads(t, kept->k + r * kv_width, kept->raw_k + r * kv_width, k_norm,
                   kept->inv_rms_k + r * c->n_kv_heads, c->n_kv_heads, t->positions[r]);
    }
}

static void gate_block(void *context, size_t block, void *scratch)
{
    (void)scratch;
    const layer_job *job = context;
    const qwen_trainer *t = job->t;
    const qwen_kept *kept = &t->kept[job->layer];
    qwen_range rows = qwen_train_block(t, block);
    size_t first = rows.first * t->config.n_inter;
    size_t n = (rows.last - rows.first) * t->config.n_inter;
    memcpy(t->inner + first, kept->up + first, n * sizeof(float));
    t->k->times_silu(t->inner + first, kept->gate + first, n);
}

/* ---- the model ----------------------------------------------------------------------
 */

/* y = x W^T, or y += x W^T, for all tokens */
static void apply(qwen_trainer *t, float *y, const float *x, size_t tensor, bool add)
{
    const qwen_tensor_info *w = &t->infos[tensor];
    qwen_linear(t->pool, y, x, qwen_train_weight(t, tensor), t->n_tokens, w->dims[0],
                w->dims[1], add);
}

/* From kept->x to NEXT, the input of the layer after it. */
static void run_layer(qwen_trainer *t, size_t layer, float *next)
{
    const qwen_config *c = &t->config;
    qwen_kept *kept = &t->kept[layer];
    layer_job job = {t, layer};
    size_t first = qwen_tensor_of(layer, 0), n_blocks = qwen_train_blocks(t);
    size_t x_bytes = t->n_tokens * c->n_hidden * sizeof(float);

    qwen_train_norm(t, kept->x, first + QWEN_ATTN_NORM, kept->inv_rms_attn);
    apply(t, kept->raw_q, t->normed, first + QWEN_Q, false);
    apply(t, kept->raw_k, t->normed, first + QWEN_K, false);
    apply(t, kept->v, t->normed, first + QWEN_V, false);
    qwen_pool_run(t->pool, n_blocks,
                  QWEN_FLOPS_A_FLOAT * (double)(t->n_tokens * qwen_q_width(c)),
                  turn_block, &job);
    qwen_train_attend(t, kept);
    memcpy(kept->x_mid, kept->x, x_bytes);
    apply(t, kept->x_mid, kept->attended, first + QWEN_O, true);

    qwen_train_norm(t, kept->x_mid, first + QWEN_MLP_NORM, kept->inv_rms_mlp);
    apply(t, kept->gate, t->normed, first + QWEN_GATE, false);
    apply(t, kept->up, t->normed, first + QWEN_UP, false);
    qwen_pool_run(t->pool, n_blocks,
                  QWEN_FLOPS_A_FLOAT * 4 * (double)(t->n_tokens * c->n_inter), gate_block,
                  &job);
    memcpy(next, kept->x_mid, x_bytes);
    apply(t, next, t->inner, first + QWEN_DOWN, true);
}

void qwen_train_logits(qwen_trainer *t, size_t first, size_t last)
{
    const qwen_config *c = &t->config;
    qwen_linear(t->pool, t->logits, t->normed + first * c->n_hidden,
                qwen_train_weight(t, qwen_tensor_head(c)), last - first, c->n_vocab,
                c->n_hidden, false);
}

typedef struct score_job {
    const qwen_trainer *t;
    size_t first; /* row of the first logits */
    float *logp, *entropy;
} score_job;

/* Turns one row of logits into the log-probability of the token that follows. */
static void score_row(void *context, size_t i, void *scratch)
{
    (void)scratch;
    const score_job *job = context;
    const qwen_trainer *t = job->t;
    size_t row = job->first + i, n_vocab = t->config.n_vocab;
    float *logits = t->logits + i * n_vocab, sum, mean = 0;
    bool is_last = qwen_train_is_last(t, row);
    float shift = t->k->max(logits, n_vocab);
    float chosen = is_last ? 0 : logits[t->tokens[row + 1]];
    if (job->entropy == NULL) {
        sum = t->k->exp_sum(logits, n_vocab, 1, shift);
    } else {
        /* the entropy is log(sum) - sum of p * (logit - shift), and each p is at hand */
        sum = 0;
        for (size_t v = 0; v < n_vocab; v++) {
            float centred = logits[v] - shift;
            float part = expf(centred);
            sum += part;
            mean += part * centred;
        }
        job->entropy[row] = is_last ? 0 : logf(sum) - mean / sum;
    }
    job->logp[row] = is_last ? 0 : chosen - shift - logf(sum);
}

dw_status qwen_trainer_forward(qwen_trainer *t, const int32_t *tokens,
                               const uint32_t *lengths, size_t n_seqs, float *logp,
                               float *entropy, dw_error *err)
{
    dw_status status = qwen_train_take_batch(t, tokens, lengths, n_seqs, err);
    if (status != DW_OK)
        return status;
    const qwen_config *c = &t->config;
    const uint16_t *embedding = qwen_train_weight(t, qwen_tensor_embedding(c));
    float *x = t->kept[0].x;
    for (size_t r = 0; r < t->n_tokens; r++)
        for (size_t i = 0; i < c->n_hidden; i++)
            x[r * c->n_hidden + i] =
                qwen_bf16(embedding[(size_t)t->tokens[r] * c->n_hidden + i]);
    for (size_t l = 0; l < c->n_layers; l++)
        run_layer(t, l, l + 1 < c->n_layers ? t->kept[l + 1].x : t->x);
    qwen_train_norm(t, t->x, qwen_tensor_norm(c), t->inv_rms);
    for (size_t row = 0; row < t->n_tokens; row += t->n_logit_rows) {
        size_t last = row + t->n_logit_rows;
        last = last < t->n_tokens ? last : t->n_tokens;
        qwen_train_logits(t, row, last);
        score_job job = {t, row, logp, entropy};
        qwen_pool_run(t->pool, last - row,
                      QWEN_FLOPS_A_FLOAT * 4 * (double)((last - row) * c->n_vocab),
                      score_row, &job);
    }
    t->has_forward = true;
    return DW_OK;
}
