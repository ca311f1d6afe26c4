/* AdamW like PyTorch's, on fp32 masters; the bf16 weights are the rounded masters. */
#include <math.h>
#include <string.h>

#include "qwen_train.h"

/* The elements of one task. */
enum { BLOCK_PARAMS = 1 << 16 };

typedef struct step_job {
    qwen_trainer *t;
    qwen_adamw_factors factors;
    float keep_matrix; /* of the masters of matrices; norms are kept whole */
} step_job;

static float gradient_norm(const qwen_trainer *t)
{
    double sum = 0;
    for (size_t first = 0; first < t->n_params; first += BLOCK_PARAMS) {
        size_t n = t->n_params - first;
        float squares;
        const float *grads = t->grads + first;
        n = n < BLOCK_PARAMS ? n : BLOCK_PARAMS;
        t->k->dots(&squares, grads, grads, n, 1, n);
        sum += (double)squares;
    }
    return (float)sqrt(sum);
}

/* Block TASK of the parameters, which may cross several tensors. */
static void step_block(void *context, size_t task, void *scratch)
{
    (void)scratch;
    const step_job *job = context;
    qwen_trainer *t = job->t;
    size_t first = task * BLOCK_PARAMS, last = first + BLOCK_PARAMS;
    last = last < t->n_params ? last : t->n_params;
    for (size_t i = 0; i < t->n_tensors; i++) {
        size_t from = t->offsets[i] > first ? t->offsets[i] : first;
        size_t to = t->offsets[i + 1] < last ? t->offsets[i + 1] : last;
        if (from >= to)
            continue;
        qwen_adamw_factors f = job->factors;
        f.keep = t->infos[i].n_dims == 1 ? 1.0f : job->keep_matrix;
        t->k->adamw(t->masters + from, t->moment1 + from, t->moment2 + from,
                    t->grads + from, to - from, &f);
    }
    dw_cast_bf16(t->weights + first, t->masters + first, last - first);
}

float qwen_trainer_step(qwen_trainer *t, const qwen_adamw *a)
{
    float norm = gradient_norm(t);
    if (isfinite(norm)) {
        double n_steps = (double)++t->n_steps;
        step_job job = {.t = t, .keep_matrix = 1.0f - a->lr * a->weight_decay};
        job.factors = (qwen_adamw_factors){
            .grad_scale = 1.0f,
            .beta1 = a->beta1,
            .beta2 = a->beta2,
            .step = (float)((double)a->lr / (1 - pow((double)a->beta1, n_steps))),
            .inv_v_spread = (float)(1 / sqrt(1 - pow((double)a->beta2, n_steps))),
            .eps = a->eps};
        if (a->max_grad_norm > 0 && norm > a->max_grad_norm)
            job.factors.grad_scale = a->max_grad_norm / (norm + 1e-6f);
        size_t n_blocks = (t->n_params + BLOCK_PARAMS - 1) / BLOCK_PARAMS;
        qwen_pool_run(t->pool, n_blocks, 16.0 * (double)t->n_params, step_block, &job);
    }
    memset(t->grads, 0, t->n_params * sizeof *t->grads);
    t->has_forward = false; /* it was computed with other weights */
    return norm;
}
