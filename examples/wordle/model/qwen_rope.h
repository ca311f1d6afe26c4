/* Rotary positions: pairs (i, i + head_dim / 2) of a head turn by position * theta^(-2i /
 * head_dim), as transformers pairs them. */
#ifndef WORDLE_QWEN_ROPE_H
#define WORDLE_QWEN_ROPE_H

#include "qwen.h"

typedef struct qwen_rope {
    size_t half;        /* head_dim / 2 */
    size_t n_positions; /* that the tables cover */
    float *cosines;     /* [n_positions][half] */
    float *sines;       /* [n_positions][half] */
} qwen_rope;

/* Covers positions up to N_POSITIONS - 1; grows what is there. False: out of memory. */
bool qwen_rope_cover(qwen_rope *rope, const qwen_config *config, size_t n_positions);
void qwen_rope_release(qwen_rope *rope);

/* Turns one head in place. */
static inline void qwen_rope_turn(const qwen_rope *rope, float *head, size_t position)
{
    size_t half = rope->half;
    const float *c = rope->cosines + position * half, *s = rope->sines + position * half;
    for (size_t i = 0; i < half; i++) {
        float a = head[i], b = head[i + half];
        head[i] = a * c[i] - b * s[i];
        head[i + half] = b * c[i] + a * s[i];
    }
}

/* Turns it back: the gradient of a turn. */
static inline void qwen_rope_turn_back(const qwen_rope *rope, float *head,
                                       size_t position)
{
    size_t half = rope->half;
    const float *c = rope->cosines + position * half, *s = rope->sines + position * half;
    for (size_t i = 0; i < half; i++) {
        float a = head[i], b = head[i + half];
        head[i] = a * c[i] + b * s[i];
        head[i + half] = b * c[i] - a * s[i];
    }
}

#endif
