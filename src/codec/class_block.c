#include "codec/class_block.h"

#include <string.h>

#include "base/bits.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "codec/ans.h"
#include "codec/element.h"

/* What a symbol, and the plain bits of an element, can take at most. With q fitted to
 * the gaps their plain bits stay below 1.1 for each element of the block, and FAR stands
 * for at least 31 elements. */
#define MAX_SYMBOLS   (2 * DW_BLOCK_ELEMS + DW_BLOCK_ELEMS / DW_ANS_FAR + 2 * DW_CLASSES)
#define MAX_ANS_BYTES (MAX_SYMBOLS * 3 / 2 + 64)
#define MAX_BIT_BYTES ((2u << 20) + DW_BLOCK_ELEMS / 8 + DW_BLOCK_ELEMS / 4 + 256)

/* Predictions of the parameters: each class up halves the chance of a change, and the
 * size of a move. Four steps of q are a factor of two. */
#define FIRST_Q 20
#define STEP_Q  4

struct dw_class_scratch {
    dw_change changes[DW_BLOCK_ELEMS];
    uint32_t where[DW_BLOCK_ELEMS];
    uint32_t gaps[DW_BLOCK_ELEMS];  /* by class, then position */
    uint64_t moves[DW_BLOCK_ELEMS]; /* likewise */
    uint8_t symbols[MAX_SYMBOLS];
    uint8_t ans[MAX_ANS_BYTES];
    uint8_t bits[MAX_BIT_BYTES];
    uint8_t out[MAX_ANS_BYTES + MAX_BIT_BYTES + 16];
    uint64_t values[(2u << 20) / sizeof(uint64_t)];
};

/* The parameters of one class. */
typedef struct model {
    bool changes;   /* any element of the class changed */
    bool far_moves; /* any moved by more than one step */
    unsigned gap_q;
    unsigned move_q;
} model;

dw_class_scratch *dw_class_scratch_new(void)
{
    return dw_alloc(sizeof(dw_class_scratch));
}

void dw_class_scratch_free(dw_class_scratch *s)
{
    dw_free(s);
}

/* ---- classes ---- */

dw_class_map dw_class_map_make(dw_element element, uint32_t base)
{
    if (!element.is_float)
        return (dw_class_map){0};
    return (dw_class_map){~0ull >> (65 - 8 * element.width), base, element.exponent_shift};
}

dw_class_map dw_class_map_choose(const void *data, uint64_t n_elems, dw_element element)
{
    /* short runs: a sample here and there would miss the cache each time */
    enum { RUNS = 16, RUN_ELEMS = 256, EXPONENTS = 2048 };
    dw_class_map map = dw_class_map_make(element, 0);
    if (!element.is_float)
        return map;
    uint32_t counts[EXPONENTS] = {0};
    uint64_t n_samples = 0;
    for (uint64_t run = 0; run < RUNS; run++) {
        uint64_t begin = n_elems / RUNS * run;
        for (uint64_t i = begin; i < n_elems && i < begin + RUN_ELEMS; i++) {
            uint64_t x = dw_element_load(data, i, element.width);
            counts[(x & map.magnitude) >> map.shift]++;
            n_samples++;
        }
    }
    /* the largest exponents are rare and share the last class; 16 from there down */
    uint64_t above = 0;
    uint32_t top = EXPONENTS - 1;
    while (top > 0 && above + counts[top] <= n_samples / 128)
        above += counts[top--];
    map.base = top >= DW_CLASSES ? top - (DW_CLASSES - 1) : 0;
    return map;
}

/* ---- parameters ---- */

static uint32_t zigzag(int32_t v)
{
    return (uint32_t)v << 1 ^ (uint32_t)(v >> 31);
}

static int32_t unzigzag(uint32_t v)
{
    return (int32_t)(v >> 1) ^ -(int32_t)(v & 1);
}

static void put_models(dw_bit_writer *w, const model models[DW_CLASSES],
                       const uint32_t totals[DW_CLASSES])
{
    int32_t gap_q = FIRST_Q, move_q = FIRST_Q;
    for (unsigned c = 0; c < DW_CLASSES; c++) {
        const model *m = &models[c];
        if (totals[c] == 0)
            continue;
        dw_put_bits(w, m->changes, 1);
        if (!m->changes)
            continue;
        dw_put_golomb(w, zigzag((int32_t)m->gap_q - (gap_q + STEP_Q)));
        gap_q = (int32_t)m->gap_q;
        dw_put_bits(w, m->far_moves, 1);
        if (!m->far_moves)
            continue;
        dw_put_golomb(w, zigzag((int32_t)m->move_q - (move_q - STEP_Q)));
        move_q = (int32_t)m->move_q;
    }
}

