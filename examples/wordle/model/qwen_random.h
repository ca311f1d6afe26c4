/* Random numbers from one word of state: splitmix64. */
#ifndef WORDLE_QWEN_RANDOM_H
#define WORDLE_QWEN_RANDOM_H

#include <stdint.h>

static inline uint64_t qwen_random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [0, 1). */
static inline double qwen_random_unit(uint64_t *state)
{
    return (double)(qwen_random_bits(state) >> 11) * 0x1p-53;
}

#endif
