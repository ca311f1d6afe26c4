#include "unit/suite.h"

#include "codec/ans.h"
#include "random_model.h"

TEST(test_tables)
{
    for (unsigned t = 0; t < DW_ANS_TABLES; t++) {
        const dw_ans_table *table = &dw_ans_tables()[t];
        uint32_t start = 0;
        for (unsigned s = 0; s < DW_ANS_SYMBOLS; s++) {
            const dw_ans_symbol *y = &table->symbol[s];
            assert_int_equal(y->start, start);
            assert_true(y->size >= 1);
            for (uint32_t slot = start; slot < start + y->size; slot++)
                assert_int_equal(table->slot[slot],
                                 s | (uint32_t)y->size << 5 | (slot - start) << 18);
            start += y->size;
            /* -log2(size / 4096) computed in another way: 2^(cost/256) * size = 4096 */
            double product = y->size;
            for (unsigned bit = 0; bit < table->cost[s] / 256; bit++)
                product *= 2;
            for (unsigned c = 0; c < table->cost[s] % 256; c++)
                product *= 1.0027112750502025; /* 2^(1/256) */
            assert_true(product > 4096 * 0.999 && product < 4096 * 1.004);
        }
        assert_int_equal(start, DW_ANS_TOTAL);
    }
}

/* From one table to the next, runs grow longer. */
TEST(test_tables_in_order)
{
    for (unsigned t = 1; t < DW_ANS_TABLES; t++)
        assert_true(dw_ans_tables()[t].symbol[0].size <
                    dw_ans_tables()[t - 1].symbol[0].size);
}

/* Division by multiplication, at every multiple of the size that can go wrong. */
TEST(test_reciprocals)
{
    bool seen[DW_ANS_TOTAL + 1] = {false};
    for (unsigned t = 0; t < DW_ANS_TABLES; t++)
        for (unsigned s = 0; s < DW_ANS_SYMBOLS; s++) {
            const dw_ans_symbol *y = &dw_ans_tables()[t].symbol[s];
            if (seen[y->size])
                continue;
            seen[y->size] = true;
            const uint64_t end = (uint64_t)y->size << 20; /* x stays below */
            for (uint64_t q = 0; q < 1 << 20; q += 1 + random_below(64)) {
                uint64_t x = q * y->size;
                for (uint64_t d = 0; d < 3; d++) {
                    uint64_t v = d == 0 ? x : d == 1 ? x + y->size - 1 : x + y->size / 2;
                    assert_true((v * y->reciprocal) >> 44 == v / y->size);
                }
            }
            assert_true(((end - 1) * y->reciprocal) >> 44 == (end - 1) / y->size);
        }
}

TEST(test_fit)
{
    unsigned last = 0;
    for (uint64_t stay = 0; stay <= UINT32_MAX; stay += 1 + (UINT32_MAX - stay) / 4096) {
        unsigned q = dw_ans_fit(dw_ans_stays(), (uint32_t)stay);
        assert_true(q >= last);
        assert_true(q <= DW_ANS_MAX_Q);
        last = q;
    }
    assert_int_equal(dw_ans_fit(dw_ans_stays(), 0), 0);
    assert_true(dw_ans_fit(dw_ans_stays(), UINT32_MAX) > 100);
    for (unsigned q = 0; q <= DW_ANS_MAX_Q; q++) {
        assert_true(dw_ans_table_of(q) < DW_ANS_TABLES);
        assert_true(dw_ans_bucket_bits(q) <= 26);
        if (q > 0) { /* a step of q is a step of the table, or a bucket twice as wide */
            unsigned wide = 4 * dw_ans_bucket_bits(q) + dw_ans_table_of(q);
            assert_int_equal(wide,
                             4 * dw_ans_bucket_bits(q - 1) + dw_ans_table_of(q - 1) + 1);
        }
    }
}

/* The fitted table costs little more than the run's own entropy. */
TEST(test_fit_is_near_the_entropy)
{
    for (unsigned percent = 1; percent < 100; percent++) {
        double end = percent / 100.0, weight = end, bits = 0, entropy = 0;
        unsigned q = dw_ans_fit(dw_ans_stays(), (uint32_t)((1 - end) * 4294967295.0));
        const dw_ans_table *table = &dw_ans_tables()[dw_ans_table_of(q)];
        unsigned k = dw_ans_bucket_bits(q);
        for (unsigned gap = 0; gap < 3000; gap++, weight *= 1 - end) {
            unsigned bucket = gap >> k, fars = bucket / DW_ANS_FAR;
            bits += weight * (fars * table->cost[DW_ANS_FAR] +
                              table->cost[bucket % DW_ANS_FAR] + 256 * k);
        }
        /* h(p) / p, in 1/256 bit, from the table of logarithms that cost[] is */
        for (double p = end; p < 0.9999; p = 1) {
            double a = 0, b = 0, x;
            for (x = end; x < 1; x *= 1.0027112750502025)
                a += 1;
            for (x = 1 - end; x < 1; x *= 1.0027112750502025)
                b += 1;
            entropy = (end * a + (1 - end) * b) / end;
        }
        assert_true(bits < entropy * 1.06 + 26);
    }
}

