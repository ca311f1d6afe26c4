#include "truth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD 50 /* steps for which a weight stays the same */

/* Versions are cut between small tensors, so several objects need several tensors. */
static const struct {
    const char *name;
    dw_dtype dtype;
    uint32_t n_dims;
    uint64_t dims[3];
} shapes[SOAK_TENSORS] = {
    {"embed.weight", DW_BF16, 2, {160, 96}},
    {"layers.0.attn.weight", DW_BF16, 2, {64, 128}},
    {"layers.0.mlp.weight", DW_BF16, 2, {96, 100}},
    {"layers.0.norm", DW_F32, 1, {1500}},
    {"layers.1.attn.weight", DW_BF16, 2, {64, 128}},
    {"layers.1.mlp.weight", DW_BF16, 2, {96, 100}},
    {"layers.1.norm", DW_F32, 1, {1500}},
    {"layers.2.attn.weight", DW_F16, 2, {64, 128}},
    {"layers.2.mlp.weight", DW_F8_E4M3, 3, {3, 50, 70}},
    {"layers.2.none", DW_F32, 2, {0, 4}},
    {"layers.2.norm", DW_F64, 1, {700}},
    {"lm_head.scale", DW_F32, 0, {0}},
    {"lm_head.weight", DW_BF16, 2, {160, 64}},
    {"tokens.seen", DW_I64, 1, {301}},
};

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t soak_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    return mix(*state);
}

void soak_model_make(soak_model *model)
{
    size_t n_bytes = 0;
    for (size_t i = 0; i < SOAK_TENSORS; i++) {
        dw_tensor *t = &model->tensors[i];
        *t = (dw_tensor){.name = shapes[i].name,
                         .dtype = shapes[i].dtype,
                         .n_dims = shapes[i].n_dims,
                         .dims = shapes[i].dims};
        if (!dw_shape_size(t->dtype, t->n_dims, t->dims, NULL, &t->n_bytes))
            abort();
        n_bytes += ((size_t)t->n_bytes + 15) / 16 * 16;
    }
    model->n_bytes = n_bytes;
    model->bytes = calloc(1, n_bytes);
    if (!model->bytes)
        abort();
    uint8_t *at = model->bytes;
    for (size_t i = 0; i < SOAK_TENSORS; i++) {
        model->tensors[i].data = at;
        at += ((size_t)model->tensors[i].n_bytes + 15) / 16 * 16;
    }
}

void soak_model_free(soak_model *model)
{
    free(model->bytes);
    model->bytes = NULL;
}

/* Weight I of tensor T: a new value every PERIOD steps, each weight at its own time. */
static uint64_t weight(uint64_t seed, uint64_t step, uint64_t t, uint64_t i)
{
    uint64_t place = mix(seed ^ mix(t << 32 | i));
    return mix(place ^ (step + place % PERIOD) / PERIOD);
}

static void set_tensor(void *data, size_t width, size_t n, uint64_t t, uint64_t seed,
                       uint64_t step)
{
    uint8_t *at = data;
    for (size_t i = 0; i < n; i++, at += width) {
        uint64_t bits = weight(seed, step, t, i);
        memcpy(at, &bits, width); /* any pattern of bits is a weight */
    }
}

static uint64_t effective(uint64_t step)
{
    return step % 7 == 3 ? step - 1 : step; /* such a step changes nothing */
}

void soak_model_set(soak_model *model, uint64_t seed, uint64_t step)
{
    for (size_t t = 0; t < SOAK_TENSORS; t++) {
        const dw_tensor *tensor = &model->tensors[t];
        size_t width = dw_dtype_bits(tensor->dtype) / 8;
        set_tensor(tensor->data, width, (size_t)tensor->n_bytes / width, t, seed,
                   effective(step));
    }
}

bool soak_step_of(const dw_version_info *info, uint64_t *step)
{
    char *end = NULL;
    *step = 0;
    if (info->version == 0)
        return *info->step == '\0';
    *step = strtoull(info->step, &end, 10);
    return end != info->step && *end == '\0';
}

bool soak_is_step(const dw_tensor *tensors, size_t n_tensors, uint64_t seed,
                  uint64_t step)
{
    soak_model want;
    soak_model_make(&want);
    soak_model_set(&want, seed, step);
    size_t n_same = 0;
    for (size_t i = 0; i < n_tensors; i++)
        for (size_t k = 0; k < SOAK_TENSORS; k++) {
            const dw_tensor *w = &want.tensors[k];
            if (strcmp(tensors[i].name, w->name) != 0)
                continue;
            if (tensors[i].n_bytes == w->n_bytes &&
                (w->n_bytes == 0 ||
                 memcmp(tensors[i].data, w->data, (size_t)w->n_bytes) == 0))
                n_same++;
            else
                fprintf(stderr, "%s is not that of step %llu\n", w->name,
                        (unsigned long long)step);
        }
    soak_model_free(&want);
    return n_tensors == SOAK_TENSORS && n_same == SOAK_TENSORS;
}
