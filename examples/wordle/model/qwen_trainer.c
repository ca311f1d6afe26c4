/* The trainer's parameters: their sources and their memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "qwen_random.h"
#include "qwen_train.h"

/* Logits of as many rows as fit in this many floats are computed at a time. */
enum { LOGIT_FLOATS = 1 << 20 };

static bool allocate_params(qwen_trainer *t)
{
    size_t n = t->n_tensors = qwen_tensor_count(&t->config);
    t->offsets = calloc(n + 1, sizeof *t->offsets);
    t->infos = calloc(n, sizeof *t->infos);
    t->tensors = calloc(n, sizeof *t->tensors);
    t->kept = calloc(t->config.n_layers, sizeof *t->kept);
    if (t->offsets == NULL || t->infos == NULL || t->tensors == NULL || t->kept == NULL)
        return false;
    for (size_t i = 0; i < n; i++) {
        t->infos[i] = qwen_tensor_describe(&t->config, i);
        t->offsets[i + 1] = t->offsets[i] + t->infos[i].n_elems;
    }
    t->n_params = t->offsets[n];
    t->weights = calloc(t->n_params, sizeof *t->weights);
    float **arrays[] = {&t->masters, &t->grads, &t->moment1, &t->moment2};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        if ((*arrays[i] = calloc(t->n_params, sizeof(float))) == NULL)
            return false;
    return t->weights != NULL;
}

static void describe_weights(qwen_trainer *t)
{
    for (size_t i = 0; i < t->n_tensors; i++)
        t->tensors[i] = (dw_tensor){.name = t->infos[i].name,
                                    .dtype = DW_BF16,
                                    .n_dims = t->infos[i].n_dims,
                                    .dims = t->infos[i].dims,
                                    .n_bytes = t->infos[i].n_elems * sizeof(uint16_t),
                                    .data = t->weights + t->offsets[i]};
}

dw_status qwen_trainer_new(qwen_trainer **out, const qwen_config *config,
                           unsigned n_threads, dw_error *err)
{
    qwen_trainer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return wordle_fail(err, DW_NO_MEMORY, "trainer", "out of memory");
    t->config = *config;
    t->k = qwen_kernels_get();
    t->n_logit_rows = LOGIT_FLOATS / config->n_vocab;
    t->n_logit_rows = t->n_logit_rows < 16 ? 16 : t->n_logit_rows;
    t->logits = malloc(t->n_logit_rows * config->n_vocab * sizeof *t->logits);
    size_t scratch_bytes = 2 * QWEN_MAX_LENGTH * sizeof(float); /* for attention */
    if (scratch_bytes < qwen_matmul_scratch_bytes())
        scratch_bytes = qwen_matmul_scratch_bytes();
    dw_status status = DW_OK;
    if (t->logits == NULL || !allocate_params(t))
        status = wordle_fail(err, DW_NO_MEMORY, "trainer",
                             "no memory for %zu parameters: 18 bytes each", t->n_params);
    if (status == DW_OK)
        status = qwen_pool_new(&t->pool, n_threads, scratch_bytes, err);
    if (status != DW_OK) {
        qwen_trainer_free(t);
        return status;
    }
    describe_weights(t);
    *out = t;
    return DW_OK;
}

void qwen_trainer_free(qwen_trainer *t)
{
    if (t == NULL)
        return;
    qwen_pool_free(t->pool);
    qwen_rope_release(&t->rope);
    qwen_train_release_batch(t);
    free(t->kept);
    free(t->logits);
    free(t->offsets);
    free(t->infos);
    free(t->tensors);
    free(t->weights);
    free(t->masters);
    free(t->grads);
    free(t->moment1);
    free(t->moment2);
    free(t);
}

const dw_tensor *qwen_trainer_weights(const qwen_trainer *t, size_t *n)
{
    *n = t->n_tensors;
    return t->tensors;
}

uint64_t qwen_trainer_steps(const qwen_trainer *t)
{
    return t->n_steps;
}

/* New masters: the moments of the old ones are dropped. */
static void start_anew(qwen_trainer *t)
{
    dw_cast_bf16(t->weights, t->masters, t->n_params);
    memset(t->grads, 0, t->n_params * sizeof *t->grads);
    memset(t->moment1, 0, t->n_params * sizeof *t->moment1);
    memset(t->moment2, 0, t->n_params * sizeof *t->moment2);
    t->n_steps = 0;
    t->has_forward = false;
}

dw_status qwen_trainer_load(qwen_trainer *t, const dw_tensor *tensors, size_t n,
                            dw_error *err)
{
    for (int pass = 0; pass < 2;
         pass++) /* all of them are checked before any is copied */
        for (size_t i = 0; i < t->n_tensors; i++) {
            dw_error trouble;
            const dw_tensor *from = qwen_tensor_find(&t->infos[i], tensors, n, &trouble);
            if (from == NULL) {
                if (err != NULL)
                    *err = trouble;
                return trouble.code;
            }
            if (from->dtype != DW_BF16 && from->dtype != DW_F32)
                return wordle_fail(err, DW_UNSUPPORTED, from->name,
                                   "is %s: weights must be BF16 or F32",
                                   dw_dtype_name(from->dtype));
            float *to = t->masters + t->offsets[i];
            if (pass == 0)
                continue;
            if (from->dtype == DW_F32)
                memcpy(to, from->data, from->n_bytes);
            else
                for (size_t e = 0; e < t->infos[i].n_elems; e++) {
                    uint16_t bits;
                    memcpy(&bits, (const char *)from->data + e * sizeof bits,
                           sizeof bits);
                    to[e] = qwen_bf16(bits);
                }
        }
    start_anew(t);
    return DW_OK;
}

/* ---- random weights -----------------------------------------------------------------
 */

/* A sum of twelve uniform numbers is close enough to normal here. */
static float random_normal(uint64_t *state)
{
    float sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (float)(qwen_random_bits(state) >> 40) * 0x1p-24f;
    return sum;
}

void qwen_trainer_init(qwen_trainer *t, uint64_t seed)
{
    /* not lost beside what the first layers add, whose outputs are near 1 */
    const float embedding_spread = 0.1f;
    for (size_t i = 0; i < t->n_tensors; i++) {
        const qwen_tensor_info *info = &t->infos[i];
        bool is_inside = i < qwen_tensor_embedding(&t->config);
        qwen_slot slot = i % QWEN_SLOTS;
        float spread = is_inside ? 1.0f / sqrtf((float)info->dims[1]) : embedding_spread;
        /* what is added to the stream of a deep model begins small */
        if (is_inside && (slot == QWEN_O || slot == QWEN_DOWN))
            spread /= sqrtf(2.0f * (float)t->config.n_layers);
        for (size_t e = t->offsets[i]; e < t->offsets[i + 1]; e++)
            t->masters[e] = info->n_dims == 1 ? 1.0f : spread * random_normal(&seed);
    }
    start_anew(t);
}
