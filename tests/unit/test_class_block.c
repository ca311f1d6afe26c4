/* labels: single */
#include "unit/suite.h"

#include "codec/class_block.h"
#include "every_kernel.h"
#include "random_model.h"

static dw_class_scratch *scratch;

static int make_scratch(void **state)
{
    (void)state;
    scratch = dw_class_scratch_new();
    return scratch ? 0 : -1;
}

static int free_scratch(void **state)
{
    (void)state;
    dw_class_scratch_free(scratch);
    return 0;
}

/* One of each element structure: width, float or not, mantissa. */
static const dw_dtype kinds[] = {DW_U8,   DW_F8_E4M3, DW_F8_E5M2, DW_I16, DW_F16,
                                 DW_BF16, DW_U32,     DW_F32,     DW_I64, DW_F64};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static dw_encoded encode(const uint8_t *old, const uint8_t *new_, uint32_t n,
                         dw_element element, const dw_class_map *map)
{
    dw_note note = dw_note_at(0);
    return dw_class_encode(scratch, (void *)old, new_, n, element, map, &note);
}

static bool decode(dw_decoded *out, const uint8_t *bytes, size_t n_bytes,
                   const uint8_t *old, uint32_t n, dw_element element,
                   const dw_class_map *map)
{
    dw_note note = dw_note_at(0);
    return dw_class_decode(out, scratch, bytes, n_bytes, old, n, element, map, &note);
}

/* Decodes the result of encode() against OLD and compares it with NEW, in buffers of
 * exact sizes. Returns the encoded size. */
static size_t check_round_trip(const uint8_t *old, const uint8_t *new_, uint32_t n,
                               dw_element element, const dw_class_map *map)
{
    const size_t n_bytes = (size_t)n * element.width;
    dw_encoded e = encode(old, new_, n, element, map);
    size_t n_differ = 0;
    for (uint32_t i = 0; i < n; i++)
        n_differ +=
            memcmp(old + i * element.width, new_ + i * element.width, element.width) != 0;
    assert_int_equal(e.n_changes, n_differ);
    assert_int_equal(e.n_bytes == 0, n_differ == 0);
    if (n_differ == 0)
        return 0;
    kernel_hash(e.bytes, e.n_bytes);
    uint8_t *copy = malloc(e.n_bytes), *result = malloc(n_bytes);
    memcpy(copy, e.bytes, e.n_bytes);
    memcpy(result, old, n_bytes);
    dw_decoded d;
    assert_true(decode(&d, copy, e.n_bytes, old, n, element, map));
    assert_int_equal(d.n_changes, n_differ);
    for (size_t i = 0; i < d.n_changes; i++) {
        assert_true(d.positions[i] < n &&
                    (i == 0 || d.positions[i] > d.positions[i - 1]));
        memcpy(result + (size_t)d.positions[i] * element.width,
               (const uint8_t *)d.values + i * element.width, element.width);
    }
    assert_memory_equal(result, new_, n_bytes);
    size_t n_encoded = e.n_bytes;
    free(copy);
    free(result);
    return n_encoded;
}

/* Every length to 200, densities from none to all. */
TEST(test_small_blocks)
{
    static const unsigned per_mille[] = {0, 5, 100, 500, 1000};
    for (size_t k = 0; k < N_KINDS; k++) {
        const dw_element element = dw_dtype_element(kinds[k]);
        for (uint32_t n = 0; n <= 200; n++) {
            uint8_t *old = malloc((size_t)n * element.width + 1),
                    *new_ = malloc((size_t)n * element.width + 1);
            /* one byte off, and up to the block's end */
            fill_weights(old + 1, n, element);
            dw_class_map map = dw_class_map_choose(old + 1, n, element);
            for (size_t p = 0; p < sizeof per_mille / sizeof per_mille[0]; p++) {
                memcpy(new_ + 1, old + 1, (size_t)n * element.width);
                change_weights(new_ + 1, n, element, per_mille[p]);
                check_round_trip(old + 1, new_ + 1, n, element, &map);
            }
            free(old);
            free(new_);
        }
    }
}

/* Whole blocks. From 1 % of changes on, the size is close to the entropy of moves and
 * gaps. */
TEST(test_full_blocks)
{
    static const unsigned per_mille[] = {1, 10, 300, 1000};
    const bool slow = getenv("DW_SANITIZE") && *getenv("DW_SANITIZE");
    for (size_t k = 0; k < N_KINDS; k++) {
        const dw_element element = dw_dtype_element(kinds[k]);
        const uint32_t n = dw_block_elems(element.width);
        if (slow && element.width != 2)
            continue;
        const size_t n_bytes = (size_t)n * element.width;
        uint8_t *old = malloc(n_bytes), *new_ = malloc(n_bytes);
        fill_weights(old, n, element);
        dw_class_map map = dw_class_map_choose(old, n, element);
        for (size_t p = 0; p < 4; p++) {
            memcpy(new_, old, n_bytes);
            uint64_t n_changed = change_weights(new_, n, element, per_mille[p]);
            size_t size = check_round_trip(old, new_, n, element, &map);
            /* 1 in 50 is a random value; the others need position, sign and few steps */
            double most = 11.0 + 4.0 + 8 * element.width / 50.0;
            assert_true((double)size * 8 < (double)n_changed * most + 2000);
        }
        free(old);
        free(new_);
    }
}

