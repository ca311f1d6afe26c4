/* labels: single */
/* Every kernel table against the plain one, on the same random cases: all tail lengths,
 * all widths, densities from none to all, unaligned data.
 *
 * A plain program, not a cmocka suite, so that its NEON build needs only libc and runs
 * under qemu-user.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"

enum { MAX_N = 40000 }; /* more than class_locate takes at once */

static uint64_t state = 1;

static uint64_t random64(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Fills with values whose exponents are close together, like those of weights. */
static void fill(uint8_t *elems, size_t n, unsigned width)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t x = random64();
        uint64_t spread = random64() & random64() & random64();
        x = x ^ (x & spread ? 0 : 0x4040404040404040ull);
        memcpy(elems + i * width, &x, width);
    }
}

static void change(uint8_t *elems, size_t n, unsigned width, unsigned percent)
{
    for (size_t i = 0; i < n; i++)
        if (random64() % 100 < percent)
            elems[i * width + random64() % width] ^= (uint8_t)(1u << random64() % 8);
}

static dw_class_map random_map(unsigned width)
{
    static const unsigned mantissa[] = {3, 7, 23, 52};
    static const uint64_t magnitude[] = {0x7f, 0x7fff, 0x7fffffff, 0x7fffffffffffffff};
    unsigned w = dw_width_index(width);
    if (random64() % 4 == 0)
        return (dw_class_map){0};
    uint32_t top = (uint32_t)(magnitude[w] >> mantissa[w]);
    return (dw_class_map){magnitude[w], (uint32_t)(random64() % (top + 1)), mantissa[w]};
}

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "%s: width %u, n %zu, %u %%: %s\n", k->name, width, n,       \
                    percent, #condition);                                                \
            return 0;                                                                    \
        }                                                                                \
    } while (0)

static int one_case(const dw_kernels *k, unsigned width, size_t n, unsigned percent)
{
    static uint8_t old_room[MAX_N * 8 + 8], new_room[MAX_N * 8 + 8];
    static uint8_t copy[MAX_N * 8], values[MAX_N * 8];
    static uint32_t at_1[MAX_N + DW_LIST_SLACK], at_2[MAX_N + DW_LIST_SLACK], gaps[MAX_N];
    static dw_change out_1[MAX_N + DW_LIST_SLACK], out_2[MAX_N + DW_LIST_SLACK];
    static uint64_t found_1[MAX_N / 64 + 1], found_2[MAX_N / 64 + 1];
    const dw_kernels *plain = &dw_kernels_plain;
    unsigned w = dw_width_index(width);
    uint8_t *old = old_room + random64() % 8, *new = new_room + random64() % 8;

    fill(old, n, width);
    memcpy(new, old, n * width);
    change(new, n, width, percent);
    dw_class_map map = random_map(width);

    size_t n_1 = plain->diff[w](at_1, old, new, n);
    size_t n_2 = k->diff[w](at_2, old, new, n);
    CHECK(n_1 == n_2 && memcmp(at_1, at_2, n_1 * sizeof *at_1) == 0);

    /* the vector kernels take the same elements in two calls */
    dw_class_state state_1 = {0}, state_2 = {0};
    size_t n_front = random64() % (n + 1);
    CHECK(plain->class_diff[w](out_1, &state_1, old, new, n, &map) == n_1);
    size_t n_changes = k->class_diff[w](out_2, &state_2, old, new, n_front, &map);
    size_t n_back = k->class_diff[w](out_2 + n_changes, &state_2, old + n_front * width,
                                     new + n_front *width, n - n_front, &map);
    for (size_t i = n_changes; i < n_changes + n_back; i++)
        out_2[i].position += (uint32_t)n_front;
    CHECK(n_changes + n_back == n_1);
    CHECK(memcmp(out_1, out_2, n_1 * sizeof *out_1) == 0);
    CHECK(memcmp(&state_1, &state_2, sizeof state_1) == 0);
    uint32_t totals[DW_CLASSES];
    k->class_count[w](totals, old, n, &map);
    for (unsigned c = 0; c < DW_CLASSES; c++)
        CHECK(totals[c] == state_1.seen[c]);

    /* sort the gaps by class, then find the changes again */
    dw_class_gaps by_class = {.gaps = gaps};
    uint32_t fill_at[DW_CLASSES];
    for (size_t i = 0; i < n_1; i++)
        by_class.first[dw_gap_class(out_1[i].class_gap) + 1]++;
    for (unsigned c = 0; c < DW_CLASSES; c++)
        by_class.first[c + 1] += by_class.first[c];
    memcpy(fill_at, by_class.first, sizeof fill_at);
    for (size_t i = 0; i < n_1; i++)
        gaps[fill_at[dw_gap_class(out_1[i].class_gap)]++] =
            dw_gap_size(out_1[i].class_gap);
    dw_locate_state at_state_1, at_state_2;
    dw_locate_begin(&at_state_1, &by_class);
    dw_locate_begin(&at_state_2, &by_class);
    for (size_t at = 0; at < n; at += DW_LOCATE_ELEMS) {
        size_t n_now = n - at < DW_LOCATE_ELEMS ? n - at : DW_LOCATE_ELEMS;
        const uint8_t *part = old + at * width;
        plain->class_locate[w](found_1 + at / 64, &at_state_1, part, n_now, &map,
                               &by_class);
        k->class_locate[w](found_2 + at / 64, &at_state_2, part, n_now, &map, &by_class);
    }
    CHECK(memcmp(found_1, found_2, (n + 63) / 64 * sizeof *found_1) == 0);
    CHECK(memcmp(&at_state_1, &at_state_2, sizeof at_state_1) == 0);
    CHECK(k->list_bits(at_2, found_2, (n + 63) / 64) == n_1);
    CHECK(memcmp(at_1, at_2, n_1 * sizeof *at_1) == 0);

    memcpy(copy, old, n * width);
    k->gather[w](values, new, at_1, n_1);
    k->scatter[w](copy, at_1, values, n_1);
    CHECK(memcmp(copy, new, n * width) == 0);
    return 1;
}

