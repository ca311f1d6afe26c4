/* A trainer with a small model, what a plain quantiser makes of it, and a follower that
 * compares. */
#ifndef UNIT_QUANT_TRAINER_H
#define UNIT_QUANT_TRAINER_H

#include <math.h>

#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

/* ---- the trainer's model ---- */

enum { EMBED, STACK, LARGE, MASTER, NORM, N_SOURCE };

static const char *const names[N_SOURCE] = {
    "model.embed_tokens.weight",
    "model.layers.0.mlp.experts.down_proj.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.norm.weight",
};
static const uint64_t dims[N_SOURCE][3] = {[EMBED] = {40, 24},
                                           [STACK] = {3, 130, 70},
                                           [LARGE] = {600, 500},
                                           [MASTER] = {257, 129},
                                           [NORM] = {70}};
static const uint32_t n_dims[N_SOURCE] = {2, 3, 2, 2, 1};

typedef struct trainer {
    dw_tensor tensors[N_SOURCE];
    uint64_t n[N_SOURCE];
    bool as_bf16[N_SOURCE];
} trainer;

static inline float as_float(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static inline uint16_t as_bf16(float x)
{
    uint16_t out;
    dw_cast_bf16(&out, &x, 1);
    return out;
}

static inline float draw(void)
{
    return ((float)random_below(2000001) - 1000000) * 1e-6f *
           (random_below(50) ? 1e-3f : 1.0f);
}

static inline void set(trainer *m, size_t t, uint64_t i, float x)
{
    if (m->tensors[t].dtype == DW_F32)
        ((float *)m->tensors[t].data)[i] = x;
    else
        ((uint16_t *)m->tensors[t].data)[i] = as_bf16(x);
}

static inline void trainer_make(trainer *m)
{
    *m = (trainer){.as_bf16 = {[MASTER] = true}};
    for (size_t t = 0; t < N_SOURCE; t++) {
        const dw_dtype dtype = t == MASTER ? DW_F32 : DW_BF16;
        uint64_t n_bytes;
        assert_true(dw_shape_size(dtype, n_dims[t], dims[t], &m->n[t], &n_bytes));
        m->tensors[t] = (dw_tensor){
            names[t], dtype, n_dims[t], dims[t], n_bytes, calloc(1, n_bytes), 0, NULL};
        for (uint64_t i = 0; i < m->n[t]; i++)
            set(m, t, i, draw());
    }
    /* a block without any weight but zeros, and one with tiny ones */
    for (uint64_t i = 0; i < 128; i++)
        for (uint64_t k = 0; k < 128; k++) {
            set(m, LARGE, i * 500 + k, 0);
            set(m, LARGE, i * 500 + 128 + k, 1e-40f);
        }
}

static inline void trainer_free(trainer *m)
{
    for (size_t t = 0; t < N_SOURCE; t++)
        free(m->tensors[t].data);
}

static inline void trainer_step(trainer *m, unsigned per_mille)
{
    for (size_t t = 0; t < N_SOURCE; t++)
        for (uint64_t i = 0; i < m->n[t]; i++)
            if (random_below(1000) < per_mille)
                set(m, t, i, draw());
}

/* ---- a plain quantiser ---- */

static inline float fp8_value(unsigned code)
{
    const int exponent = (int)(code >> 3 & 15), fraction = (int)(code & 7);
    float size = (float)(exponent ? 8 + fraction : fraction) / 512; /* 2^-9 */
    for (int i = 1; i < exponent; i++)
        size *= 2;
    return code & 128 ? -size : size;
}

/* To the nearest integer, halfway to even, for small numbers. */
static inline float nearest(float x)
{
    const volatile float sum = x + 0x1.8p23f;
    return sum - 0x1.8p23f;
}

static inline float larger(float a, float b)
{
    return a > b ? a : b;
}

/* The nearest of all values; of two, the one with an even code. */
static inline uint8_t to_fp8(float x)
{
    unsigned low = 0, high = 126; /* 127 is NaN; values ascend with their codes */
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        if (fp8_value(middle) <= fabsf(x))
            low = middle;
        else
            high = middle;
    }
    const float below = fabsf(x) - fp8_value(low), above = fp8_value(high) - fabsf(x);
    const bool up = above < below || (above == below && high % 2 == 0);
    return (uint8_t)((up ? high : low) | (signbit(x) ? 128 : 0));
}

typedef struct expected {
    uint8_t *weights;
    float *scales;
    uint64_t n_scales;
} expected;

static inline float source(const trainer *m, size_t t, uint64_t i, bool from_f32)
{
    if (m->tensors[t].dtype != DW_F32)
        return as_float(((const uint16_t *)m->tensors[t].data)[i]);
    const float x = ((const float *)m->tensors[t].data)[i];
    return from_f32 ? x : as_float(as_bf16(x));
}

