/* Weights in a device's memory, and the same work on the CPU and on the device. For the
 * fake driver (tests/unit/test_cuda_*.c) and for real ones (tests/gpu).
 */
#ifndef TESTS_CUDA_CASES_H
#define TESTS_CUDA_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "codec/encode.h"
#include "cuda/cuda_encode.h"
#include "cuda/cuda_stage.h"
#include "unit/random_model.h"

/* ---- memory ---- */

/* A copy of N bytes on the device, OFFSET bytes off a multiple of 256. BLOCK takes what
 * to free. */
static inline void *device_copy(dw_cuda *c, const void *bytes, uint64_t n,
                                unsigned offset, cu_pointer *block)
{
    dw_error err = {0};
    assert_int_equal(dw_cuda_enter(c, &err), DW_OK);
    assert_int_equal(dw_cuda_alloc(block, c, n + offset + 1, "a test", &err), DW_OK);
    if (n > 0)
        assert_int_equal(dw_cuda_up(c, *block + offset, bytes, n, &err), DW_OK);
    assert_int_equal(dw_cuda_wait(c, &err), DW_OK);
    dw_cuda_leave(c);
    return dw_cuda_address(*block + offset);
}

static inline void host_copy(dw_cuda *c, void *out, const void *from, uint64_t n)
{
    assert_int_equal(dw_cuda_enter(c, NULL), DW_OK);
    assert_int_equal(dw_cuda_down(c, out, (cu_pointer)(uintptr_t)from, n, NULL), DW_OK);
    assert_int_equal(dw_cuda_wait(c, NULL), DW_OK);
    dw_cuda_leave(c);
}

static inline void device_write(dw_cuda *c, void *to, const void *from, uint64_t n)
{
    assert_int_equal(dw_cuda_enter(c, NULL), DW_OK);
    assert_int_equal(dw_cuda_up(c, (cu_pointer)(uintptr_t)to, from, n, NULL), DW_OK);
    assert_int_equal(dw_cuda_wait(c, NULL), DW_OK);
    dw_cuda_leave(c);
}

static inline void device_free(dw_cuda *c, cu_pointer *block)
{
    assert_int_equal(dw_cuda_enter(c, NULL), DW_OK);
    dw_cuda_free(c, block);
    dw_cuda_leave(c);
}

/* ---- two versions of a model ---- */

typedef struct device_case {
    dw_dtype dtype;
    uint64_t n;         /* units */
    unsigned per_mille; /* that change */
    bool is_rounded;    /* BF16 from F32 */
    bool is_noise;      /* the new version is random bits */
    uint64_t first_byte;
    unsigned offset; /* of the address, in elements */
} device_case;

/* Whether versions_make puts the old versions into pinned memory of the host. */
static bool base_on_host;

typedef struct two_versions {
    size_t n;
    char (*names)[32];
    uint64_t *dims;
    dw_encode_pair *host;   /* base and next on the host */
    dw_encode_pair *device; /* the same on the device */
    cu_pointer *blocks;     /* [2 n] */
    void *pinned;           /* the bases of `device`, if they are on the host */
} two_versions;

