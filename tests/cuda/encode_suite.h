/* Tests of encoding, decoding and storing, for the fake driver and for real ones. */
#ifndef TESTS_CUDA_ENCODE_SUITE_H
#define TESTS_CUDA_ENCODE_SUITE_H

#include "cuda/cases.h"

static dw_cuda *cuda; /* the includer opens it */

/* Lets emulated threads run in another order. */
static void vary_order(uint64_t seed);

static inline void check(const device_case *cases, size_t n, dw_cuda_encode_call *encoder)
{
    two_versions v = versions_make(cuda, cases, n);
    there_and_back(cuda, &v, encoder);
    assert_int_equal(base_on_host, encoder->report.n_windows > 0);
    versions_free(cuda, &v);
}

static inline void test_types_and_lengths(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {0,    1,    2,    3,    7,    8,     9,
                                       15,   17,   31,   33,   255,  2047,  2049,
                                       4097, 8191, 8192, 8193, 9001, 16384, 20000};
    enum { N = sizeof lengths / sizeof lengths[0] };
    device_case cases[DW_DTYPE_COUNT * N];
    for (size_t d = 0; d < DW_DTYPE_COUNT; d++)
        for (size_t i = 0; i < N; i++) {
            /* sub-byte types and C64: whole elements */
            const uint64_t n = d >= DW_F6_E2M3 ? lengths[i] / 6 * 6 : lengths[i];
            cases[d * N + i] = (device_case){.dtype = (dw_dtype)d,
                                             .n = n,
                                             .per_mille = (unsigned)random_below(100),
                                             .offset = (unsigned)random_below(3)};
        }
    dw_cuda_encode_call encoder = {0};
    vary_order(1);
    check(cases, DW_DTYPE_COUNT * N, &encoder);
    assert_true(!base_on_host || encoder.report.n_windows > 10);
}

/* From nothing to everything; the densest are packed or stored. */
static inline void test_densities(void **state)
{
    (void)state;
    static const unsigned densities[] = {0, 1, 11, 50, 250, 500, 800, 1000};
    static const dw_dtype types[] = {DW_BF16, DW_F8_E4M3, DW_F32, DW_I64, DW_F64, DW_U16};
    for (size_t d = 0; d < sizeof densities / sizeof densities[0]; d++) {
        device_case cases[6];
        for (size_t i = 0; i < 6; i++)
            cases[i] = (device_case){.dtype = types[i],
                                     .n = 20000 + random_below(999),
                                     .per_mille = densities[d],
                                     .is_noise = densities[d] == 1000 && i < 3};
        dw_cuda_encode_call encoder = {0};
        vary_order(d);
        check(cases, 6, &encoder);
        assert_true((densities[d] == 1000) == (encoder.report.n_dense > 0));
    }
}

/* More than one block of each width, and slices. */
static inline void test_blocks(void **state)
{
    (void)state;
    const device_case cases[] = {
        {.dtype = DW_BF16, .n = (1 << 20) + 5000, .per_mille = 11},
        {.dtype = DW_I8, .n = (1 << 20) + 77, .per_mille = 3},
        {.dtype = DW_F32,
         .n = (1 << 19) + 4096,
         .per_mille = 20,
         .first_byte = 4096 * 77 + 12},
        {.dtype = DW_F64, .n = (1 << 18) + 1, .per_mille = 5, .first_byte = 16},
        {.dtype = DW_BF16, .n = 30000, .per_mille = 11, .first_byte = 4094, .offset = 1},
    };
    dw_cuda_encode_call encoder = {0};
    check(cases, sizeof cases / sizeof cases[0], &encoder);
    assert_int_equal(encoder.report.n_put_off, 0);
    assert_true(!base_on_host || encoder.report.n_windows > 3);
}

/* BF16 from F32, rounded on the way. */
static inline void test_rounding(void **state)
{
    (void)state;
    const device_case cases[] = {
        {.dtype = DW_BF16, .n = 20000, .per_mille = 11, .is_rounded = true},
        {.dtype = DW_BF16, .n = 8191, .per_mille = 900, .is_rounded = true, .offset = 1},
    };
    dw_cuda_encode_call encoder = {0};
    check(cases, 2, &encoder);
}

/* NaN and -0, all patterns of 16 bits to and from each other. */
static inline void test_special_values(void **state)
{
    (void)state;
    static const uint32_t specials[] = {0,      0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffff,
                                        0x7fff, 0x0001, 0x8001, 0x7f7f, 0xff7f, 0x3f80};
    const device_case cases[] = {{.dtype = DW_BF16, .n = 1 << 16},
                                 {.dtype = DW_F16, .n = 1 << 16}};
    two_versions v = versions_make(cuda, cases, 2);
    for (size_t i = 0; i < 2; i++) {
        uint16_t *old = v.host[i].base.data, *next = v.host[i].next.data;
        for (uint32_t x = 0; x < 1 << 16; x++) {
            old[x] = (uint16_t)x;
            next[x] = x % 5 == 0 ? (uint16_t)specials[random_below(12)] : (uint16_t)x;
        }
        base_write(cuda, &v, i);
        device_write(cuda, v.device[i].next.data, next, 2 << 16);
    }
    dw_cuda_encode_call encoder = {0};
    there_and_back(cuda, &v, &encoder);
    versions_free(cuda, &v);
}

