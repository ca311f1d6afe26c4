/* Gradients of the last forward, layer by layer from its end. `dx` is the gradient of
 * what flows from layer to layer; each part of a layer adds to it what goes through that
 * part. */
#include <string.h>

#include "fail.h"
#include "qwen_train.h"

/* ---- matrices -----------------------------------------------------------------------
 */

/* For y = x W^T over all tokens: dW += dy^T x, and dx = dy W, or dx += dy W. */
static void apply_back(qwen_trainer *t, float *dx, const float *dy, const float *x,
                       size_t tensor, bool add)
{
    const qwen_tensor_info *w = &t->infos[tensor];
    size_t n_out = w->dims[0], n_in = w->dims[1];
    qwen_matmul(t->pool, qwen_train_grad(t, tensor),
                qwen_transposed(qwen_rows(dy, n_out)), qwen_rows(x, n_in), n_out, n_in,
                t->n_tokens, true);
    qwen_matmul(t->pool, dx, qwen_rows(dy, n_out),
                qwen_rows_bf16(qwen_train_weight(t, tensor), n_in), t->n_tokens, n_in,
                n_out, add);
}

/* ---- norms --------------------------------------------------------------------------
 */

/* A norm's weight has a gradient from every row. Blocks of rows add up their own, and the
 * blocks are added in order: the result does not depend on the threads. */
static void add_blocks(qwen_trainer *t, size_t tensor)
{
    size_t width = t->infos[tensor].n_elems;
    float *grad = qwen_train_grad(t, tensor);
    for (size_t b = 0; b < qwen_train_blocks(t); b++)
        for (size_t i = 0; i < width; i++)
            grad[i] += t->d_norm[b * width + i];
}

typedef struct norm_job {
    qwen_trainer *t;
    const float *x, *inv_rms;
    const uint16_t *w;
} norm_job;

static void norm_block(void *context, size_t block, void *scratch)
{
    (void)scratch;
    const norm_job *job = context;
    const qwen_trainer *t = job->t;
    size_t width = t->config.n_hidden;
    float *dw = t->d_norm + block * width;
    memset(dw, 0, width * sizeof *dw);
    qwen_range rows = qwen_train_block(t, block);
    for (size_t r = rows.first; r < rows.last; r++)
        t->k->rms_norm_back(t->dx + r * width, dw, t->d_normed + r * width,
                            job->x + r * width, job->w, width, job->inv_rms[r]);
}

/* dx += the gradient of x from d_normed. */
static void norm_back(qwen_trainer *t, const float *x, const float *inv_rms,
                      size_t tensor)
{
    norm_job job = {t, x, inv_rms, qwen_train_weight(t, tensor)};
    qwen_pool_run(t->pool, qwen_train_blocks(t),
                  QWEN_FLOPS_A_FLOAT * 2 * (double)(t->n_tokens * t->config.n_hidden),
                  norm_block, &job);
    add_blocks(t, tensor);
}

typedef struct heads_job {
    qwen_trainer *t;
    float *d_out, *d_raw; /* gradients behind and before norm and rotation */
    const float *raw, *inv_rms;
    const uint16_t *w;
    size_t n_heads;
} heads_job;

static void heads_block(void *context, size_t block, void *scratch)
{
    (void)scratch;
    const heads_job *job = context;
    const qwen_trainer *t = job->t;
    size_t dim = t->config.head_dim;
    float *dw = t->d_norm + block * dim;
    memset(dw, 0, dim * sizeof *dw);
    qwen_range rows = qwen_train_block(t, block);
    for (size_t r = rows.first; r < rows.last; r++)
        for (size_t i = r * job->n_heads; i < (r + 1) * job->n_heads; i++) {
            qwen_rope_turn_back(&t->rope, job->d_out + i * dim, t->positions[r]);
            memset(job->d_raw + i * dim, 0, dim * sizeof(float));
            t->k->rms_norm_back(job->d_raw + i * dim, dw, job->d_out + i * dim,
                                job->raw + i * dim, job->w, dim, job->inv_rms[i]);
        }
}

static void heads_back(heads_job *job, size_t tensor)
{
    qwen_trainer *t = job->t;
    job->w = qwen_train_weight(t, tensor);
    double n_floats = (double)(t->n_tokens * job->n_heads * t->config.head_dim);
    qwen_pool_run(t->pool, qwen_train_blocks(t), QWEN_FLOPS_A_FLOAT * 4 * n_floats,
                  heads_block, job);
    add_blocks(t, tensor);
}

/* ---- layers -------------------------------------------------------------------------
 */

typedef struct layer_job {
    qwen_trainer *t;
    qwen_kept *kept;
} layer_job;

static void gate_block(void *context, size_t block, void *scratch)
{
    (void)scratch;
    const layer_job *job = context;
    const qwen_trainer *t = job->t;
    qwen_range rows = qwen_train_block(t, block);
    size_t first = rows.first * t->config.n_inter;
    t->k->swiglu_back(t->inner + first, job->kept->gate + first, job->kept->up + first,
                      t->d_inner + first, (rows.last - rows.first) * t->config.n_inter);
}