/* An untypical value for element I. */
static uint64_t adversary(unsigned kind, uint32_t i, uint64_t old, dw_element element)
{
    const unsigned bits = 8 * element.width;
    switch (kind) {
    case 0: /* sign flips everywhere */
        return old ^ 1ull << (bits - 1);
    case 1: /* the largest moves */
        return ~old;
    case 2: /* every element random */
        return random64();
    case 3: /* the last element only */
        return i % 997 == 996 ? old + 1 : old;
    case 4: /* half of them one step, half as far as possible */
        return i % 2 ? old + 1 : old + (1ull << (bits - 1));
    case 5: /* far moves at sampled positions, small ones elsewhere */
        return i % 5 == 0 ? ~old : old + 1;
    default: /* all to one value */
        return 0x41;
    }
}

TEST(test_adversarial_values)
{
    for (size_t k = 0; k < N_KINDS; k++) {
        const dw_element element = dw_dtype_element(kinds[k]);
        enum { N = 40000 };
        const size_t n_bytes = (size_t)N * element.width;
        uint8_t *old = malloc(n_bytes), *new_ = malloc(n_bytes);
        for (unsigned base = 0; base < 4; base++) {
            for (uint32_t i = 0; i < N; i++) {
                uint64_t x = base == 0   ? 0                    /* all equal */
                             : base == 1 ? (uint64_t)i * 0x1081 /* every class */
                             : base == 2 ? ~0ull                /* all NaN */
                                         : random64();
                dw_element_store(old, i, element.width, x);
            }
            dw_class_map map = dw_class_map_choose(old, N, element);
            for (unsigned kind = 0; kind < 7; kind++) {
                for (uint32_t i = 0; i < N; i++)
                    dw_element_store(new_, i, element.width,
                                     adversary(kind, i,
                                               dw_element_load(old, i, element.width),
                                               element));
                size_t size = check_round_trip(old, new_, N, element, &map);
                /* symbols, gaps and moves in full */
                assert_true(size < n_bytes + 2 * (size_t)N + 100);
            }
        }
        free(old);
        free(new_);
    }
}

/* All elements of a full block move as far as possible: the largest size. */
TEST(test_largest_output)
{
    for (unsigned width = 1; width <= 8; width *= 2) {
        const dw_element element = {width, false, 8 * width};
        const uint32_t n = dw_block_elems(width);
        uint8_t *old = calloc(n, width), *new_ = malloc((size_t)n * width);
        dw_class_map map = dw_class_map_make(element, 0);
        for (unsigned kind = 1; kind <= 5; kind += 4) {
            for (uint32_t i = 0; i < n; i++)
                dw_element_store(new_, i, width, adversary(kind, i, 0, element));
            check_round_trip(old, new_, n, element, &map);
        }
        free(old);
        free(new_);
    }
}

/* The same pass computes the change of the digest and stores to the old elements. */
TEST(test_settling)
{
    for (size_t k = 0; k < N_KINDS; k++) {
        const dw_element element = dw_dtype_element(kinds[k]);
        const uint32_t n = 70000; /* more than one strip */
        const size_t n_bytes = (size_t)n * element.width;
        const uint64_t first_byte = (6u << 20) * k;
        uint8_t *old = malloc(n_bytes), *new_ = malloc(n_bytes), *kept = malloc(n_bytes);
        fill_weights(old, n, element);
        memcpy(kept, old, n_bytes);
        memcpy(new_, old, n_bytes);
        change_weights(new_, n, element, 20);
        dw_class_map map = dw_class_map_choose(old, n, element);
        for (int update = 0; update < 2; update++) {
            dw_note note = dw_note_at(first_byte), other = note;
            note.update_old = update;
            dw_encoded e = dw_class_encode(scratch, old, new_, n, element, &map, &note);
            assert_memory_equal(old, update ? new_ : kept, n_bytes);
            dw_digest sum = dw_digest_plus(dw_digest_share(kept, n_bytes, first_byte),
                                           dw_digest_moves_sum(&note.digest));
            assert_true(sum == dw_digest_share(new_, n_bytes, first_byte));
            /* decoding notes the same */
            uint8_t *copy = malloc(e.n_bytes);
            memcpy(copy, e.bytes, e.n_bytes);
            dw_decoded d;
            assert_true(dw_class_decode(&d, scratch, copy, e.n_bytes, kept, n, element,
                                        &map, &other));
            assert_true(dw_digest_moves_sum(&other.digest) ==
                        dw_digest_moves_sum(&note.digest));
            free(copy);
        }
        free(old);
        free(new_);
        free(kept);
    }
}