static inline expected quantise(const trainer *m, size_t t, const dw_quant_options *o)
{
    const bool block = o->scheme == DW_QUANT_FP8_BLOCK,
               fp8 = o->scheme != DW_QUANT_INT8_ROW;
    const uint64_t cols = dims[t][n_dims[t] - 1], rows = dims[t][n_dims[t] - 2];
    const uint64_t stack = n_dims[t] == 3 ? dims[t][0] : 1;
    const uint64_t high = block ? 128 : 1, wide = block ? 128 : cols;
    expected out = {malloc(m->n[t]), malloc((stack * rows * 2 + 8) * 4 * 8), 0};
    for (uint64_t s = 0; s < stack; s++)
        for (uint64_t r = 0; r < rows; r += high)
            for (uint64_t c = 0; c < cols; c += wide) {
                const uint64_t r1 = r + high < rows ? r + high : rows;
                const uint64_t c1 = c + wide < cols ? c + wide : cols;
                float most = 0;
                for (uint64_t i = r; i < r1; i++)
                    for (uint64_t k = c; k < c1; k++)
                        most = larger(most, fabsf(source(m, t, (s * rows + i) * cols + k,
                                                         o->from_f32)));
                float scale = most / (fp8 ? 448.0f : 127.0f);
                scale = most == 0 ? 1 : larger(scale, 0x1p-126f);
                out.scales[out.n_scales++] = scale;
                for (uint64_t i = r; i < r1; i++)
                    for (uint64_t k = c; k < c1; k++) {
                        const uint64_t at = (s * rows + i) * cols + k;
                        const float x = source(m, t, at, o->from_f32) / scale;
                        out.weights[at] = fp8 ? to_fp8(x)
                                              : (uint8_t)(int8_t)larger(
                                                    -127, -larger(-127, -nearest(x)));
                    }
            }
    return out;
}

/* ---- a follower ---- */

/* A directory that does not exist yet. */
static const char *fresh_path(const char *name)
{
    static unsigned n;
    char text[64];
    snprintf(text, sizeof text, "%s-%u", name, n++);
    return temp_path(text);
}

static const dw_tensor *find(const dw_tensor *tensors, size_t n, const char *name,
                             const char *suffix)
{
    char text[128];
    snprintf(text, sizeof text, "%s%s", name, suffix);
    for (size_t i = 0; i < n; i++)
        if (strcmp(tensors[i].name, text) == 0)
            return &tensors[i];
    fail_msg("no tensor %s", text);
    return NULL;
}

/* The newest version is what a plain quantiser makes of the weights. */
static inline void check(const trainer *m, dw_store *store, const dw_quant_options *o)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = fresh_path("pulled");
    dw_error err = {0};
    dw_follower *f;
    assert_ok(dw_follower_open(&f, store, &options, &err), &err);
    assert_ok(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err), &err);
    size_t n;
    const dw_tensor *got = dw_follower_tensors(f, &n);
    assert_int_equal(n, N_SOURCE + 3);
    const char *suffix = o->scheme == DW_QUANT_FP8_BLOCK ? "_scale_inv" : "_scale";
    for (size_t t = 0; t < N_SOURCE; t++) {
        const dw_tensor *weight = find(got, n, names[t], "");
        if (t == EMBED || t == NORM) {
            assert_int_equal(weight->dtype, DW_BF16);
            assert_memory_equal(weight->data, m->tensors[t].data, weight->n_bytes);
            continue;
        }
        expected e = quantise(m, t, o);
        const dw_tensor *scale = find(got, n, names[t], suffix);
        assert_int_equal(weight->dtype,
                         o->scheme == DW_QUANT_INT8_ROW ? DW_I8 : DW_F8_E4M3);
        assert_int_equal(scale->n_bytes, e.n_scales * 4);
        assert_memory_equal(scale->data, e.scales, scale->n_bytes);
        assert_int_equal(weight->n_bytes, m->n[t]);
        assert_memory_equal(weight->data, e.weights, weight->n_bytes);
        free(e.weights);
        free(e.scales);
    }
    dw_follower_close(f);
}

/* ---- the publisher ---- */

static inline dw_quant_options quant_options(dw_quant_scheme scheme, bool from_f32)
{
    dw_quant_options o;
    dw_quant_options_init(&o);
    o.scheme = scheme;
    o.from_f32 = from_f32;
    return o;
}

static inline dw_publish_options options_of(const trainer *m,
                                            const dw_quant_options *quant)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.fold_every = 0;
    options.anchor_factor = 0;
    options.spool_dir = temp_dir;
    options.n_threads = 2;
    options.as_bf16 = m->as_bf16;
    options.quantize = quant;
    options.max_object_bytes = 100000; /* several pieces for each tensor */
    return options;
}

#endif
