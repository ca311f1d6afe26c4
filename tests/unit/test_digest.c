/* labels: threads */
#include "unit/suite.h"

#include "codec/digest.h"
#include "every_kernel.h"
#include "failing_allocator.h"
#include "random_model.h"

/* Bytes i * 7 + i / 251: the same everywhere. */
static void fill_known(uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
}

static uint8_t *random_bytes(size_t n)
{
    uint8_t *bytes = malloc(n + !n);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)random64();
    return bytes;
}

/* Digests are part of the format: these never change. */
TEST(test_known_answers)
{
    static const struct {
        size_t n;
        dw_digest digest;
    } cases[] = {
        {0, 0},
        {1, 0x0f9b30be922c31c6ull},
        {4096, 0x0e48ca8105e7b93dull},
        {4097, 0x12214e1da4b20822ull},
        {100000, 0x06e585fb40ede626ull},
    };
    static uint8_t bytes[100000];
    fill_known(bytes, sizeof bytes);
    bytes[0] = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_true(dw_digest_bytes(bytes, cases[i].n) == cases[i].digest);
    memset(bytes, 0xff, sizeof bytes);
    assert_true(dw_digest_bytes(bytes, sizeof bytes) == 0x0b81f0331eab926eull);
    static const uint64_t dims[] = {2, 3};
    const dw_tensor t = {"model.weight", DW_BF16, 2, dims, 12, NULL, 0, NULL};
    assert_true(dw_digest_weight(&t) == 0x0b700595dac08bc5ull);
    static const dw_digest digest = 12345;
    assert_true(dw_digest_state(&t, &digest, 1) == 0x186d5cf7a9d4abdeull);
}

/* The definition of FORMAT.md: a[j] and g from SplitMix64, arithmetic modulo 2^61 - 1. */
TEST(test_definition)
{
    const unsigned __int128 p = DW_DIGEST_PRIME;
    uint64_t a[1024], g = 0, seed = 0x64656c7461776972ull;
    for (size_t j = 0; j <= 1024; j++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        z ^= z >> 31;
        if (j < 1024)
            a[j] = (z & 0x3fffffff) + (z >> 32 & 0x3fffffff) * (1ull << 30);
        else
            g = z >> 4;
    }
    for (size_t n = 0; n < 20000; n += 1 + n / 3) {
        uint8_t *bytes = random_bytes(n);
        unsigned __int128 sum = 0, power = 1;
        for (size_t i = 0; 4 * i < n; i++) {
            uint32_t word = 0;
            memcpy(&word, bytes + 4 * i, n - 4 * i < 4 ? n - 4 * i : 4);
            if (i > 0 && i % 1024 == 0)
                power = power * g % p;
            sum = (sum + (unsigned __int128)word * a[i % 1024] % p * power) % p;
        }
        assert_true(dw_digest_bytes(bytes, n) == (uint64_t)sum);
        free(bytes);
    }
}

TEST(test_shares_add_up)
{
    const size_t n = 5 * 4096 + 1234;
    uint8_t *bytes = random_bytes(n);
    const dw_digest whole = dw_digest_bytes(bytes, n);
    assert_true(whole < DW_DIGEST_PRIME);
    for (size_t cut = 0; cut <= n; cut += 4096)
        for (size_t again = cut; again <= n; again += 4096) {
            dw_digest sum = dw_digest_share(bytes, cut, 0);
            sum = dw_digest_plus(sum, dw_digest_share(bytes + cut, again - cut, cut));
            sum = dw_digest_plus(sum, dw_digest_share(bytes + again, n - again, again));
            assert_true(sum == whole);
        }
    free(bytes);
}

/* Zeros do not change the digest, so padding does not either; the shape distinguishes
 * them. */
TEST(test_padding)
{
    static uint8_t bytes[9000];
    for (size_t n = 1; n < 5000; n += 1 + n / 7) {
        memset(bytes, 0, sizeof bytes);
        fill_known(bytes, n);
        assert_true(dw_digest_bytes(bytes, n) == dw_digest_bytes(bytes, sizeof bytes));
        uint8_t *exact = malloc(n);
        memcpy(exact, bytes, n);
        assert_true(dw_digest_bytes(exact, n) == dw_digest_bytes(bytes, n));
        free(exact);
    }
}

/* Changes in order, near each other and many chunks apart, all widths. */
TEST(test_moves)
{
    const size_t n = 300 * 4096;
    uint8_t *bytes = random_bytes(n);
    for (unsigned width = 1; width <= 8; width *= 2)
        for (size_t stride = width; stride < n / 2; stride *= 5) {
            const uint64_t mask = ~0ull >> (64 - 8 * width);
            const size_t first = stride > 9 * 4096 ? 8 * 4096 : 0;
            dw_digest before = dw_digest_bytes(bytes, n);
            dw_digest_moves moves = dw_digest_moves_from(first);
            for (size_t at = first; at + width <= n; at += stride) {
                size_t i = at / width;
                uint64_t old = dw_element_load(bytes, i, width);
                uint64_t new_ = at % 3 ? random64() & mask : at % 2 ? 0 : mask;
                dw_digest_move(&moves, i * width, old, new_, width);
                dw_element_store(bytes, i, width, new_);
            }
            assert_true(dw_digest_plus(before, dw_digest_moves_sum(&moves)) ==
                        dw_digest_bytes(bytes, n));
        }
    free(bytes);
}

TEST(test_no_moves)
{
    dw_digest_moves moves = dw_digest_moves_from(1u << 30);
    assert_true(dw_digest_moves_sum(&moves) == 0);
    dw_digest_move(&moves, (1ull << 40) + 8, 5, 7, 2);
    dw_digest_move(&moves, (1ull << 40) + 8, 7, 5, 2); /* and back */
    assert_true(dw_digest_moves_sum(&moves) == 0);
}

