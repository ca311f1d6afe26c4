/* Attention over packed sequences, and its gradient.
 *
 * A task takes one sequence and one head of keys and values, with the heads of queries
 * that share it: so no two tasks add to the same gradient. The weights of attention are
 * not kept: with the log of their sum, they are computed again from queries and keys.
 */
#include <math.h>
#include <string.h>

#include "qwen_train.h"

typedef struct attention {
    qwen_trainer *t;
    qwen_kept *kept;
} attention;

/* The location of a task's rows. Rows of queries are q_stride apart, of keys kv_stride.
 */
typedef struct head_rows {
    size_t start, length; /* of the sequence */
    size_t kv_head;
    size_t q_stride, kv_stride;
    size_t first_head, last_head;
    float scale;
} head_rows;

static head_rows rows_of(const qwen_trainer *t, size_t task)
{
    const qwen_config *c = &t->config;
    size_t seq = task / c->n_kv_heads, kv_head = task % c->n_kv_heads;
    size_t group = c->n_heads / c->n_kv_heads;
    return (head_rows){
        .start = t->starts[seq],
        .length = t->starts[seq + 1] - t->starts[seq],
        .kv_head = kv_head,
        .q_stride = qwen_q_width(c),
        .kv_stride = qwen_kv_width(c),
        .first_head = kv_head * group,
        .last_head = (kv_head + 1) * group,
        .scale = 1.0f / sqrtf((float)c->head_dim),
    };
}

static void attend(void *context, size_t task, void *scratch)
{
    const attention *a = context;
    const qwen_trainer *t = a->t;
    size_t dim = t->config.head_dim, n_heads = t->config.n_heads;
    head_rows r = rows_of(t, task);
    size_t kv_first = r.start * r.kv_stride + r.kv_head * dim;
    const float *keys = a->kept->k + kv_first, *values = a->kept->v + kv_first;
    float *weights = scratch; /* [length] */
    for (size_t i = 0; i < r.length; i++)
        for (size_t h = r.first_head; h < r.last_head; h++) {
            size_t row = r.start + i, at = row * r.q_stride + h * dim;
            float *out = a->kept->attended + at;
            t->k->dots(weights, a->kept->q + at, keys, r.kv_stride, i + 1, dim);
            float shift = r.scale * t->k->max(weights, i + 1);
            float sum = t->k->exp_sum(weights, i + 1, r.scale, shift);
            a->kept->log_sum[row * n_heads + h] = shift + logf(sum);
            memset(out, 0, dim * sizeof *out);
            t->k->mix(out, weights, values, r.kv_stride, i + 1, dim);
            for (size_t d = 0; d < dim; d++)
                out[d] /= sum;
        }
}

/* With weights p, out = sum p v: dv += p d_out, dp = d_out . v, and through the softmax
 * ds = p (dp - d_out . out), which goes to dq += ds k and dk += ds q. */
static void attend_back(void *context, size_t task, void *scratch)
{
    const attention *a = context;
    const qwen_trainer *t = a->t;
    size_t dim = t->config.head_dim, n_heads = t->config.n_heads;
    head_rows r = rows_of(t, task);
    size_t kv_first = r.start * r.kv_stride + r.kv_head * dim;
    const float *keys = a->kept->k + kv_first, *values = a->kept->v + kv_first;
    float *dk = t->dk + kv_first, *dv = t->dv + kv_first;
    float *p = scratch, *ds = p + r.length; /* [length] each */
    for (size_t i = 0; i < r.length; i++) {
        memset(dk + i * r.kv_stride, 0, dim * sizeof *dk);
        memset(dv + i * r.kv_stride, 0, dim * sizeof *dv);
    }
    for (size_t i = 0; i < r.length; i++)
        for (size_t h = r.first_head; h < r.last_head; h++) {
            size_t row = r.start + i, at = row * r.q_stride + h * dim;
            const float *q = a->kept->q + at, *d_out = t->d_attended + at;
            float *dq = t->dq + at, along;
            t->k->dots(p, q, keys, r.kv_stride, i + 1, dim);
            t->k->exp_sum(p, i + 1, r.scale, a->kept->log_sum[row * n_heads + h]);
            t->k->dots(ds, d_out, values, r.kv_stride, i + 1, dim);
            t->k->dots(&along, d_out, a->kept->attended + at, dim, 1, dim);
            for (size_t j = 0; j <= i; j++)
                ds[j] = r.scale * p[j] * (ds[j] - along);
            memset(dq, 0, dim * sizeof *dq);
            t->k->mix(dq, ds, keys, r.kv_stride, i + 1, dim);
            t->k->spread(dk, r.kv_stride, ds, q, i + 1, dim);
            t->k->spread(dv, r.kv_stride, p, d_out, i + 1, dim);
        }
}

static double n_flops(const qwen_trainer *t)
{
    double pairs = 0;
    for (size_t s = 0; s < t->n_seqs; s++) {
        double length = (double)(t->starts[s + 1] - t->starts[s]);
        pairs += length * length / 2;
    }
    return 4 * pairs * (double)qwen_q_width(&t->config);
}

void qwen_train_attend(qwen_trainer *t, qwen_kept *kept)
{
    attention a = {t, kept};
    qwen_pool_run(t->pool, t->n_seqs * t->config.n_kv_heads, n_flops(t), attend, &a);
}

void qwen_train_attend_back(qwen_trainer *t, qwen_kept *kept)
{
    attention a = {t, kept};
    qwen_pool_run(t->pool, t->n_seqs * t->config.n_kv_heads, 2.5 * n_flops(t),
                  attend_back, &a);
}
