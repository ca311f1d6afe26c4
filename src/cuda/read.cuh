/* Reads the code of blocks: ranks and moves by class. FORMAT.md, sections 6 and 7.
 *
 * A warp takes a block. All its lanes follow the same states, and together they are the
 * table: lane s holds the slots of symbol s, so a symbol is found by a ballot, and no
 * table is loaded. Only that is done one symbol after the other: 32 of them are read,
 * each is kept by one lane, and what they mean is found by all lanes at once. If a run
 * ends among them, they are read again up to there.
 */

/* 64 bits of BYTES from a bit on, at least 57 of them good. Up to 15 bytes past the end are
 * read, but not used: the callers check the end first. */
DW_DEVICE uint64_t bits_at(const uint8_t *bytes, uint64_t bit)
{
    const uintptr_t at = (uintptr_t)bytes + bit / 8;
    const uint64_t *words = (const uint64_t *)(at & ~(uintptr_t)7);
    const unsigned shift = (unsigned)(at & 7) * 8;
    const uint64_t v = shift ? words[0] >> shift | words[1] << (64 - shift) : words[0];
    return v >> (bit & 7);
}

DW_DEVICE uint64_t wide_bits_at(const uint8_t *bytes, uint64_t bit, unsigned n)
{
    if (n <= 32)
        return bits_at(bytes, bit) & ((1ull << n) - 1);
    return (bits_at(bytes, bit) & 0xffffffffu) |
           (bits_at(bytes, bit + 32) & ((1ull << (n - 32)) - 1)) << 32;
}

typedef struct ans_state {
    uint32_t first, second; /* of the next symbol, and of the one after it */
    const uint8_t *bytes;   /* words of 16 bits */
    uint32_t n_words;
    uint32_t n_used;
    uint32_t words; /* number n_used + lane, and the one after it */
    uint32_t end, slots; /* of symbol number lane: the end, and start | size << 16 */
} ans_state;

/* Loads the words that the next 32 symbols may take. */
DW_DEVICE void load_words(ans_state *r)
{
    const uint32_t at = min32(r->n_used, r->n_words) + lane_of();
    r->words = (uint32_t)bits_at(r->bytes, 16 * (uint64_t)at);
}

DW_DEVICE void use_table(ans_state *r, const dw_cuda_constants *constants, unsigned q)
{
    const dw_ans_symbol *s = &constants->symbols[dw_ans_table_of(q)][lane_of()];
    r->end = (uint32_t)s->start + s->size;
    r->slots = s->start | (uint32_t)s->size << 16;
}

/* Reads a symbol. WORD is the next one; IS_LOW says if it was taken. */
DW_DEVICE uint32_t read_symbol(uint32_t *state, const ans_state *r, uint32_t word,
                               bool *is_low)
{
    const uint32_t slot = *state & (DW_ANS_TOTAL - 1);
    const uint32_t s = (uint32_t)__popc(__ballot_sync(LANES, slot >= r->end));
    const uint32_t slots = __shfl_sync(LANES, r->slots, s);
    const uint32_t x =
        (slots >> 16) * (*state >> DW_ANS_BITS) + slot - (slots & 0xffff);
    *is_low = x < DW_ANS_LOW;
    *state = *is_low ? x << 16 | word : x;
    return s;
}

/* Reads N symbols, at most 32. Lane i gets number i. */
DW_DEVICE uint32_t read_symbols(ans_state *r, uint32_t n)
{
    uint32_t first = r->first, second = r->second, n_used = 0, own = 0, i = 0;
    bool is_low;
    DW_UNROLL_BY(4)
    for (; i + 1 < n; i += 2) {
        const uint32_t words = __shfl_sync(LANES, r->words, n_used);
        bool is_low_too;
        const uint32_t s = read_symbol(&first, r, words & 0xffff, &is_low);
        const uint32_t t = read_symbol(
            &second, r, is_low ? words >> 16 : words & 0xffff, &is_low_too);
        own = lane_of() == i ? s : lane_of() == i + 1 ? t : own;
        n_used += is_low + is_low_too;
    }
    r->first = first;
    r->second = second;
    if (i < n) {
        const uint32_t word = __shfl_sync(LANES, r->words, n_used) & 0xffff;
        const uint32_t s = read_symbol(&first, r, word, &is_low);
        own = lane_of() == i ? s : own;
        n_used += is_low;
        r->first = second;
        r->second = first;
    }
    r->n_used += n_used;
    load_words(r);
    return own;
}

#define READ_CORRUPT 0xffffffffu
#define READ_CROWDED 0xfffffffeu
#define READ_LARGE   (2 * DW_BLOCK_ELEMS) /* more than a class has */

/* Reads the gaps of a class with TOTAL elements as ranks. Returns their number, at most
 * N_MOST, or READ_CROWDED or READ_CORRUPT. */