/* Every bit counts, and so does its position. */
TEST(test_bit_flips)
{
    const size_t n = 3 * 4096 + 5;
    uint8_t *bytes = random_bytes(n);
    const dw_digest whole = dw_digest_bytes(bytes, n);
    for (unsigned round = 0; round < 1000; round++) {
        size_t bit = round < 64 ? 8 * n - 1 - round : random_below(8 * n);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(dw_digest_bytes(bytes, n) != whole);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (unsigned round = 0; round < 1000; round++) { /* two bytes swapped */
        size_t a = random_below(n), b = random_below(n);
        uint8_t x = bytes[a], y = bytes[b];
        if (x == y)
            continue;
        bytes[a] = y;
        bytes[b] = x;
        assert_true(dw_digest_bytes(bytes, n) != whole);
        bytes[a] = x;
        bytes[b] = y;
    }
    free(bytes);
}

/* ---- models -------------------------------------------------------------------- */

static dw_digest state_of(const dw_tensor *tensors, size_t n)
{
    dw_digest digests[64], state;
    assert_int_equal(dw_digest_tensors(digests, &state, tensors, n, 1, NULL, NULL),
                     DW_OK);
    for (size_t i = 0; i < n; i++)
        assert_true(digests[i] == dw_digest_bytes(tensors[i].data, tensors[i].n_bytes));
    assert_true(state == dw_digest_state(tensors, digests, n));
    assert_true(state < DW_DIGEST_PRIME);
    return state;
}

TEST(test_state_covers_names_types_and_shapes)
{
    static uint16_t data[12] = {1, 2, 3};
    static const uint64_t d12[] = {12}, d3x4[] = {3, 4}, d4x3[] = {4, 3},
                          d12x1[] = {12, 1};
    const dw_tensor base[2] = {{"a", DW_BF16, 1, d12, 24, data, 0, NULL},
                               {"b", DW_U8, 0, NULL, 1, data, 0, NULL}};
    const dw_digest whole = state_of(base, 2);
    const struct {
        const char *name;
        dw_dtype dtype;
        uint32_t n_dims;
        const uint64_t *dims;
    } others[] = {
        {"c", DW_BF16, 1, d12},  {"", DW_BF16, 1, d12},    {"aa", DW_BF16, 1, d12},
        {"a", DW_F16, 1, d12},   {"a", DW_I16, 1, d12},    {"a", DW_BF16, 2, d3x4},
        {"a", DW_BF16, 2, d4x3}, {"a", DW_BF16, 2, d12x1},
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        dw_tensor t[2] = {base[0], base[1]};
        t[0].name = others[i].name;
        t[0].dtype = others[i].dtype;
        t[0].n_dims = others[i].n_dims;
        t[0].dims = others[i].dims;
        assert_true(state_of(t, 2) != whole);
    }
    const dw_tensor swapped[2] = {base[1], base[0]};
    assert_true(state_of(swapped, 2) == whole);
    assert_true(state_of(base, 1) != whole);
    assert_true(state_of(base, 0) == 0);
    /* a tensor of zeros and an empty tensor count too */
    static uint16_t zeros[12];
    const dw_tensor zero = {"a", DW_BF16, 1, d12, 24, zeros, 0, NULL};
    assert_true(state_of(&zero, 1) != 0);
    static const uint64_t d0[] = {0};
    const dw_tensor empty = {"a", DW_BF16, 1, d0, 0, NULL, 0, NULL};
    assert_true(state_of(&empty, 1) != 0 && state_of(&empty, 1) != state_of(&zero, 1));
}

TEST(test_threads)
{
    model m = model_new(9);
    for (size_t i = 0; i < m.n; i++) {
        char name[8] = {(char)('a' + i)};
        uint64_t dims[] = {i == 4 ? 0 : (5ull << 20) * (i % 3) + 77 * i};
        model_set(&m, i, name, i % 2 ? DW_U8 : DW_I8, 1, dims, (unsigned)i);
        fill_known(m.tensors[i].data, m.tensors[i].n_bytes);
    }
    dw_digest expected[9], expected_state;
    for (size_t i = 0; i < m.n; i++)
        expected[i] = dw_digest_bytes(m.tensors[i].data, m.tensors[i].n_bytes);
    expected_state = dw_digest_state(m.tensors, expected, m.n);
    for (unsigned n_threads = 0; n_threads <= 4; n_threads++) {
        dw_digest digests[9], whole;
        assert_int_equal(
            dw_digest_tensors(digests, &whole, m.tensors, m.n, n_threads, NULL, NULL),
            DW_OK);
        assert_memory_equal(digests, expected, sizeof expected);
        assert_true(whole == expected_state);
        assert_int_equal(
            dw_digest_tensors(digests, NULL, m.tensors, m.n, n_threads, NULL, NULL),
            DW_OK);
    }
    model_free(&m);
}

static dw_status digest_one(dw_error *err)
{
    static uint8_t data[100];
    static const uint64_t dims[] = {100};
    const dw_tensor t = {"a", DW_U8, 1, dims, 100, data, 0, NULL};
    dw_digest digest;
    return dw_digest_tensors(&digest, NULL, &t, 1, 1, NULL, err);
}

TEST(test_allocations)
{
    fail_every_allocation(digest_one, NULL);
}

static int run(void)
{
    return suite_run(NULL, NULL);
}

int main(int argc, char **argv)
{
    (void)argc;
    return under_every_kernel(argv, run);
}
