/* Random numbers, elements that look like weights, and whole models in memory. */
#ifndef DW_TEST_RANDOM_MODEL_H
#define DW_TEST_RANDOM_MODEL_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/element.h"
#include "deltawire/deltawire.h"
#include "tensor/dtype.h"

static _Thread_local uint64_t random_state = 88172645463325252ull;

static inline uint64_t random64(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static inline uint64_t random_below(uint64_t n)
{
    return random64() % n;
}

/* ---- elements ---------------------------------------------------------------- */

/* A weight: small, of either sign, with exponents as in a normal distribution. */
static inline uint64_t random_weight(dw_element element)
{
    const unsigned bits = 8 * element.width;
    const uint64_t mask = ~0ull >> (64 - bits), r = random64();
    if (!element.is_float)
        return r & mask;
    const unsigned shift = element.exponent_shift;
    const uint64_t bias = (1ull << (bits - 2 - shift)) - 1;
    uint64_t below = (uint64_t)__builtin_ctzll(random64() | 1ull << 20) + 1;
    uint64_t exponent = below < bias ? bias - below : 0;
    return (r & (1ull << (bits - 1) | ((1ull << shift) - 1))) | exponent << shift;
}

static inline void fill_weights(void *data, uint64_t n, dw_element element)
{
    for (uint64_t i = 0; i < n; i++)
        dw_element_store(data, i, element.width, random_weight(element));
}

/* Another value for X: mostly the next one up or down, now and then a few steps away,
 * its negative, or anything. */
static inline uint64_t random_move(uint64_t x, dw_element element)
{
    const unsigned bits = 8 * element.width;
    const uint64_t mask = ~0ull >> (64 - bits);
    uint64_t y, r = random64();
    do {
        uint64_t step = r % 100 < 85 ? 1 : 1 + random_below(20);
        y = r & 1 << 10 ? x + step : x - step;
        if (r % 100 == 99)
            y = random64();
        else if (r % 100 == 98)
            y = x ^ 1ull << (bits - 1);
        y &= mask;
        r = random64();
    } while (y == x);
    return y;
}

/* Changes about PER_MILLE of the elements; returns how many. */
static inline uint64_t change_weights(void *data, uint64_t n, dw_element element,
                                      unsigned per_mille)
{
    uint64_t n_changed = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (random_below(1000) >= per_mille)
            continue;
        uint64_t x = dw_element_load(data, i, element.width);
        dw_element_store(data, i, element.width, random_move(x, element));
        n_changed++;
    }
    return n_changed;
}

/* ---- models ------------------------------------------------------------------- */

typedef struct model {
    size_t n;
    dw_tensor *tensors; /* [n]; names and dims are the model's, data too */
    void **blocks; /* [n] the allocations of the data, which may be unaligned in them */
} model;

static inline model model_new(size_t n)
{
    return (model){n, calloc(n ? n : 1, sizeof(dw_tensor)),
                   calloc(n ? n : 1, sizeof(void *))};
}

static inline void model_free(model *m)
{
    for (size_t i = 0; i < m->n; i++) {
        free((void *)m->tensors[i].name);
        free((void *)m->tensors[i].dims);
        free(m->blocks[i]);
    }
    free(m->tensors);
    free(m->blocks);
    *m = (model){0};
}

/* Makes tensor I, of zeros, SHIFT bytes off a multiple of 16. */
static inline void model_set(model *m, size_t i, const char *name, dw_dtype dtype,
                             uint32_t n_dims, const uint64_t *dims, unsigned shift)
{
    dw_tensor *t = &m->tensors[i];
    uint64_t *copy = calloc(n_dims ? n_dims : 1, sizeof *copy);
    if (n_dims > 0)
        memcpy(copy, dims, n_dims * sizeof *dims);
    *t = (dw_tensor){strdup(name), dtype, n_dims, copy, 0, NULL, 0, NULL};
    if (!dw_shape_size(dtype, n_dims, copy, NULL, &t->n_bytes))
        abort();
    m->blocks[i] = calloc(t->n_bytes + shift + 1, 1);
    /* ends at the end of its block, so that ASan notices an access past it */
    t->data = (uint8_t *)m->blocks[i] + shift + 1;
}

