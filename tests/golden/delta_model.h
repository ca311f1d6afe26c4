/* The model that the deltas in golden/deltas start from, and the models they lead to.
 * This file defines all of them, so that any decoder can be tested with the same files.
 */
#ifndef DW_GOLDEN_DELTA_MODEL_H
#define DW_GOLDEN_DELTA_MODEL_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "deltawire/tensor.h"

enum { GOLDEN_TENSORS = 5 };

typedef struct golden_model {
    uint16_t bf16[2000];
    uint32_t f32[1500];
    uint8_t noise[600];
    uint8_t small[8];
    uint64_t scalar;
    dw_tensor tensors[GOLDEN_TENSORS];
} golden_model;

/* A linear congruential generator's upper half. */
static inline uint32_t golden_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 32);
}

/* Sign and mantissa random, exponents from 2^-1 downwards, each half as often. */
static inline uint32_t golden_f32(uint64_t *state)
{
    uint32_t r = golden_random(state);
    uint32_t below = (uint32_t)__builtin_ctz(golden_random(state) | 1u << 12);
    return (r & 0x807fffff) | (126 - below) << 23;
}

static inline void golden_base(golden_model *m)
{
    static const uint64_t d_bf16[] = {40, 50}, d_f32[] = {1500}, d_noise[] = {600},
                          d_small[] = {8};
    uint64_t state = 1;
    for (size_t i = 0; i < 2000; i++)
        m->bf16[i] = (uint16_t)(golden_f32(&state) >> 16);
    for (size_t i = 0; i < 1500; i++)
        m->f32[i] = golden_f32(&state);
    for (size_t i = 0; i < 600; i++)
        m->noise[i] = (uint8_t)i;
    for (size_t i = 0; i < 8; i++)
        m->small[i] = (uint8_t)i;
    m->scalar = 7;
    const dw_tensor tensors[GOLDEN_TENSORS] = {
        {"a.weight", DW_BF16, 2, d_bf16, sizeof m->bf16, m->bf16, 0, NULL},
        {"a.bias", DW_F32, 1, d_f32, sizeof m->f32, m->f32, 0, NULL},
        {"noise", DW_U8, 1, d_noise, sizeof m->noise, m->noise, 0, NULL},
        {"s", DW_U8, 1, d_small, sizeof m->small, m->small, 0, NULL},
        {"z", DW_U64, 0, NULL, sizeof m->scalar, &m->scalar, 0, NULL},
    };
    memcpy(m->tensors, tensors, sizeof tensors);
}

/* Few elements of a.weight one step on, two of them far, and the scalar. */
static inline void golden_change_few(golden_model *m)
{
    for (size_t i = 0; i < 2000; i += 37)
        m->bf16[i] = (uint16_t)(i % 2 ? m->bf16[i] + 1 : m->bf16[i] - 1);
    m->bf16[100] ^= 0x8000;
    m->bf16[1999] = 0x7fc1; /* a NaN with a payload */
    m->scalar++;
}

/* Other weights for a.bias: packed. Noise is replaced with noise: stored. */
static inline void golden_change_all(golden_model *m)
{
    uint64_t state = 2;
    golden_change_few(m);
    for (size_t i = 0; i < 1500; i++)
        m->f32[i] = golden_f32(&state) & 0xffff0000;
    for (size_t i = 0; i < 600; i++)
        m->noise[i] = (uint8_t)golden_random(&state);
}

/* The eight bytes of s, all. */
static inline void golden_change_small(golden_model *m)
{
    for (size_t i = 0; i < 8; i++)
        m->small[i] = (uint8_t)(0x9d * i + 0x80);
}

#endif