/* Too little room for the changes: some blocks are put off, and the bytes are the same.
 */
static inline void test_put_off(void **state)
{
    (void)state;
    device_case cases[24];
    for (size_t i = 0; i < 24; i++)
        cases[i] = (device_case){.dtype = i % 3 ? DW_BF16 : DW_F32,
                                 .n = 9000 + random_below(12000),
                                 .per_mille = i % 2 ? 600 : 30};
    dw_cuda_encode_call encoder = {.n_entries = 21000};
    check(cases, 24, &encoder);
    assert_true(encoder.report.n_put_off > 3);
}

/* Takes the results of an encoder, the last block first. */
static inline dw_status fetch_backwards(void *encoder, const dw_encode_job *job,
                                        dw_class_map *maps, dw_encode_item *items,
                                        size_t n_items, dw_error *err)
{
    dw_status status =
        dw_cuda_encoder_fetch(encoder, 0, maps, job->n_pairs, NULL, 0, err);
    for (size_t i = n_items; status == DW_OK && i-- > 0;) {
        const size_t pair = items[i].pair;
        dw_class_map map;
        items[i].pair = 0;
        status = dw_cuda_encoder_fetch(encoder, pair, &map, 1, &items[i], 1, err);
        items[i].pair = pair;
        assert_memory_equal(&map, &maps[pair], sizeof map);
    }
    return status;
}

/* One encoder for several versions: few changes, so many that there is no room for them,
 * and few again; the new weights move once. */
static inline void test_versions(void **state)
{
    (void)state;
    static const unsigned densities[] = {10, 400, 400, 10, 1000};
    enum { N = 20 };
    device_case cases[N];
    for (size_t i = 0; i < N; i++)
        cases[i] = (device_case){.dtype = i % 5 == 1   ? DW_F32
                                          : i % 5 == 2 ? DW_I8
                                                       : DW_BF16,
                                 .n = i == 3 ? 0 : 9000 + random_below(1000),
                                 .is_rounded = i % 5 == 4};
    two_versions v = versions_make(cuda, cases, N);
    dw_cuda_encoder *encoder;
    dw_error err = {0};
    assert_int_equal(
        dw_cuda_encoder_open(&encoder, cuda, v.device, N, 0, base_on_host, &err), DW_OK);
    uint64_t n_put_off = 0, n_bytes = dw_cuda_encoder_report(encoder).n_device_bytes;
    for (size_t round = 0; round < 5; round++) {
        for (size_t i = 0; i < N; i++) {
            dw_encode_pair *h = &v.host[i], *d = &v.device[i];
            const dw_element element = dw_dtype_element(h->base.dtype);
            uint8_t *next = malloc(h->base.n_bytes + 1);
            memcpy(next, h->base.data, h->base.n_bytes);
            change_weights(next, cases[i].n, element, densities[round]);
            free(h->next.data);
            h->next.data = next;
            if (cases[i].is_rounded) {
                h->next.data = unround((uint16_t *)next, cases[i].n);
                free(next);
            }
            if (round == 3) {
                device_free(cuda, &v.blocks[2 * i + 1]);
                d->next.data = device_copy(cuda, h->next.data, h->next.n_bytes, 0,
                                           &v.blocks[2 * i + 1]);
            }
            base_write(cuda, &v, i);
            device_write(cuda, d->next.data, h->next.data, h->next.n_bytes);
        }
        assert_int_equal(
            dw_cuda_encoder_begin(encoder, round == 3 ? v.device : NULL, &err), DW_OK);
        assert_int_equal(dw_cuda_encoder_wait(encoder, &err), DW_OK);
        assert_int_equal(dw_cuda_encoder_finish(encoder, &err), DW_OK);
        const dw_encode_device device = {fetch_backwards, encoder};
        dw_delta *delta = encode_by(&device, cuda, &v);
        assert_int_equal(dw_cuda_encoder_report(encoder).n_changed,
                         delta->info.n_changed);
        dw_delta_close(delta);
        n_put_off += dw_cuda_encoder_report(encoder).n_put_off;
        assert_true((round > 0) == (n_put_off > 0));
        dw_cuda_encoder_end(encoder);
        assert_true((round > 0) ==
                    (dw_cuda_encoder_report(encoder).n_device_bytes > n_bytes));
    }
    dw_cuda_encoder_close(encoder);
    versions_free(cuda, &v);
}

#endif
