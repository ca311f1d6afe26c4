/* Reads the code of blocks: ranks and moves by class. FORMAT.md, sections 6 and 7.
 *
 * `count` counts the classes of each strip. In `read` a warp takes a block. All its lanes
 * follow the same state, and together they are the table: lane s holds the slots of
 * symbol s, so a symbol is found by a ballot, and no table is loaded. Values that were
 * read are kept by one lane each, and stored by all.
 */

DW_DEVICE void count_strip(group_memory *s, const dw_cuda_coded_block *b, uint32_t strip)
{
    const uint32_t before = strip * DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(b->width);
    switch (b->width) {
    case 1:
        count_strip_1(s, b, before);
        break;
    case 2:
        count_strip_2(s, b, before);
        break;
    case 4:
        count_strip_4(s, b, before);
        break;
    default:
        count_strip_8(s, b, before);
    }
}

DW_KERNEL(dw_cuda_count, 256, dw_cuda_decode_job)
{
    DW_BLOCK_MEMORY(group_memory, s);
    const dw_cuda_coded_block *b = &job.blocks[job.block_of[blockIdx.x]];
    if (b->news)
        return;
    count_strip(s, b, blockIdx.x - b->first_strip);
    __syncthreads();
    sum_groups(s, job.strips[blockIdx.x].totals);
}

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
    const uint8_t *at;      /* after the word in `word` */
    const uint8_t *end;
    uint32_t word; /* the next one, loaded ahead */
    bool has_word;
    bool failed;
    uint32_t start, size; /* the slots of symbol number lane in the table in use */
} ans_state;

DW_DEVICE void load_word(ans_state *r)
{
    r->has_word = r->end - r->at >= 2;
    r->word = r->has_word ? dw_load16(r->at) : 0;
    r->at += r->has_word ? 2 : 0;
}

DW_DEVICE void use_table(ans_state *r, const dw_cuda_constants *constants, unsigned q)
{
    const dw_ans_symbol *s = &constants->symbols[dw_ans_table_of(q)][lane_of()];
    r->start = s->start;
    r->size = s->size;
}

DW_DEVICE uint32_t read_symbol(ans_state *r)
{
    const uint32_t slot = r->first & (DW_ANS_TOTAL - 1);
    const uint32_t s = (uint32_t)__popc(__ballot_sync(LANES, slot >= r->start)) - 1;
    const uint32_t size = __shfl_sync(LANES, r->size, s);
    const uint32_t start = __shfl_sync(LANES, r->start, s);
    uint32_t x = size * (r->first >> DW_ANS_BITS) + slot - start;
    if (x < DW_ANS_LOW) {
        r->failed = r->failed || !r->has_word;
        x = r->has_word ? x << 16 | r->word : DW_ANS_LOW;
        load_word(r);
    }
    r->first = r->second;
    r->second = x;
    return s;
}

/* Reads the gaps of a class with TOTAL elements as ranks. Returns their number, at most
 * N_MOST; 0xffffffff if they do not fit. */