static void mlp_back(qwen_trainer *t, size_t layer)
{
    qwen_kept *kept = &t->kept[layer];
    layer_job job = {t, kept};
    size_t first = qwen_tensor_of(layer, 0), down = first + QWEN_DOWN;
    size_t n_hidden = t->config.n_hidden, n_inter = t->config.n_inter;
    qwen_matmul(t->pool, t->d_inner, qwen_rows(t->dx, n_hidden),
                qwen_rows_bf16(qwen_train_weight(t, down), n_inter), t->n_tokens, n_inter,
                n_hidden, false);
    qwen_pool_run(t->pool, qwen_train_blocks(t),
                  QWEN_FLOPS_A_FLOAT * 4 * (double)(t->n_tokens * n_inter), gate_block,
                  &job);
    qwen_matmul(t->pool, qwen_train_grad(t, down),
                qwen_transposed(qwen_rows(t->dx, n_hidden)), qwen_rows(t->inner, n_inter),
                n_hidden, n_inter, t->n_tokens, true);
    qwen_train_norm(t, kept->x_mid, first + QWEN_MLP_NORM, kept->inv_rms_mlp);
    apply_back(t, t->d_normed, kept->gate, t->normed, first + QWEN_GATE, false);
    apply_back(t, t->d_normed, kept->up, t->normed, first + QWEN_UP, true);
    norm_back(t, kept->x_mid, kept->inv_rms_mlp, first + QWEN_MLP_NORM);
}

static void attention_back(qwen_trainer *t, size_t layer)
{
    qwen_kept *kept = &t->kept[layer];
    size_t first = qwen_tensor_of(layer, 0);
    apply_back(t, t->d_attended, t->dx, kept->attended, first + QWEN_O, false);
    qwen_train_attend_back(t, kept);
    heads_job q = {.t = t,
                   .d_out = t->dq,
                   .d_raw = t->d_raw_q,
                   .raw = kept->raw_q,
                   .inv_rms = kept->inv_rms_q,
                   .n_heads = t->config.n_heads};
    heads_back(&q, first + QWEN_Q_NORM);
    heads_job k = {.t = t,
                   .d_out = t->dk,
                   .d_raw = t->d_raw_k,
                   .raw = kept->raw_k,
                   .inv_rms = kept->inv_rms_k,
                   .n_heads = t->config.n_kv_heads};
    heads_back(&k, first + QWEN_K_NORM);
    qwen_train_norm(t, kept->x, first + QWEN_ATTN_NORM, kept->inv_rms_attn);
    apply_back(t, t->d_normed, t->d_raw_q, t->normed, first + QWEN_Q, false);
    apply_back(t, t->d_normed, t->d_raw_k, t->normed, first + QWEN_K, true);
    apply_back(t, t->d_normed, t->dv, t->normed, first + QWEN_V, true);
    norm_back(t, kept->x, kept->inv_rms_attn, first + QWEN_ATTN_NORM);
}

/* ---- the output layer ---------------------------------------------------------------
 */

typedef struct loss_job {
    const qwen_trainer *t;
    size_t first; /* row of the first logits */
    const float *coef;
} loss_job;

/* One row of logits becomes its gradient: coef * (1 at the token that follows - p). */
static void loss_row(void *context, size_t i, void *scratch)
{
    (void)scratch;
    const loss_job *job = context;
    const qwen_trainer *t = job->t;
    size_t row = job->first + i, n_vocab = t->config.n_vocab;
    float *logits = t->logits + i * n_vocab;
    bool is_last = qwen_train_is_last(t, row);
    if (is_last || job->coef[row] == 0) {
        memset(logits, 0, n_vocab * sizeof *logits);
        return;
    }
    float sum = t->k->exp_sum(logits, n_vocab, 1, t->k->max(logits, n_vocab));
    float scale = -job->coef[row] / sum;
    for (size_t v = 0; v < n_vocab; v++)
        logits[v] *= scale;
    logits[t->tokens[row + 1]] += job->coef[row];
}

/* Computes the logits again, some rows at a time: with a large vocabulary all of them
 * would not fit in memory. */
static void output_back(qwen_trainer *t, const float *coef)
{
    const qwen_config *c = &t->config;
    size_t head = qwen_tensor_head(c), hidden = c->n_hidden, n_vocab = c->n_vocab;
    qwen_train_norm(t, t->x, qwen_tensor_norm(c), t->inv_rms);
    for (size_t row = 0; row < t->n_tokens; row += t->n_logit_rows) {
        size_t n = t->n_tokens - row;
        n = n < t->n_logit_rows ? n : t->n_logit_rows;
        qwen_train_logits(t, row, row + n);
        loss_job job = {t, row, coef};
        qwen_pool_run(t->pool, n, QWEN_FLOPS_A_FLOAT * 4 * (double)(n * n_vocab),
                      loss_row, &job);
        qwen_matmul(t->pool, qwen_train_grad(t, head),
                    qwen_transposed(qwen_rows(t->logits, n_vocab)),
                    qwen_rows(t->normed + row * hidden, hidden), n_vocab, hidden, n,
                    true);
        qwen_matmul(t->pool, t->d_normed + row * hidden, qwen_rows(t->logits, n_vocab),
                    qwen_rows_bf16(qwen_train_weight(t, head), hidden), n, hidden,
                    n_vocab, false);
    }
    memset(t->dx, 0, t->n_tokens * hidden * sizeof(float));
    norm_back(t, t->x, t->inv_rms, qwen_tensor_norm(c));
}

static void embedding_back(qwen_trainer *t)
{
    size_t hidden = t->config.n_hidden;
    float *grad = qwen_train_grad(t, qwen_tensor_embedding(&t->config));
    for (size_t r = 0; r < t->n_tokens; r++)
        for (size_t i = 0; i < hidden; i++)
            grad[(size_t)t->tokens[r] * hidden + i] += t->dx[r * hidden + i];
}

dw_status qwen_trainer_backward(qwen_trainer *t, const float *coef, dw_error *err)
{
    if (!t->has_forward)
        return wordle_fail(err, DW_INVALID, "backward",
                           "there is no forward to go back from: one backward for each");
    output_back(t, coef);
    for (size_t l = t->config.n_layers; l-- > 0;) {
        mlp_back(t, l);
        attention_back(t, l);
    }
    embedding_back(t);
    t->has_forward = false;
    return DW_OK;
}
