/* A tiny random Qwen3 whose widths fill no vector. */
#ifndef WORDLE_TEST_SMALL_MODEL_H
#define WORDLE_TEST_SMALL_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "qwen_train.h"

#define assert_ok(call, err)                                                             \
    do {                                                                                 \
        if ((call) != DW_OK)                                                             \
            fail_msg("%s: %s", (err).where, (err).text);                                 \
    } while (0)

static inline qwen_config small_config(bool tied)
{
    return (qwen_config){.n_vocab = 37,
                         .n_hidden = 20,
                         .n_inter = 28,
                         .n_layers = 2,
                         .n_heads = 6,
                         .n_kv_heads = 2,
                         .head_dim = 6,
                         .max_positions = 64,
                         .rope_theta = 10000,
                         .rms_eps = 1e-6f,
                         .tied = tied,
                         .eos = -1};
}

static inline uint32_t random_below(uint64_t *rng, uint32_t n)
{
    *rng = *rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*rng >> 33) % n;
}

static inline float random_float(uint64_t *rng) /* -1 to 1 */
{
    return (float)random_below(rng, 1 << 24) * 0x1p-23f - 1;
}

/* With norms that are not all 1, and logits that differ. */
static inline qwen_trainer *small_trainer(const qwen_config *c, unsigned n_threads)
{
    qwen_trainer *t;
    dw_error err;
    uint64_t rng = 5;
    assert_ok(qwen_trainer_new(&t, c, n_threads, &err), err);
    qwen_trainer_init(t, 11);
    for (size_t i = 0; i < t->n_tensors; i++)
        for (size_t e = t->offsets[i]; e < t->offsets[i + 1]; e++) {
            if (t->infos[i].n_dims == 1)
                t->masters[e] = 1 + 0.3f * random_float(&rng);
            else if (i >= qwen_tensor_embedding(c))
                t->masters[e] *= 20;
        }
    dw_cast_bf16(t->weights, t->masters, t->n_params);
    return t;
}

static inline void random_tokens(int32_t *tokens, size_t n, uint32_t n_vocab,
                                 uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)random_below(&seed, n_vocab);
}

static inline void assert_near(const float *a, const float *b, size_t n, float tolerance)
{
    for (size_t i = 0; i < n; i++)
        if (!(a[i] - b[i] < tolerance && b[i] - a[i] < tolerance))
            fail_msg("element %zu: %.9g and %.9g", i, (double)a[i], (double)b[i]);
}

#endif