DW_DEVICE uint32_t read_ranks(uint32_t *ranks, uint32_t n_most, ans_state *ans,
                              const uint8_t *plain, uint64_t *bit, uint64_t end,
                              uint32_t total, unsigned k)
{
    const uint32_t before = (1u << lane_of()) - 1;
    uint32_t n = 0, passed = 0; /* elements of the class */
    while (passed < total) {
        const ans_state kept = *ans;
        const uint32_t s = read_symbols(ans, WARP);
        const bool is_far = s == DW_ANS_FAR;
        const uint32_t near_ = __ballot_sync(LANES, !is_far);
        const uint32_t index = (uint32_t)__popc(near_ & before);
        const uint64_t at = *bit + (uint64_t)index * k;
        const bool fits = at + k <= end;
        const uint32_t plain_bits =
            is_far || !fits ? 0 : (uint32_t)bits_at(plain, at) & ((1u << k) - 1);
        /* limited, so that sums do not pass 2^32 */
        const uint32_t bucket = min32(s << k, READ_LARGE);
        const uint32_t gap = min32(bucket + plain_bits, READ_LARGE);
        const uint32_t own = gap + !is_far, up_to = passed + scan32(own);
        const uint32_t rank = up_to - own + gap;
        /* the first lane of these ends the class */
        const bool is_past = up_to - own + bucket >= total; /* after the last change */
        const bool is_bad = !is_past && !is_far && (!fits || rank >= total);
        const bool is_last = !is_past && !is_far && rank + 1 == total;
        const uint32_t ends = __ballot_sync(LANES, is_past || is_bad || is_last);
        const uint32_t past = __ballot_sync(LANES, is_past);
        const uint32_t bad = __ballot_sync(LANES, is_bad);
        const uint32_t last = ends ? (uint32_t)__ffs((int)ends) - 1 : WARP - 1;
        const uint32_t taken = near_ & ((2u << last) - 1) & ~(past & 1u << last);
        const uint32_t n_taken = (uint32_t)__popc(taken);
        if (ends && bad >> last & 1)
            return READ_CORRUPT;
        if (n_taken > n_most - n)
            return READ_CROWDED;
        if (taken >> lane_of() & 1)
            ranks[n + index] = rank;
        n += n_taken;
        *bit += (uint64_t)n_taken * k;
        passed = ends ? total : __shfl_sync(LANES, up_to, WARP - 1);
        if (last < WARP - 1) {
            *ans = kept;
            read_symbols(ans, last + 1);
        }
        if (ans->n_used > ans->n_words)
            return READ_CORRUPT;
    }
    return n;
}

/* Reads N moves; false if one is larger than the element allows. */
DW_DEVICE bool read_moves(uint8_t *moves, uint64_t first, uint32_t n, uint32_t move_bytes,
                          ans_state *ans, const uint8_t *plain, uint64_t *bit,
                          uint64_t end, unsigned k, unsigned bits)
{
    bool fits = true;
    for (uint32_t at = 0; at < n; at += WARP) {
        const uint32_t n_now = min32(WARP, n - at);
        const uint32_t symbol = read_symbols(ans, n_now);
        const bool is_there = lane_of() < n_now;
        const uint32_t own = !is_there              ? 0
                             : symbol == DW_ANS_FAR ? bits
                                                    : k + 1;
        const uint32_t sum = scan32(own), all = __shfl_sync(LANES, sum, WARP - 1);
        if (*bit + all > end || ans->n_used > ans->n_words)
            return false;
        if (is_there) {
            uint64_t move = wide_bits_at(plain, *bit + sum - own, own);
            if (symbol != DW_ANS_FAR)
                move += (uint64_t)symbol << k << 1;
            fits = fits && move <= ~0ull >> (64 - bits);
            store_elem(moves, first + at + lane_of(), move_bytes, move);
        }
        *bit += all;
    }
    return __ballot_sync(LANES, !fits) == 0;
}

DW_DEVICE bool read_signs(uint8_t *moves, uint64_t first, uint32_t n, uint32_t move_bytes,
                          const uint8_t *plain, uint64_t *bit, uint64_t end)
{
    if (*bit + n > end)
        return false;
    for (uint32_t i = lane_of(); i < n; i += WARP)
        store_elem(moves, first + i, move_bytes, bits_at(plain, *bit + i) & 1);
    *bit += n;
    return true;
}

typedef struct read_memory {
    dw_class_model models[DW_CLASSES];
    uint32_t totals[DW_CLASSES];
    dw_bit_reader plain;
    uint32_t is_valid;
} read_memory;

/* Reads the front of a block: ANS takes the state, S the models. By one thread. */
DW_DEVICE void read_front(read_memory *s, const uint8_t **ans, uint32_t *n_ans,
                          const uint8_t *bytes, uint32_t n_bytes)
{
    uint32_t n = 0, n_length = 0;
    uint8_t byte = 0x80;
    while (n_length < n_bytes && n_length < 4 && byte & 0x80) {
        byte = bytes[n_length];
        n |= (uint32_t)(byte & 0x7f) << 7 * n_length;
        n_length++;
    }
    /* the shortest spelling only; 4 bytes are enough for a block */
    s->is_valid = !(byte & 0x80) && (n_length == 1 || byte != 0) && n >= 8 &&
                  n <= n_bytes - n_length;
    *ans = bytes + n_length;
    *n_ans = s->is_valid ? n : 0;
    s->plain.bytes = bytes + n_length + *n_ans;
    s->plain.n_bytes = s->is_valid ? n_bytes - n_length - n : 0;
    s->plain.bit = 0;
    if (s->is_valid)
        s->is_valid = dw_class_models_get(&s->plain, s->models, s->totals);
}