static inline float widen(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The new version of BF16 weights in F32: what rounds to them, from both sides. */
static inline void *unround(const uint16_t *next, uint64_t n)
{
    uint32_t *out = malloc(n * sizeof *out + 1);
    for (uint64_t i = 0; i < n; i++)
        out[i] = (uint32_t)next[i] << 16 | (random64() & 0x3fff);
    return out;
}

/* Moves the bases of `device` to pinned memory, with gaps between them. */
static inline void pin_bases(dw_cuda *c, two_versions *v, const device_case *cases)
{
    uint64_t n = 0;
    uint64_t *places = calloc(v->n + 1, sizeof *places);
    for (size_t i = 0; i < v->n; i++) {
        const dw_tensor *base = &v->host[i].base;
        places[i] = n + cases[i].offset * dw_dtype_element(base->dtype).width;
        n = (places[i] + base->n_bytes + 7) / 8 * 8 + 8 * random_below(i % 3 ? 3 : 60);
    }
    assert_int_equal(dw_cuda_enter(c, NULL), DW_OK);
    assert_int_equal(dw_cuda_alloc_pinned(&v->pinned, c, n, "a test", NULL), DW_OK);
    dw_cuda_leave(c);
    memset(v->pinned, 0x77, n);
    for (size_t i = 0; i < v->n; i++) {
        v->device[i].base.data = (uint8_t *)v->pinned + places[i];
        memcpy(v->device[i].base.data, v->host[i].base.data, v->host[i].base.n_bytes);
        device_free(c, &v->blocks[2 * i]);
    }
    free(places);
}

/* Brings base I of `device` to that of `host`. */
static inline void base_write(dw_cuda *c, two_versions *v, size_t i)
{
    const dw_tensor *from = &v->host[i].base;
    void *to = v->device[i].base.data;
    if (v->pinned)
        memcpy(to, from->data, from->n_bytes);
    else
        device_write(c, to, from->data, from->n_bytes);
}

static inline void base_read(dw_cuda *c, void *out, const two_versions *v, size_t i)
{
    const dw_tensor *base = &v->device[i].base;
    if (v->pinned)
        memcpy(out, base->data, base->n_bytes);
    else
        host_copy(c, out, base->data, base->n_bytes);
}

static inline two_versions versions_make(dw_cuda *c, const device_case *cases, size_t n)
{
    two_versions v = {n,
                      calloc(n, sizeof *v.names),
                      calloc(n, sizeof *v.dims),
                      calloc(n, sizeof *v.host),
                      calloc(n, sizeof *v.device),
                      calloc(2 * n, sizeof *v.blocks),
                      NULL};
    for (size_t i = 0; i < n; i++) {
        const device_case *k = &cases[i];
        const dw_element element = dw_dtype_element(k->dtype);
        const uint64_t n_bytes = k->n * element.width;
        snprintf(v.names[i], sizeof v.names[i], "t%06zu", i);
        v.dims[i] = k->n * element.width * 8 / dw_dtype_bits(k->dtype);
        dw_tensor base = {v.names[i],          k->dtype,      1,   &v.dims[i], n_bytes,
                          malloc(n_bytes + 1), k->first_byte, NULL};
        dw_tensor next = base;
        next.data = malloc(n_bytes + 1);
        fill_weights(base.data, k->n, element);
        memcpy(next.data, base.data, n_bytes);
        change_weights(next.data, k->n, element, k->per_mille);
        for (uint64_t e = 0; k->is_noise && e < k->n; e++)
            dw_element_store(next.data, e, element.width,
                             random64() & ~0ull >> (64 - 8 * element.width));
        if (k->is_rounded) {
            void *wide = unround(next.data, k->n);
            free(next.data);
            next.data = wide;
            next.dtype = DW_F32;
            next.n_bytes = 4 * k->n;
        }
        v.host[i] = (dw_encode_pair){.base = base, .next = next};
        v.device[i] = v.host[i];
        v.device[i].base.data = device_copy(c, base.data, base.n_bytes,
                                            k->offset * element.width, &v.blocks[2 * i]);
        v.device[i].next.data = device_copy(
            c, next.data, next.n_bytes, k->offset * (k->is_rounded ? 4 : element.width),
            &v.blocks[2 * i + 1]);
    }
    if (base_on_host)
        pin_bases(c, &v, cases);
    return v;
}

static inline void versions_free(dw_cuda *c, two_versions *v)
{
    for (size_t i = 0; i < v->n; i++) {
        free(v->host[i].base.data);
        free(v->host[i].next.data);
        device_free(c, &v->blocks[2 * i]);
        device_free(c, &v->blocks[2 * i + 1]);
    }
    assert_int_equal(dw_cuda_enter(c, NULL), DW_OK);
    dw_cuda_free_pinned(c, v->pinned);
    dw_cuda_leave(c);
    free(v->names);
    free(v->dims);
    free(v->host);
    free(v->device);
    free(v->blocks);
}

/* ---- encoding ---- */

static inline uint8_t *delta_bytes(dw_delta *delta, size_t *n_bytes)
{
    const dw_piece *last = &delta->pieces[delta->n_pieces - 1];
    *n_bytes = (size_t)(last->offset + last->n_bytes);
    uint8_t *bytes = malloc(*n_bytes + 1);
    assert_int_equal(dw_delta_read_at(delta, 0, bytes, *n_bytes, NULL), DW_OK);
    return bytes;
}

/* Copies of tensors on the host; free each `data` and the list. */
static inline dw_tensor *host_copies(const dw_tensor *tensors, size_t n)
{
    dw_tensor *out = calloc(n + 1, sizeof *out);
    for (size_t i = 0; i < n; i++) {
        out[i] = tensors[i];
        out[i].data = malloc(tensors[i].n_bytes + 1);
        if (tensors[i].n_bytes)
            memcpy(out[i].data, tensors[i].data, tensors[i].n_bytes);
    }
    return out;
}

static inline void host_copies_free(dw_tensor *tensors, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(tensors[i].data);
    free(tensors);
}

static inline dw_tensor *bases_of(const two_versions *v)
{
    dw_tensor *bases = calloc(v->n + 1, sizeof *bases);
    for (size_t i = 0; i < v->n; i++)
        bases[i] = v->host[i].base;
    return bases;
}

static inline void assert_same_bytes(dw_delta *expected, dw_delta *got)
{
    size_t n[2];
    uint8_t *bytes[2] = {delta_bytes(expected, &n[0]), delta_bytes(got, &n[1])};
    for (size_t e = 0; e < expected->info.n_tensors && e < got->info.n_tensors; e++) {
        const dw_delta_entry *a = &expected->entries[e], *b = &got->entries[e];
        assert_string_equal(a->shape.name, b->shape.name);
        assert_int_equal(a->n_changed, b->n_changed);
        assert_int_equal(a->map.base, b->map.base);
        for (uint64_t k = 0; k < a->n_blocks; k++) {
            assert_int_equal(a->blocks[k].mode, b->blocks[k].mode);
            assert_int_equal(a->blocks[k].n_bytes, b->blocks[k].n_bytes);
            if (a->blocks[k].n_bytes)
                assert_memory_equal(a->blocks[k].bytes, b->blocks[k].bytes,
                                    a->blocks[k].n_bytes);
        }
        assert_true(a->base_digest == b->base_digest);
        assert_true(a->new_digest == b->new_digest);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    free(bytes[0]);
    free(bytes[1]);
}

/* Encodes on both sides: the deltas must have the same bytes. The base on the host
 * becomes new; the one on the device stays. Returns the CPU's delta. */
static inline dw_delta *encode_by(const dw_encode_device *device, dw_cuda *c,
                                  two_versions *v)
{
    dw_diff_options options;
    dw_error err = {0};
    dw_diff_options_init(&options);
    options.n_threads = 1;
    dw_tensor *bases = bases_of(v), *old = host_copies(bases, v->n);
    dw_delta *expected, *got;
    dw_encode_job job = {.pairs = v->host, .n_pairs = v->n};
    options.update_base = true;
    assert_int_equal(dw_encode(&expected, &job, &options, &err), DW_OK);
    dw_encode_job other = {.pairs = v->device, .n_pairs = v->n, .device = device};
    options.update_base = false;
    other.digests_known = device->run != dw_cuda_encode;
    for (size_t i = 0; i < v->n; i++)
        v->device[i].base_digest = v->host[i].base_digest;
    if (dw_encode(&got, &other, &options, &err) != DW_OK)
        fail_msg("%s", err.text);
    assert_same_bytes(expected, got);
    dw_delta_close(got);
    for (size_t i = 0; i < v->n; i++) {
        uint8_t *kept = malloc(old[i].n_bytes + 1);
        base_read(c, kept, v, i);
        if (old[i].n_bytes)
            assert_memory_equal(kept, old[i].data, old[i].n_bytes);
        free(kept);
    }
    host_copies_free(old, v->n);
    free(bases);
    return expected;
}

static inline dw_delta *encode_both(dw_cuda *c, two_versions *v,
                                    dw_cuda_encode_call *encoder)
{
    const dw_encode_device device = {dw_cuda_encode, encoder};
    encoder->cuda = c;
    encoder->base_on_host = base_on_host;
    return encode_by(&device, c, v);
}

/* ---- decoding ---- */

/* Copies of tensors on the device. */
typedef struct device_copies {
    size_t n;
    dw_tensor *tensors;
    cu_pointer *blocks;
} device_copies;

static inline device_copies copies_make(dw_cuda *c, const dw_tensor *tensors, size_t n)
{
    device_copies d = {n, calloc(n, sizeof *d.tensors), calloc(n, sizeof *d.blocks)};
    for (size_t i = 0; i < n; i++) {
        const unsigned width = dw_dtype_element(tensors[i].dtype).width;
        d.tensors[i] = tensors[i];
        d.tensors[i].data = device_copy(c, tensors[i].data, tensors[i].n_bytes,
                                        (unsigned)random_below(2) * width, &d.blocks[i]);
    }
    return d;
}

static inline void copies_free(dw_cuda *c, device_copies *d)
{
    for (size_t i = 0; i < d->n; i++)
        device_free(c, &d->blocks[i]);
    free(d->tensors);
    free(d->blocks);
}

static inline void assert_on_device(dw_cuda *c, const device_copies *d,
                                    const dw_tensor *expected)
{
    for (size_t i = 0; i < d->n; i++) {
        uint8_t *bytes = malloc(expected[i].n_bytes + 1);
        host_copy(c, bytes, d->tensors[i].data, expected[i].n_bytes);
        if (expected[i].n_bytes)
            assert_memory_equal(bytes, expected[i].data, expected[i].n_bytes);
        free(bytes);
    }
}

/* Brings copies of OLD on the device to NEXT by DELTA, and looks at them at each step. */
static inline void stage_and_apply(dw_cuda *c, const dw_delta *delta,
                                   const dw_tensor *old, const dw_tensor *next, size_t n)
{
    dw_error err = {0};
    dw_cuda_stage *s;
    dw_stage_result result;
    dw_apply_options options;
    dw_apply_options_init(&options);
    device_copies d = copies_make(c, old, n);
    if (dw_cuda_stage_open(&s, &result, c, delta, d.tensors, n, &options, &err) != DW_OK)
        fail_msg("%s", err.text);
    assert_int_equal(result.n_changed, delta->info.n_changed);
    assert_true(result.new_state == delta->info.new_state);
    assert_on_device(c, &d, old);
    if (dw_cuda_stage_apply(s, &err) != DW_OK)
        fail_msg("%s", err.text);
    assert_on_device(c, &d, next);
    dw_cuda_stage_close(s);
    copies_free(c, &d);
}

/* Encodes and decodes on the device. */
static inline void there_and_back(dw_cuda *c, two_versions *v,
                                  dw_cuda_encode_call *encoder)
{
    dw_tensor *bases = bases_of(v), *old = host_copies(bases, v->n);
    dw_delta *delta = encode_both(c, v, encoder);
    stage_and_apply(c, delta, old, bases, v->n);
    dw_delta_close(delta);
    host_copies_free(old, v->n);
    free(bases);
}

#endif
