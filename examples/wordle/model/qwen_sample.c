/* Choosing a token from logits. Nothing is sorted or allocated: the end of top_p is found
 * by halving the range of logits, so any vocabulary works. */
#include "qwen.h"

#include <math.h>

#include "qwen_random.h"

static uint32_t likeliest(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Sum of exp((logit - top) / temperature) over logits of at least LOWEST; not a number if
 * one of the logits is none. */
static double mass_from(const float *logits, uint32_t n, float lowest, float top,
                        float temperature)
{
    double mass = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!(logits[i] < lowest))
            mass += (double)expf((logits[i] - top) / temperature);
    return mass;
}

/* The highest logit such that those from it upwards have TOP_P of all the mass. */
static float nucleus_floor(const float *logits, uint32_t n, float top, float temperature,
                           float top_p)
{
    double wanted = (double)top_p * mass_from(logits, n, -INFINITY, top, temperature);
    float low = top - 100.0f * temperature; /* logits below have negligible mass */
    float high = top;
    if (mass_from(logits, n, high, top, temperature) >= wanted)
        return high;
    for (;;) {
        float middle = low + (high - low) / 2;
        if (!(middle > low && middle < high))
            return low;
        if (mass_from(logits, n, middle, top, temperature) >= wanted)
            low = middle;
        else
            high = middle;
    }
}

int32_t qwen_sample(const float *logits, uint32_t n_vocab, float temperature, float top_p,
                    uint64_t *rng, float *logp, float *sampled_logp)
{
    uint32_t chosen = likeliest(logits, n_vocab);
    float top = logits[chosen];
    double chance = 1;
    if (temperature > 0) {
        float lowest = top_p < 1 ? nucleus_floor(logits, n_vocab, top, temperature, top_p)
                                 : -INFINITY;
        double mass = mass_from(logits, n_vocab, lowest, top, temperature);
        double left = qwen_random_unit(rng) * mass;
        for (uint32_t i = 0; i < n_vocab; i++) {
            if (!(logits[i] >= lowest))
                continue;
            double part = (double)expf((logits[i] - top) / temperature);
            if (part == 0)
                continue;
            chosen = i; /* the last one with mass, if rounding leaves a rest */
            left -= part;
            if (left < 0)
                break;
        }
        chance = (double)expf((logits[chosen] - top) / temperature) / mass;
    }
    if (logp != NULL)
        *logp = (float)((double)(logits[chosen] - top) -
                        log(mass_from(logits, n_vocab, -INFINITY, top, 1)));
    if (sampled_logp != NULL)
        *sampled_logp = (float)log(chance);
    return (int32_t)chosen;
}