static int digest_case(const dw_kernels *k)
{
    static uint8_t chunk[DW_DIGEST_CHUNK + 8];
    static uint32_t low[DW_DIGEST_CHUNK / 4], high[DW_DIGEST_CHUNK / 4];
    bool extreme = random64() % 2;
    uint8_t *at = chunk + random64() % 8;
    for (size_t i = 0; i < DW_DIGEST_CHUNK; i++)
        at[i] = extreme ? 0xff : (uint8_t)random64();
    for (size_t i = 0; i < DW_DIGEST_CHUNK / 4; i++) {
        low[i] = extreme ? 0x3fffffff : (uint32_t)random64() >> 2;
        high[i] = extreme ? 0x3fffffff : (uint32_t)random64() >> 2;
    }
    uint64_t a = dw_kernels_plain.digest_chunk(at, low, high);
    uint64_t b = k->digest_chunk(at, low, high);
    if (a != b)
        fprintf(stderr, "%s: digest_chunk gives %llx, not %llx\n", k->name,
                (unsigned long long)b, (unsigned long long)a);
    return a == b;
}

static int round_case(const dw_kernels *k)
{
    enum { N = 301 };
    static uint8_t in[4 * N + 4], a[2 * N], b[2 * N];
    const size_t n = random64() % N;
    uint8_t *at = in + random64() % 4;
    for (size_t i = 0; i < 4 * n; i++)
        at[i] = random64() % 4 ? (uint8_t)random64() : 0xff; /* with some NaNs */
    dw_kernels_plain.round_bf16(a, at, n);
    k->round_bf16(b, at, n);
    if (memcmp(a, b, 2 * n) != 0)
        fprintf(stderr, "%s: round_bf16 gives other bits\n", k->name);
    return memcmp(a, b, 2 * n) == 0;
}