/* Reads one q; false where it is out of range. */
static bool get_q(dw_bit_reader *r, int32_t predicted, unsigned *q)
{
    int64_t v = (int64_t)predicted + unzigzag(dw_get_golomb(r));
    *q = (unsigned)v;
    return v >= 0 && v <= DW_ANS_MAX_Q;
}

static bool get_models(dw_bit_reader *r, model models[DW_CLASSES],
                       const uint32_t totals[DW_CLASSES])
{
    int32_t gap_q = FIRST_Q, move_q = FIRST_Q;
    for (unsigned c = 0; c < DW_CLASSES; c++) {
        model *m = &models[c];
        *m = (model){0};
        if (totals[c] == 0 || !dw_get_bits(r, 1))
            continue;
        m->changes = true;
        if (!get_q(r, gap_q + STEP_Q, &m->gap_q))
            return false;
        gap_q = (int32_t)m->gap_q;
        m->far_moves = dw_get_bits(r, 1);
        if (!m->far_moves)
            continue;
        if (!get_q(r, move_q - STEP_Q, &m->move_q))
            return false;
        move_q = (int32_t)m->move_q;
    }
    return true;
}

/* Cost of coding moves with q, in 1/256 bit. */
static uint64_t move_cost(const uint64_t *moves, size_t n, size_t stride, unsigned q,
                          unsigned bits)
{
    const dw_ans_table *table = &dw_ans_tables()[dw_ans_table_of(q)];
    unsigned k = dw_ans_bucket_bits(q);
    uint64_t cost = 0;
    for (size_t i = 0; i < n; i += stride) {
        uint64_t bucket = moves[i] >> 1 >> k;
        cost += bucket < DW_ANS_FAR ? table->cost[bucket] + 256 * k
                                    : table->cost[DW_ANS_FAR] + 256 * bits;
    }
    return cost;
}

/* A geometric fit by the mean, then again without what that fit would escape, then the
 * cheapest of its neighbours on a sample. */
static unsigned fit_moves(const uint64_t *moves, size_t n, unsigned bits)
{
    uint64_t limit = ~0ull;
    unsigned q = 0;
    for (int round = 0; round < 3; round++) {
        double sum = 0;
        size_t n_near = 0;
        for (size_t i = 0; i < n; i++) {
            if (moves[i] >> 1 < limit) {
                sum += (double)(moves[i] >> 1);
                n_near++;
            }
        }
        q = n_near ? dw_ans_fit((uint32_t)(4294967295.0 * (sum / (sum + (double)n_near))))
                   : DW_ANS_MAX_Q;
        limit = (uint64_t)DW_ANS_FAR << dw_ans_bucket_bits(q);
    }
    size_t stride = n / 256 + 1;
    unsigned best = q;
    uint64_t best_cost = ~0ull;
    for (unsigned try = q > 4 ? q - 4 : 0; try <= q + 4 && try <= DW_ANS_MAX_Q; try++) {
        uint64_t cost = move_cost(moves, n, stride, try, bits);
        if (cost < best_cost) {
            best = try;
            best_cost = cost;
        }
    }
    return best;
}

static model fit_model(const uint64_t *moves, size_t n_changes, uint32_t total,
                       unsigned bits)
{
    model m = {.changes = n_changes > 0};
    if (!m.changes)
        return m;
    m.gap_q = dw_ans_fit((uint32_t)(((uint64_t)(total - n_changes) << 32) / total));
    for (size_t i = 0; i < n_changes && !m.far_moves; i++)
        m.far_moves = moves[i] > 1;
    if (m.far_moves)
        m.move_q = fit_moves(moves, n_changes, bits);
    return m;
}

/* ---- encoding ---- */

/* Symbols of one distribution, to be coded in turn. */
typedef struct run {
    const dw_ans_table *table;
    const uint8_t *end;
} run;

static uint8_t *emit_gaps(uint8_t *symbol, dw_bit_writer *w, const uint32_t *gaps,
                          size_t n, uint32_t total, unsigned q)
{
    const unsigned k = dw_ans_bucket_bits(q);
    const uint32_t inside = (1u << k) - 1;
    uint32_t left = total;
    for (size_t i = 0; i < n; i++) {
        uint32_t gap = gaps[i], bucket = gap >> k;
        for (; bucket >= DW_ANS_FAR; bucket -= DW_ANS_FAR)
            *symbol++ = DW_ANS_FAR;
        *symbol++ = (uint8_t)bucket;
        dw_put_bits(w, gap & inside, k);
        left -= gap + 1;
    }
    if (left == 0)
        return symbol;
    /* any bucket past the end ends the class: take the cheaper of the first and FAR */
    uint32_t bucket = (uint32_t)(((uint64_t)left + inside) >> k);
    for (; bucket > DW_ANS_FAR; bucket -= DW_ANS_FAR)
        *symbol++ = DW_ANS_FAR;
    const uint16_t *cost = dw_ans_tables()[dw_ans_table_of(q)].cost;
    *symbol++ = (uint8_t)(cost[DW_ANS_FAR] < cost[bucket] ? DW_ANS_FAR : bucket);
    return symbol;
}

