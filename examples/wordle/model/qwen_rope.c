#include "qwen_rope.h"

#include <math.h>
#include <stdlib.h>

bool qwen_rope_cover(qwen_rope *rope, const qwen_config *config, size_t n_positions)
{
    if (n_positions <= rope->n_positions)
        return true;
    size_t half = config->head_dim / 2;
    float *cosines = realloc(rope->cosines, n_positions * half * sizeof *cosines);
    if (cosines == NULL)
        return false;
    rope->cosines = cosines;
    float *sines = realloc(rope->sines, n_positions * half * sizeof *sines);
    if (sines == NULL)
        return false;
    rope->sines = sines;
    rope->half = half;
    for (size_t i = 0; i < half; i++) {
        /* in the precision that transformers has here: angles are rounded to fp32 */
        float speed =
            1.0f / powf(config->rope_theta, (float)(2 * i) / (float)config->head_dim);
        for (size_t p = rope->n_positions; p < n_positions; p++) {
            float angle = (float)p * speed;
            cosines[p * half + i] = cosf(angle);
            sines[p * half + i] = sinf(angle);
        }
    }
    rope->n_positions = n_positions;
    return true;
}

void qwen_rope_release(qwen_rope *rope)
{
    free(rope->cosines);
    free(rope->sines);
    *rope = (qwen_rope){0};
}