/* Every pattern of BF16, at every tail length, with scales of all sizes. */
static int quant_case(const dw_kernels *k, size_t n)
{
    enum { ALL = 65536 };
    static uint16_t half[ALL];
    static uint32_t full[ALL];
    static uint8_t a[ALL], b[ALL];
    const dw_kernels *plain = &dw_kernels_plain;
    static const float scales[] = {0x1p-126f, 0x1.3456p-100f, 0x1.fffffep-12f, 1.0f,
                                   0x1.249252p+100f};
    size_t n_here = 0;
    const float scale = scales[random64() % 5];
    const bool is_int = random64() % 2;
    const float limit = scale * (is_int ? 127.0f : 448.0f);
    for (uint32_t x = 0; x < ALL; x++) {
        const uint32_t bits = x << 16 | (uint32_t)(random64() & 0xffff);
        const uint32_t short_bits = x << 16;
        float long_value, short_value;
        memcpy(&long_value, &bits, 4);
        memcpy(&short_value, &short_bits, 4);
        if (!(long_value <= limit && long_value >= -limit && short_value <= limit &&
              short_value >= -limit))
            continue;
        half[n_here] = (uint16_t)x;
        full[n_here++] = bits;
    }
    const size_t first = n_here > n ? random64() % (n_here - n) : 0;
    n = n == 0 || n > n_here ? n_here : n;
    const void *in[2] = {n == n_here ? half : half + first / 32 * 32,
                         n == n_here ? full : full + first / 32 * 32};
    for (unsigned kind = 0; kind < 2; kind++) {
        if (plain->quant_max[kind](in[kind], n) != k->quant_max[kind](in[kind], n)) {
            fprintf(stderr, "%s: quant_max differs, n %zu\n", k->name, n);
            return 0;
        }
        memset(a, 0x55, sizeof a);
        memset(b, 0x55, sizeof b);
        (is_int ? plain->quant_int8 : plain->quant_fp8)[kind](a, in[kind], n, scale);
        (is_int ? k->quant_int8 : k->quant_fp8)[kind](b, in[kind], n, scale);
        if (memcmp(a, b, sizeof a) != 0) {
            fprintf(stderr, "%s: %s of kind %u differs, n %zu, scale %a\n", k->name,
                    is_int ? "quant_int8" : "quant_fp8", kind, n, (double)scale);
            return 0;
        }
    }
    return 1;
}

/* Infinity and NaN are found wherever they are. */
static int quant_max_case(const dw_kernels *k)
{
    for (size_t n = 1; n <= 130; n++)
        for (size_t i = 0; i < n; i++) {
            uint16_t half[130] = {0};
            uint32_t full[130] = {0};
            half[i] = 0xffc0;
            full[i] = 0xff800000;
            if (k->quant_max[0](half, n) != 0x7fc00000 ||
                k->quant_max[1](full, n) != 0x7f800000) {
                fprintf(stderr, "%s: quant_max misses element %zu\n", k->name, i);
                return 0;
            }
        }
    return 1;
}

int main(void)
{
    static const char *const names[] = {"plain", "avx2", "avx512", "neon"};
    static const unsigned percents[] = {0, 1, 10, 50, 100};
    int passed = 0, failed = 0;
    for (size_t t = 0; t < sizeof names / sizeof names[0]; t++) {
        const dw_kernels *k = dw_kernels_find(names[t]);
        if (!k) {
            printf("%s: not on this machine\n", names[t]);
            continue;
        }
        for (unsigned width = 1; width <= 8; width *= 2) {
            int good = 1;
            for (size_t n = 0; good && n <= 260; n++)
                for (size_t p = 0; good && p < sizeof percents / sizeof percents[0]; p++)
                    good = one_case(k, width, n, percents[p]);
            for (int i = 0; good && i < 60; i++)
                good = one_case(k, width, random64() % (MAX_N + 1),
                                (unsigned)(random64() % 101));
            *(good ? &passed : &failed) += 1;
        }
        int good = 1;
        for (int i = 0; good && i < 100; i++)
            good = digest_case(k) && round_case(k);
        for (size_t n = 0; good && n <= 260; n++)
            good = quant_case(k, n);
        for (int i = 0; good && i < 40; i++)
            good = quant_case(k, 0);
        good = good && quant_max_case(k);
        *(good ? &passed : &failed) += 1;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