enum { MAX_N = 20000 };

typedef struct stream {
    uint8_t symbols[MAX_N], tables[MAX_N];
    size_t n;
    uint8_t room[2 * MAX_N + 16];
    uint8_t *bytes;
    size_t n_bytes;
} stream;

static void encode(stream *s)
{
    dw_ans_writer w = dw_ans_writer_at(s->room + sizeof s->room);
    for (size_t i = s->n; i-- > 0;)
        dw_ans_put(&w, &dw_ans_tables()[s->tables[i]].symbol[s->symbols[i]]);
    s->bytes = dw_ans_finish(&w);
    s->n_bytes = (size_t)(s->room + sizeof s->room - s->bytes);
}

static void make_stream(stream *s, size_t n)
{
    s->n = n;
    for (size_t i = 0; i < n; i++) {
        s->tables[i] = (uint8_t)random_below(DW_ANS_TABLES);
        s->symbols[i] = (uint8_t)(random_below(4) ? random_below(3) : random_below(32));
    }
    encode(s);
}

/* Whether the bytes decode to the symbols; *SPENT takes the result of the reader's own
 * check. */
static bool decodes(const stream *s, const uint8_t *bytes, size_t n_bytes, bool *spent)
{
    dw_ans_reader r = dw_ans_reader_of(bytes, n_bytes);
    bool same = true;
    for (size_t i = 0; i < s->n; i++)
        same &= dw_ans_get(&r, &dw_ans_tables()[s->tables[i]]) == s->symbols[i];
    *spent = dw_ans_spent(&r);
    return same;
}

TEST(test_streams)
{
    static stream s;
    bool spent;
    for (size_t n = 0; n < 300; n++) {
        make_stream(&s, n);
        assert_true(decodes(&s, s.bytes, s.n_bytes, &spent));
        assert_true(spent);
    }
    make_stream(&s, MAX_N);
    assert_true(decodes(&s, s.bytes, s.n_bytes, &spent));
    assert_true(spent);
}

/* Each symbol of each table, repeated: the cost is as stated, and never more than 12
 * bits. */
TEST(test_cost)
{
    static stream s;
    for (unsigned t = 0; t < DW_ANS_TABLES; t++)
        for (unsigned y = 0; y < DW_ANS_SYMBOLS; y++) {
            s.n = 2000;
            memset(s.tables, (int)t, s.n);
            memset(s.symbols, (int)y, s.n);
            encode(&s);
            bool spent;
            assert_true(decodes(&s, s.bytes, s.n_bytes, &spent) && spent);
            double bits = (double)s.n_bytes * 8,
                   said = (double)s.n * dw_ans_tables()[t].cost[y] / 256;
            assert_true(bits < said + 80 + 0.01 * (double)s.n);
            assert_true(bits > said - 80 - 0.01 * (double)s.n);
            assert_true(bits <= 12.0 * (double)s.n + 80);
        }
}

TEST(test_truncated)
{
    static stream s;
    make_stream(&s, 500);
    for (size_t n = 0; n < s.n_bytes; n++) {
        uint8_t *cut = malloc(n + 1);
        bool spent;
        memcpy(cut, s.bytes, n);
        decodes(&s, cut, n, &spent);
        assert_false(spent);
        free(cut);
    }
    uint8_t *longer = calloc(s.n_bytes + 2, 1);
    bool spent;
    memcpy(longer, s.bytes, s.n_bytes);
    decodes(&s, longer, s.n_bytes + 2, &spent);
    assert_false(spent);
    free(longer);
}

/* The coder is one to one: altered bytes never give both the same symbols and the end
 * state, and rarely the end state (only if a symbol is replaced with another of its
 * size). */
TEST(test_altered)
{
    static stream s;
    make_stream(&s, 500);
    size_t n_passed = 0;
    for (size_t bit = 0; bit < 8 * s.n_bytes; bit++) {
        bool spent;
        s.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(decodes(&s, s.bytes, s.n_bytes, &spent) && spent);
        s.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        n_passed += spent;
    }
    assert_true(n_passed < 8 * s.n_bytes / 3);
}

/* Any bytes and any starting state: no read past the end, and symbols in range. */
TEST(test_random_bytes)
{
    for (unsigned round = 0; round < 2000; round++) {
        size_t n = random_below(40);
        uint8_t *bytes = malloc(n + 1);
        for (size_t i = 0; i < n; i++)
            bytes[i] = (uint8_t)(round % 3 == 0 ? 0xff : random64());
        dw_ans_reader r = dw_ans_reader_of(bytes, n);
        for (unsigned i = 0; i < 200; i++)
            assert_true(dw_ans_get(&r, &dw_ans_tables()[random_below(DW_ANS_TABLES)]) <
                        DW_ANS_SYMBOLS);
        free(bytes);
    }
}

RUN_TESTS(NULL, NULL)