/* Any base of the class map works, and the chosen one is in range. */
TEST(test_class_maps)
{
    for (size_t k = 0; k < N_KINDS; k++) {
        const dw_element element = dw_dtype_element(kinds[k]);
        enum { N = 3000 };
        uint8_t *old = malloc((size_t)N * element.width);
        uint8_t *new_ = malloc((size_t)N * element.width);
        fill_weights(old, N, element);
        memcpy(new_, old, (size_t)N * element.width);
        change_weights(new_, N, element, 30);
        dw_class_map map = dw_class_map_make(element, 0);
        const uint64_t top = map.magnitude >> map.shift;
        dw_class_map chosen = dw_class_map_choose(old, N, element);
        assert_true(chosen.magnitude == map.magnitude && chosen.shift == map.shift);
        assert_true(chosen.base <= top);
        for (uint64_t base = 0; base <= top; base += 1 + top / 40) {
            map = dw_class_map_make(element, (uint32_t)base);
            check_round_trip(old, new_, N, element, &map);
        }
        /* nothing to choose from */
        assert_true(dw_class_map_choose(NULL, 0, element).base <= top);
        free(old);
        free(new_);
    }
}

/* Any bytes are refused, or give ascending positions inside the block and new values that
 * differ from the old. */
static bool check_any(const uint8_t *bytes, size_t n_bytes, const uint8_t *old,
                      uint32_t n, dw_element element, const dw_class_map *map)
{
    dw_decoded d;
    uint8_t *exact = malloc(n_bytes + !n_bytes);
    memcpy(exact, bytes, n_bytes);
    bool good = decode(&d, exact, n_bytes, old, n, element, map);
    for (size_t i = 0; good && i < d.n_changes; i++) {
        assert_true(d.positions[i] < n &&
                    (i == 0 || d.positions[i] > d.positions[i - 1]));
        assert_true(dw_element_load(d.values, i, element.width) !=
                    dw_element_load(old, d.positions[i], element.width));
    }
    free(exact);
    return good;
}

TEST(test_altered_blocks)
{
    for (size_t k = 0; k < N_KINDS; k++) {
        const dw_element element = dw_dtype_element(kinds[k]);
        enum { N = 700 };
        uint8_t *old = malloc((size_t)N * element.width);
        uint8_t *new_ = malloc((size_t)N * element.width);
        fill_weights(old, N, element);
        memcpy(new_, old, (size_t)N * element.width);
        change_weights(new_, N, element, 60);
        dw_class_map map = dw_class_map_choose(old, N, element);
        dw_encoded e = encode(old, new_, N, element, &map);
        uint8_t *bytes = malloc(e.n_bytes + 8);
        const size_t n_bytes = e.n_bytes;
        memcpy(bytes, e.bytes, n_bytes);
        for (size_t n = 0; n < n_bytes; n++) /* cut short */
            assert_false(check_any(bytes, n, old, N, element, &map));
        memset(bytes + n_bytes, 0, 8); /* too long */
        assert_false(check_any(bytes, n_bytes + 1, old, N, element, &map));
        for (size_t bit = 0; bit < 8 * n_bytes; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            check_any(bytes, n_bytes, old, N, element, &map);
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        for (unsigned round = 0; round < 500; round++) {
            bytes[random_below(n_bytes)] = (uint8_t)random64();
            check_any(bytes, n_bytes, old, N, element, &map);
            check_any(bytes, n_bytes, new_, N, element, &map); /* and another base */
        }
        free(bytes);
        free(old);
        free(new_);
    }
}

TEST(test_random_bytes)
{
    static uint8_t old[200 * 8], bytes[300];
    for (unsigned round = 0; round < 20000; round++) {
        const dw_element element = dw_dtype_element(kinds[round % N_KINDS]);
        uint32_t n = (uint32_t)random_below(200);
        size_t n_bytes = random_below(sizeof bytes);
        fill_weights(old, n, element);
        for (size_t i = 0; i < n_bytes; i++)
            bytes[i] = (uint8_t)(round % 3 ? random64() : random64() & random64());
        if (n_bytes > 20) /* a length of A that fits */
            bytes[0] = (uint8_t)(4 + random_below(n_bytes < 120 ? n_bytes - 8 : 110));
        dw_class_map map = dw_class_map_choose(old, n, element);
        check_any(bytes, n_bytes, old, n, element, &map);
    }
}

static int run(void)
{
    return suite_run(make_scratch, free_scratch);
}

int main(int argc, char **argv)
{
    (void)argc;
    return under_every_kernel(argv, run);
}
