#include <string.h>

#include "codec/class_model.h"
#include "codec/class_scratch.h"
#include "codec/element.h"

/* Symbols of one distribution, to be coded in turn. */
typedef struct run {
    const dw_ans_table *table;
    const uint8_t *end;
} run;

static uint8_t *emit_gaps(uint8_t *symbol, dw_bit_writer *writer, const uint32_t *gaps,
                          size_t n, uint32_t total, unsigned q)
{
    const unsigned k = dw_ans_bucket_bits(q);
    const uint32_t inside = (1u << k) - 1;
    dw_bit_writer w = *writer; /* in registers */
    uint32_t left = total;
    for (size_t i = 0; i < n; i++) {
        uint32_t gap = gaps[i], bucket = gap >> k;
        for (; bucket >= DW_ANS_FAR; bucket -= DW_ANS_FAR)
            *symbol++ = DW_ANS_FAR;
        *symbol++ = (uint8_t)bucket;
        dw_put_bits(&w, gap & inside, k);
        left -= gap + 1;
    }
    *writer = w;
    if (left == 0)
        return symbol;
    /* any bucket past the end ends the class: use the cheaper of the first one and FAR */
    uint32_t bucket = (uint32_t)(((uint64_t)left + inside) >> k);
    for (; bucket > DW_ANS_FAR; bucket -= DW_ANS_FAR)
        *symbol++ = DW_ANS_FAR;
    const uint16_t *cost = dw_ans_tables()[dw_ans_table_of(q)].cost;
    *symbol++ = (uint8_t)(cost[DW_ANS_FAR] < cost[bucket] ? DW_ANS_FAR : bucket);
    return symbol;
}

/* Writes the signs of moves that are all by one step. */
static void emit_signs(dw_bit_writer *writer, const uint64_t *moves, size_t n)
{
    dw_bit_writer w = *writer; /* in registers */
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint64_t bits = 0;
        for (unsigned k = 0; k < 32; k++)
            bits |= moves[i + k] << k;
        dw_put_bits(&w, bits, 32);
    }
    for (; i < n; i++)
        dw_put_bits(&w, moves[i], 1);
    *writer = w;
}

static uint8_t *emit_moves(uint8_t *symbol, dw_bit_writer *writer, const uint64_t *moves,
                           size_t n, unsigned q, unsigned bits)
{
    const unsigned k = dw_ans_bucket_bits(q);
    const uint64_t inside = (2ull << k) - 1; /* the sign comes first */
    dw_bit_writer w = *writer;               /* in registers */
    for (size_t i = 0; i < n; i++) {
        uint64_t bucket = moves[i] >> 1 >> k;
        if (bucket < DW_ANS_FAR) {
            *symbol++ = (uint8_t)bucket;
            dw_put_bits(&w, moves[i] & inside, k + 1);
        } else {
            *symbol++ = DW_ANS_FAR;
            dw_put_wide(&w, moves[i], bits);
        }
    }
    *writer = w;
    return symbol;
}

/* The changes of a strip. */
typedef struct strip {
    const dw_change *changes;
    size_t n_changes;
    uint8_t *old;
    uint64_t first_byte; /* in the tensor */
} strip;

/* Lists gaps and moves of a strip, and notes its changes. Inlined, so that the width is a
 * constant in the loop. */
static inline __attribute__((always_inline)) void
list_changes(uint32_t *class_gaps, uint64_t *moves, uint32_t counts[DW_CLASSES],
             const strip *t, unsigned width, bool is_float, dw_note *note)
{
    dw_digest_moves digest = note->digest;
    const bool update = note->update_old;
    for (size_t i = 0; i < t->n_changes; i++) {
        const dw_change *c = &t->changes[i];
        class_gaps[i] = c->class_gap;
        counts[dw_gap_class(c->class_gap)]++;
        moves[i] = dw_move_between(c->old, c->new_, 8 * width, is_float);
        dw_digest_move(&digest, t->first_byte + (uint64_t)c->position * width, c->old,
                       c->new_, width);
        if (update)
            dw_element_store(t->old, c->position, width, c->new_);
    }
    note->digest = digest;
}

/* Finds all changes of the block and their moves. TOTALS takes the size of each class,
 * COUNTS how many of its elements changed. */