static inline void model_fill(model *m)
{
    for (size_t i = 0; i < m->n; i++)
        fill_weights(m->tensors[i].data, dw_tensor_units(&m->tensors[i]),
                     dw_dtype_element(m->tensors[i].dtype));
}

static inline uint64_t model_change(model *m, unsigned per_mille)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->n; i++)
        n += change_weights(m->tensors[i].data, dw_tensor_units(&m->tensors[i]),
                            dw_dtype_element(m->tensors[i].dtype), per_mille);
    return n;
}

/* A deep copy, with its tensors in random order if SHUFFLE. */
static inline model model_copy(const model *m, bool shuffle)
{
    model c = model_new(m->n);
    size_t *order = calloc(m->n + 1, sizeof *order);
    for (size_t i = 0; i < m->n; i++) {
        size_t j = shuffle ? random_below(i + 1) : i;
        order[i] = order[j];
        order[j] = i;
    }
    for (size_t i = 0; i < m->n; i++) {
        const dw_tensor *t = &m->tensors[order[i]];
        model_set(&c, i, t->name, t->dtype, t->n_dims, t->dims,
                  (unsigned)random_below(8));
        memcpy(c.tensors[i].data, t->data, t->n_bytes);
    }
    free(order);
    return c;
}

static inline const dw_tensor *model_find(const model *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    return NULL;
}

/* Whether both hold the same bytes under the same names. */
static inline bool model_equal(const model *a, const model *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++) {
        const dw_tensor *t = &a->tensors[i];
        const dw_tensor *u = strcmp(b->tensors[i].name, t->name) == 0
                                 ? &b->tensors[i]
                                 : model_find(b, t->name);
        same = u && u->n_bytes == t->n_bytes && memcmp(t->data, u->data, t->n_bytes) == 0;
    }
    return same;
}

static inline uint64_t model_bytes(const model *m)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->n; i++)
        n += m->tensors[i].n_bytes;
    return n;
}

/* Every element type, shapes from scalars and empty tensors to a few thousand elements;
 * without WHOLE_ONLY also sub-byte types and C64, which TRL's layouts do not support.
 */
static inline model model_random(bool whole_only)
{
    enum { N = 2 * DW_DTYPE_COUNT };
    model m = model_new(N);
    for (size_t i = 0; i < N; i++) {
        dw_dtype dtype = (dw_dtype)(i % DW_DTYPE_COUNT);
        if (whole_only && (dw_dtype_bits(dtype) < 8 || dtype == DW_C64))
            dtype = DW_BF16;
        char name[48];
        snprintf(name, sizeof name, "layers.%zu.%s", i / 3, dw_dtype_name(dtype));
        snprintf(name + strlen(name), sizeof name - strlen(name), ".%zu", i);
        uint64_t dims[3] = {random_below(30), 1 + random_below(20), 4};
        uint32_t n_dims = (uint32_t)random_below(4);
        if (dw_dtype_bits(dtype) < 8)
            n_dims = 3; /* whole bytes */
        if (i % 7 == 0)
            dims[0] = 0;
        model_set(&m, i, name, dtype, n_dims, dims, (unsigned)random_below(8));
    }
    model_fill(&m);
    return m;
}

/* ---- encoded deltas ------------------------------------------------------------ */

typedef struct byte_buffer {
    uint8_t *bytes; /* free */
    size_t n_bytes;
    size_t n_room;
} byte_buffer;

/* A dw_sink. */
static inline dw_status buffer_take(void *context, const void *bytes, size_t n_bytes,
                                    dw_error *err)
{
    (void)err;
    byte_buffer *b = context;
    if (b->n_bytes + n_bytes > b->n_room) {
        b->n_room = 2 * (b->n_bytes + n_bytes);
        b->bytes = realloc(b->bytes, b->n_room);
    }
    memcpy(b->bytes + b->n_bytes, bytes, n_bytes);
    b->n_bytes += n_bytes;
    return DW_OK;
}

#endif