static uint8_t *emit_moves(uint8_t *symbol, dw_bit_writer *w, const uint64_t *moves,
                           size_t n, unsigned q, unsigned bits)
{
    const unsigned k = dw_ans_bucket_bits(q);
    const uint64_t inside = (2ull << k) - 1; /* the sign comes first */
    for (size_t i = 0; i < n; i++) {
        uint64_t bucket = moves[i] >> 1 >> k;
        if (bucket < DW_ANS_FAR) {
            *symbol++ = (uint8_t)bucket;
            dw_put_bits(w, moves[i] & inside, k + 1);
        } else {
            *symbol++ = DW_ANS_FAR;
            dw_put_wide(w, moves[i], bits);
        }
    }
    return symbol;
}

/* Sorts gaps and moves by class; FIRST takes where each class begins. */
static void sort_changes(dw_class_scratch *s, size_t n_changes,
                         uint32_t first[DW_CLASSES + 1], const void *old,
                         const void *new_, dw_element element)
{
    const unsigned bits = 8 * element.width;
    uint32_t next[DW_CLASSES + 1] = {0};
    for (size_t i = 0; i < n_changes; i++)
        next[DW_WHERE_CLASS(s->changes[i].where) + 1]++;
    for (unsigned c = 0; c < DW_CLASSES; c++)
        next[c + 1] += next[c];
    memcpy(first, next, sizeof next);
    for (size_t i = 0; i < n_changes; i++) {
        uint32_t where = s->changes[i].where, position = DW_WHERE_POSITION(where);
        uint32_t to = next[DW_WHERE_CLASS(where)]++;
        s->gaps[to] = s->changes[i].gap;
        s->moves[to] = dw_move_between(dw_element_load(old, position, element.width),
                                       dw_element_load(new_, position, element.width),
                                       bits, element.is_float);
    }
}

/* Codes the runs of symbols back to front, as rANS must; returns the bytes' start. */
static uint8_t *encode_runs(dw_class_scratch *s, const run *runs, size_t n_runs)
{
    dw_ans_writer w = dw_ans_writer_at(s->ans + sizeof s->ans);
    for (size_t i = n_runs; i-- > 0;) {
        const uint8_t *begin = i > 0 ? runs[i - 1].end : s->symbols;
        for (const uint8_t *at = runs[i].end; at-- > begin;)
            dw_ans_put(&w, &runs[i].table->symbol[*at]);
    }
    return dw_ans_finish(&w);
}

dw_encoded dw_class_encode(dw_class_scratch *s, const void *old, const void *new_,
                           uint32_t n, dw_element element, const dw_class_map *map)
{
    const unsigned bits = 8 * element.width;
    uint32_t totals[DW_CLASSES], first[DW_CLASSES + 1];
    size_t n_changes = dw_kernels_get()->class_diff[dw_width_index(element.width)](
        s->changes, totals, old, new_, n, map);
    if (n_changes == 0)
        return (dw_encoded){0};
    sort_changes(s, n_changes, first, old, new_, element);

    model models[DW_CLASSES];
    for (unsigned c = 0; c < DW_CLASSES; c++)
        models[c] = fit_model(s->moves + first[c], first[c + 1] - first[c], totals[c], bits);

    dw_bit_writer w = {.at = s->bits};
    put_models(&w, models, totals);
    run runs[2 * DW_CLASSES];
    size_t n_runs = 0;
    uint8_t *symbol = s->symbols;
    for (unsigned c = 0; c < DW_CLASSES; c++) {
        const model *m = &models[c];
        const size_t n_c = first[c + 1] - first[c];
        const uint64_t *moves = s->moves + first[c];
        if (!m->changes)
            continue;
        symbol = emit_gaps(symbol, &w, s->gaps + first[c], n_c, totals[c], m->gap_q);
        runs[n_runs++] = (run){&dw_ans_tables()[dw_ans_table_of(m->gap_q)], symbol};
        if (m->far_moves) {
            symbol = emit_moves(symbol, &w, moves, n_c, m->move_q, bits);
            runs[n_runs++] = (run){&dw_ans_tables()[dw_ans_table_of(m->move_q)], symbol};
        } else {
            for (size_t i = 0; i < n_c; i++)
                dw_put_bits(&w, moves[i], 1);
        }
    }
    size_t n_bits = (size_t)(dw_finish_bits(&w) - s->bits);
    const uint8_t *ans = encode_runs(s, runs, n_runs);
    size_t n_ans = (size_t)(s->ans + sizeof s->ans - ans);

    uint8_t *at = dw_put_varint(s->out, n_ans);
    memcpy(at, ans, n_ans);
    memcpy(at + n_ans, s->bits, n_bits);
    return (dw_encoded){s->out, (size_t)(at - s->out) + n_ans + n_bits, s->changes,
                        n_changes};
}