static size_t find_changes(dw_class_scratch *s, uint32_t totals[DW_CLASSES],
                           uint32_t counts[DW_CLASSES], uint8_t *old, const uint8_t *new_,
                           uint32_t n, dw_element element, const dw_class_map *map,
                           dw_note *note)
{
    const unsigned width = element.width;
    const dw_kernels *kernels = dw_kernels_get();
    dw_class_state state = {0};
    size_t n_found = 0;
    memset(counts, 0, DW_CLASSES * sizeof *counts);
    for (uint32_t first = 0; first < n; first += DW_STRIP_ELEMS) {
        uint32_t n_strip = n - first < DW_STRIP_ELEMS ? n - first : DW_STRIP_ELEMS;
        strip t = {.changes = s->changes,
                   .old = old + (size_t)first * width,
                   .first_byte = note->first_byte + (uint64_t)first * width};
        const void *next = new_ + (size_t)first * width;
        if (note->round_new) {
            kernels->round_bf16(s->rounded, new_ + (size_t)first * sizeof(float),
                                n_strip);
            next = s->rounded;
        }
        t.n_changes = kernels->class_diff[dw_width_index(width)](
            s->changes, &state, t.old, next, n_strip, map);
        uint32_t *class_gaps = s->class_gaps + n_found;
        uint64_t *moves = s->in_order + n_found;
        if (width == 2 && element.is_float)
            list_changes(class_gaps, moves, counts, &t, 2, true, note);
        else
            list_changes(class_gaps, moves, counts, &t, width, element.is_float, note);
        n_found += t.n_changes;
    }
    for (unsigned c = 0; c < DW_CLASSES; c++)
        totals[c] = (uint32_t)state.seen[c];
    return n_found;
}

/* Sorts gaps and moves by class. */
static void sort_changes(dw_class_scratch *s, size_t n_changes,
                         const uint32_t counts[DW_CLASSES])
{
    uint32_t next[DW_CLASSES], *first = s->first;
    first[0] = 0;
    for (unsigned c = 0; c < DW_CLASSES; c++)
        first[c + 1] = first[c] + counts[c];
    memcpy(next, first, sizeof next);
    for (size_t i = 0; i < n_changes; i++) {
        uint32_t to = next[dw_gap_class(s->class_gaps[i])]++;
        s->gaps[to] = dw_gap_size(s->class_gaps[i]);
        s->moves[to] = s->in_order[i];
    }
}

/* Codes the runs of symbols from the last to the first, as rANS requires. Returns the
 * start of the bytes. */
static uint8_t *encode_runs(dw_class_scratch *s, const run *runs, size_t n_runs)
{
    dw_ans_writer w = dw_ans_writer_at(s->out + DW_OUT_MIDDLE);
    for (size_t i = n_runs; i-- > 0;) {
        const uint8_t *begin = i > 0 ? runs[i - 1].end : s->symbols;
        for (const uint8_t *at = runs[i].end; at-- > begin;)
            dw_ans_put(&w, &runs[i].table->symbol[*at]);
    }
    return dw_ans_finish(&w);
}

dw_encoded dw_class_encode(dw_class_scratch *s, void *old, const void *new_, uint32_t n,
                           dw_element element, const dw_class_map *map, dw_note *note)
{
    const unsigned bits = 8 * element.width;
    uint32_t totals[DW_CLASSES], counts[DW_CLASSES];
    const uint32_t *first = s->first;
    size_t n_changes = find_changes(s, totals, counts, old, new_, n, element, map, note);
    if (n_changes == 0)
        return (dw_encoded){0};
    sort_changes(s, n_changes, counts);

    dw_class_model models[DW_CLASSES];
    for (unsigned c = 0; c < DW_CLASSES; c++)
        models[c] = dw_class_model_fit(s->moves + first[c], first[c + 1] - first[c],
                                       totals[c], bits);

    dw_bit_writer w = {.at = s->out + DW_OUT_MIDDLE};
    dw_class_models_put(&w, models, totals);
    run runs[2 * DW_CLASSES];
    size_t n_runs = 0;
    uint8_t *symbol = s->symbols;
    for (unsigned c = 0; c < DW_CLASSES; c++) {
        const dw_class_model *m = &models[c];
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
            emit_signs(&w, moves, n_c);
        }
    }
    const uint8_t *end = dw_finish_bits(&w);
    uint8_t *ans = encode_runs(s, runs, n_runs);
    uint8_t length[10];
    size_t n_length =
        (size_t)(dw_put_varint(length, (size_t)(s->out + DW_OUT_MIDDLE - ans)) - length);
    const uint8_t *block = memcpy(ans - n_length, length, n_length);
    return (dw_encoded){block, (size_t)(end - block), n_changes};
}