/* Sums up the classes of the block's strips. */
DW_DEVICE void sum_totals(read_memory *s, const dw_cuda_decode_job *job,
                          const dw_cuda_coded_block *b)
{
    const uint32_t strip_elems = DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(b->width);
    const uint32_t n_strips = (b->n + strip_elems - 1) / strip_elems;
    const uint32_t c = lane_of() % DW_CLASSES;
    const uint16_t *totals = job->totals + (uint64_t)b->first_strip * DW_CLASSES + c;
    uint32_t total = 0;
    DW_UNROLL_BY(8)
    for (uint32_t i = lane_of() / DW_CLASSES; i < n_strips; i += WARP / DW_CLASSES)
        total += totals[i * DW_CLASSES];
    total += __shfl_xor_sync(LANES, total, DW_CLASSES);
    if (lane_of() < DW_CLASSES)
        s->totals[c] = total;
    __syncwarp();
}

DW_KERNEL(dw_cuda_read, 32, dw_cuda_decode_job)
{
    DW_BLOCK_MEMORY(read_memory, s);
    const uint32_t block = job.order[blockIdx.x];
    const dw_cuda_coded_block *b = &job.blocks[block];
    dw_cuda_decoded *out = &job.decoded[block];
    if (b->news)
        return;
    sum_totals(s, &job, b);
    const uint8_t *code = job.input + b->bytes, *ans_bytes = code;
    uint32_t n_ans = 0;
    if (lane_of() == 0)
        read_front(s, &ans_bytes, &n_ans, code, b->n_bytes);
    __syncwarp();
    n_ans = __shfl_sync(LANES, n_ans, 0);
    ans_bytes = code + __shfl_sync(LANES, (uint32_t)(ans_bytes - code), 0);
    bool is_valid = s->is_valid && n_ans % 2 == 0, is_crowded = false;
    const unsigned bits = 8u * b->width;
    const uint8_t *plain = s->plain.bytes;
    uint64_t bit = s->plain.bit;
    const uint64_t end = 8 * (uint64_t)s->plain.n_bytes;
    ans_state ans;
    ans.n_used = ans.n_words = ans.words = ans.end = ans.slots = 0;
    ans.first = ans.second = DW_ANS_LOW;
    ans.bytes = ans_bytes + 8;
    if (is_valid) {
        ans.first = (uint32_t)bits_at(ans_bytes, 0);
        ans.second = (uint32_t)bits_at(ans_bytes, 32);
        is_valid = ans.first >= DW_ANS_LOW && ans.second >= DW_ANS_LOW;
        ans.n_words = (n_ans - 8) / 2;
        load_words(&ans);
    }
    uint32_t n = 0;
    for (uint32_t c = 0; c < DW_CLASSES; c++) {
        if (lane_of() == 0)
            out->first[c] = n;
        if (!is_valid || is_crowded || !s->models[c].changes)
            continue;
        const dw_class_model *m = &s->models[c];
        const uint64_t first = b->first + n;
        use_table(&ans, job.constants, m->gap_q);
        const uint32_t n_c =
            read_ranks(job.sorted_ranks + first, b->n_most - n, &ans, plain, &bit, end,
                       s->totals[c], dw_ans_bucket_bits(m->gap_q));
        is_crowded = n_c == READ_CROWDED;
        is_valid = n_c != READ_CORRUPT;
        if (is_crowded || !is_valid)
            continue;
        if (m->far_moves) {
            use_table(&ans, job.constants, m->move_q);
            is_valid =
                read_moves(job.sorted_moves, first, n_c, job.changes.value_bytes, &ans,
                           plain, &bit, end, dw_ans_bucket_bits(m->move_q), bits);
        } else {
            is_valid = read_signs(job.sorted_moves, first, n_c, job.changes.value_bytes,
                                  plain, &bit, end);
        }
        n += n_c;
    }
    if (lane_of() != 0)
        return;
    if (is_crowded && b->is_guess) {
        out->state = DW_CUDA_CROWDED;
        return;
    }
    dw_bit_reader rest = s->plain; /* other lanes may still read that one */
    rest.bit = bit;
    is_valid = is_valid && !is_crowded && ans.n_used == ans.n_words &&
               ans.first == DW_ANS_LOW && ans.second == DW_ANS_LOW &&
               dw_bits_spent(&rest);
    const uint64_t first =
        is_valid ? add64(&job.changes.counters[DW_CUDA_CHANGES], n) : 0;
    is_valid = is_valid && first + n <= job.changes.n_most;
    out->first[DW_CLASSES] = n;
    out->staged = first;
    out->n_changes = is_valid ? n : 0;
    out->state = is_valid ? DW_CUDA_STAGED : DW_CUDA_CORRUPT;
}