/* ---- decoding ---- */

/* Reads the gaps of a class with TOTAL elements into GAPS; their number, or SIZE_MAX
 * where they do not fit it. */
static size_t read_gaps(uint32_t *gaps, dw_ans_reader *ans, dw_bit_reader *r,
                        uint32_t total, unsigned q)
{
    const dw_ans_table *table = &dw_ans_tables()[dw_ans_table_of(q)];
    const unsigned k = dw_ans_bucket_bits(q);
    const uint64_t far = (uint64_t)DW_ANS_FAR << k;
    size_t n = 0;
    uint64_t left = total;
    while (left > 0 && !ans->failed) {
        uint64_t gap = 0;
        unsigned s = dw_ans_get(ans, table);
        for (; s == DW_ANS_FAR; s = dw_ans_get(ans, table)) {
            gap += far;
            if (gap >= left || ans->failed)
                return n;
        }
        gap += (uint64_t)s << k;
        if (gap >= left)
            break;
        gap += dw_get_bits(r, k);
        if (gap >= left)
            return SIZE_MAX;
        gaps[n++] = (uint32_t)gap;
        left -= gap + 1;
    }
    return n;
}

/* Reads N moves; false where one is larger than the element can make. */
static bool read_moves(uint64_t *moves, size_t n, dw_ans_reader *ans, dw_bit_reader *r,
                       unsigned q, unsigned bits)
{
    const dw_ans_table *table = &dw_ans_tables()[dw_ans_table_of(q)];
    const unsigned k = dw_ans_bucket_bits(q);
    const uint64_t most = ~0ull >> (64 - bits);
    uint64_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t s = dw_ans_get(ans, table);
        moves[i] = s == DW_ANS_FAR ? dw_get_wide(r, bits)
                                   : (s << k << 1) + dw_get_bits(r, k + 1);
        largest |= moves[i];
    }
    return largest <= most;
}

bool dw_class_decode(dw_decoded *out, dw_class_scratch *s, const uint8_t *bytes,
                     size_t n_bytes, const void *old, uint32_t n, dw_element element,
                     const dw_class_map *map)
{
    const dw_kernels *kernels = dw_kernels_get();
    const unsigned width = element.width, bits = 8 * width, w = dw_width_index(width);
    dw_reader block = dw_reader_of(bytes, n_bytes);
    uint64_t n_ans = dw_read_varint(&block);
    const uint8_t *ans_bytes = dw_read_bytes(&block, n_ans);
    if (!ans_bytes)
        return false;
    dw_ans_reader ans = dw_ans_reader_of(ans_bytes, (size_t)n_ans);
    dw_bit_reader r = {block.at, dw_reader_left(&block), 0};

    uint32_t totals[DW_CLASSES], first[DW_CLASSES + 1] = {0};
    model models[DW_CLASSES];
    kernels->class_count[w](totals, old, n, map);
    if (!get_models(&r, models, totals))
        return false;
    for (unsigned c = 0; c < DW_CLASSES; c++) {
        size_t n_c = 0;
        uint64_t *moves = s->moves + first[c];
        if (models[c].changes) {
            n_c = read_gaps(s->gaps + first[c], &ans, &r, totals[c], models[c].gap_q);
            if (n_c == SIZE_MAX)
                return false;
            if (models[c].far_moves) {
                if (!read_moves(moves, n_c, &ans, &r, models[c].move_q, bits))
                    return false;
            } else {
                for (size_t i = 0; i < n_c; i++)
                    moves[i] = dw_get_bits(&r, 1);
            }
        }
        first[c + 1] = first[c] + (uint32_t)n_c;
    }
    if (!dw_ans_spent(&ans) || !dw_bits_spent(&r))
        return false;

    size_t n_changes = kernels->class_locate[w](s->where, old, n, map, s->gaps, first);
    for (size_t i = 0; i < n_changes; i++) {
        uint32_t position = DW_WHERE_POSITION(s->where[i]);
        uint64_t move = s->moves[first[DW_WHERE_CLASS(s->where[i])]++];
        uint64_t x = dw_element_load(old, position, width);
        dw_element_store(s->values, i, width,
                         dw_move_apply(x, move, bits, element.is_float));
        s->where[i] = position;
    }
    *out = (dw_decoded){s->where, s->values, n_changes};
    return true;
}
