#include <string.h>

#include "codec/class_model.h"
#include "codec/class_scratch.h"
#include "codec/element.h"

/* Reads the gaps of a class with TOTAL elements into GAPS. Returns their number, or
 * SIZE_MAX if they do not fit. */
static size_t read_gaps(uint32_t *gaps, dw_ans_reader *symbols, dw_bit_reader *bits,
                        uint32_t total, unsigned q)
{
    const dw_ans_table *table = &dw_ans_tables()[dw_ans_table_of(q)];
    const unsigned k = dw_ans_bucket_bits(q);
    dw_ans_reader ans = *symbols; /* in registers */
    dw_bit_reader r = *bits;
    size_t n = 0;
    uint64_t left = total, gap = 0;
    while (left > 0 && !ans.failed) {
        unsigned s = dw_ans_get(&ans, table);
        gap += (uint64_t)s << k;
        if (gap >= left)
            break;
        if (s == DW_ANS_FAR)
            continue;
        gap += dw_get_bits(&r, k);
        if (gap >= left)
            return SIZE_MAX;
        gaps[n++] = (uint32_t)gap;
        left -= gap + 1;
        gap = 0;
    }
    *symbols = ans;
    *bits = r;
    return n;
}

/* Reads N moves; false if one is larger than the element allows. */
static bool read_moves(uint64_t *moves, size_t n, dw_ans_reader *symbols,
                       dw_bit_reader *plain, unsigned q, unsigned bits)
{
    const dw_ans_table *table = &dw_ans_tables()[dw_ans_table_of(q)];
    const unsigned k = dw_ans_bucket_bits(q);
    const uint64_t most = ~0ull >> (64 - bits);
    dw_ans_reader ans = *symbols; /* in registers */
    dw_bit_reader r = *plain;
    uint64_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t s = dw_ans_get(&ans, table);
        moves[i] = s == DW_ANS_FAR ? dw_get_wide(&r, bits)
                                   : (s << k << 1) + dw_get_bits(&r, k + 1);
        largest |= moves[i];
    }
    *symbols = ans;
    *plain = r;
    return largest <= most;
}

static void read_signs(uint64_t *moves, size_t n, dw_bit_reader *r)
{
    for (size_t i = 0; i < n; i += 32) {
        unsigned n_now = n - i < 32 ? (unsigned)(n - i) : 32;
        uint64_t bits = dw_get_bits(r, n_now);
        for (unsigned k = 0; k < n_now; k++)
            moves[i + k] = bits >> k & 1;
    }
}

/* Makes the new elements: the class of each position selects its next move. Positions are
 * relative to FIRST, and made relative to the block. Inlined, so that the width is a
 * constant in the loop. */
static inline __attribute__((always_inline)) void
apply_moves(void *values, uint32_t *positions, size_t n, uint32_t first,
            const uint64_t *moves, uint32_t next[DW_CLASSES], const void *old,
            const dw_class_map *map, unsigned width, bool is_float, dw_note *note)
{
    dw_digest_moves digest = note->digest;
    for (size_t i = 0; i < n; i++) {
        const uint32_t at = positions[i] += first;
        uint64_t x = dw_element_load(old, at, width);
        uint64_t move = moves[next[dw_class_of(x, map)]++];
        uint64_t y = dw_move_apply(x, move, 8 * width, is_float);
        dw_element_store(values, i, width, y);
        dw_digest_move(&digest, note->first_byte + (uint64_t)at * width, x, y, width);
    }
    note->digest = digest;
}

/* Finds the changed elements and their new values; returns their number. */
static size_t place_changes(dw_class_scratch *s, const dw_class_gaps *gaps,
                            const void *old, uint32_t n, dw_element element,
                            const dw_class_map *map, dw_note *note)
{
    const dw_kernels *kernels = dw_kernels_get();
    const unsigned width = element.width;
    uint32_t next_move[DW_CLASSES];
    dw_locate_state state;
    dw_locate_begin(&state, gaps);
    memcpy(next_move, gaps->first, sizeof next_move);
    size_t n_found = 0;
    for (uint32_t first = 0; first < n; first += DW_LOCATE_ELEMS) {
        uint32_t n_now = n - first < DW_LOCATE_ELEMS ? n - first : DW_LOCATE_ELEMS;
        kernels->class_locate[dw_width_index(width)](
            s->found, &state, (const uint8_t *)old + (size_t)first * width, n_now, map,
            gaps);
        uint32_t *positions = s->positions + n_found;
        uint8_t *values = (uint8_t *)s->values + n_found * width;
        size_t n_changes = kernels->list_bits(positions, s->found, (n_now + 63) / 64);
        if (width == 2 && element.is_float)
            apply_moves(values, positions, n_changes, first, s->moves, next_move, old,
                        map, 2, true, note);
        else
            apply_moves(values, positions, n_changes, first, s->moves, next_move, old,
                        map, width, element.is_float, note);
        n_found += n_changes;
    }
    return n_found;
}

dw_decoded dw_class_found(dw_class_scratch *s, const void *old, uint32_t n,
                          dw_element element, const dw_class_map *map)
{
    dw_class_gaps gaps = {.gaps = s->gaps};
    dw_note unused = dw_note_at(0);
    memcpy(gaps.first, s->first, sizeof gaps.first);
    size_t n_changes = place_changes(s, &gaps, old, n, element, map, &unused);
    return (dw_decoded){s->positions, s->values, n_changes};
}

bool dw_class_decode(dw_decoded *out, dw_class_scratch *s, const uint8_t *bytes,
                     size_t n_bytes, const void *old, uint32_t n, dw_element element,
                     const dw_class_map *map, dw_note *note)
{
    const dw_kernels *kernels = dw_kernels_get();
    const unsigned bits = 8 * element.width;
    dw_reader block = dw_reader_of(bytes, n_bytes);
    uint64_t n_ans = dw_read_varint(&block);
    const uint8_t *ans_bytes = dw_read_bytes(&block, n_ans);
    if (!ans_bytes)
        return false;
    dw_ans_reader ans = dw_ans_reader_of(ans_bytes, (size_t)n_ans);
    dw_bit_reader r = {block.at, dw_reader_left(&block), 0};

    uint32_t totals[DW_CLASSES];
    dw_class_model models[DW_CLASSES];
    kernels->class_count[dw_width_index(element.width)](totals, old, n, map);
    if (!dw_class_models_get(&r, models, totals))
        return false;
    dw_class_gaps gaps = {.gaps = s->gaps};
    for (unsigned c = 0; c < DW_CLASSES; c++) {
        const uint32_t first = gaps.first[c];
        size_t n_c = 0;
        if (models[c].changes) {
            n_c = read_gaps(s->gaps + first, &ans, &r, totals[c], models[c].gap_q);
            if (n_c == SIZE_MAX)
                return false;
            if (!models[c].far_moves)
                read_signs(s->moves + first, n_c, &r);
            else if (!read_moves(s->moves + first, n_c, &ans, &r, models[c].move_q, bits))
                return false;
        }
        gaps.first[c + 1] = first + (uint32_t)n_c;
    }
    if (!dw_ans_spent(&ans) || !dw_bits_spent(&r))
        return false;
    size_t n_changes = place_changes(s, &gaps, old, n, element, map, note);
    *out = (dw_decoded){s->positions, s->values, n_changes};
    return true;
}