DW_DEVICE uint32_t read_ranks(uint32_t *ranks, uint32_t n_most, ans_state *ans,
                              const uint8_t *plain, uint64_t *bit, uint64_t end,
                              uint32_t total, unsigned k)
{
    uint32_t n = 0, kept = 0;
    uint64_t rank = 0, gap = 0; /* elements before the gap */
    while (rank < total && !ans->failed) {
        const uint32_t s = read_symbol(ans);
        gap += (uint64_t)s << k;
        if (rank + gap >= total)
            break;
        if (s == DW_ANS_FAR)
            continue;
        if (*bit + k > end)
            return 0xffffffffu;
        gap += bits_at(plain, *bit) & ((1ull << k) - 1);
        *bit += k;
        if (rank + gap >= total || n == n_most)
            return 0xffffffffu;
        rank += gap;
        kept = lane_of() == n % WARP ? (uint32_t)rank : kept;
        if (++n % WARP == 0)
            ranks[n - WARP + lane_of()] = kept;
        rank++;
        gap = 0;
    }
    if (lane_of() < n % WARP)
        ranks[n / WARP * WARP + lane_of()] = kept;
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
        uint32_t symbol = 0;
        for (uint32_t i = 0; i < n_now; i++) {
            const uint32_t s = read_symbol(ans);
            symbol = lane_of() == i ? s : symbol;
        }
        const bool is_there = lane_of() < n_now;
        const uint32_t own = !is_there              ? 0
                             : symbol == DW_ANS_FAR ? bits
                                                    : k + 1;
        const uint32_t sum = scan32(own), all = __shfl_sync(LANES, sum, WARP - 1);
        if (*bit + all > end)
            return false;
        if (is_there) {
            uint64_t move = wide_bits_at(plain, *bit + sum - own, own);
            if (symbol != DW_ANS_FAR)
                move += (uint64_t)symbol << k << 1;
            fits = fits && move <= ~0ull >> (64 - bits);
            store_move(moves, first + at + lane_of(), move_bytes, move);
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
        store_move(moves, first + i, move_bytes, bits_at(plain, *bit + i) & 1);
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

DW_KERNEL(dw_cuda_read, 32, dw_cuda_decode_job)
{
    DW_BLOCK_MEMORY(read_memory, s);
    const dw_cuda_coded_block *b = &job.blocks[blockIdx.x];
    dw_cuda_decoded *out = &job.decoded[blockIdx.x];
    if (b->news)
        return;
    const uint32_t strip_elems = DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(b->width);
    const uint32_t n_strips = (b->n + strip_elems - 1) / strip_elems;
    for (uint32_t c = 0; c < DW_CLASSES; c++) {
        uint32_t total = 0;
        for (uint32_t i = lane_of(); i < n_strips; i += WARP)
            total += job.strips[b->first_strip + i].totals[c];
        total = __reduce_add_sync(LANES, total);
        if (lane_of() == 0)
            s->totals[c] = total;
    }
    const uint8_t *code = job.input + b->bytes, *ans_bytes = code;
    uint32_t n_ans = 0;
    if (lane_of() == 0)
        read_front(s, &ans_bytes, &n_ans, code, b->n_bytes);
    __syncwarp();
    n_ans = __shfl_sync(LANES, n_ans, 0);
    ans_bytes = code + __shfl_sync(LANES, (uint32_t)(ans_bytes - code), 0);
    bool is_valid = s->is_valid;
    const unsigned bits = 8u * b->width;
    const uint8_t *plain = s->plain.bytes;
    uint64_t bit = s->plain.bit;
    const uint64_t end = 8 * (uint64_t)s->plain.n_bytes;
    ans_state ans;
    ans.start = ans.size = ans.word = 0;
    ans.has_word = ans.failed = false;
    ans.first = ans.second = DW_ANS_LOW;
    ans.at = ans.end = ans_bytes;
    if (is_valid) {
        ans.first = dw_load32(ans_bytes);
        ans.second = dw_load32(ans_bytes + 4);
        ans.failed = ans.first < DW_ANS_LOW || ans.second < DW_ANS_LOW;
        ans.at = ans_bytes + 8;
        ans.end = ans_bytes + n_ans;
        load_word(&ans);
    }
    uint32_t n = 0;
    for (uint32_t c = 0; c < DW_CLASSES; c++) {
        if (lane_of() == 0)
            out->first[c] = n;
        if (!is_valid || ans.failed || !s->models[c].changes)
            continue;
        const dw_class_model *m = &s->models[c];
        const uint64_t first = b->first + n;
        use_table(&ans, job.constants, m->gap_q);
        const uint32_t n_c =
            read_ranks(job.sorted_ranks + first, b->n_most - n, &ans, plain, &bit, end,
                       s->totals[c], dw_ans_bucket_bits(m->gap_q));
        is_valid = n_c != 0xffffffffu;
        if (!is_valid)
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
    s->plain.bit = bit;
    is_valid = is_valid && !ans.failed && !ans.has_word && ans.at == ans.end &&
               ans.first == DW_ANS_LOW && ans.second == DW_ANS_LOW &&
               dw_bits_spent(&s->plain);
    const uint64_t first =
        is_valid ? add64(&job.changes.counters[DW_CUDA_CHANGES], n) : 0;
    is_valid = is_valid && first + n <= job.changes.n_most;
    out->first[DW_CLASSES] = n;
    out->staged = first;
    out->n_changes = is_valid ? n : 0;
    out->state = is_valid ? DW_CUDA_STAGED : DW_CUDA_CORRUPT;
}
