/* Sorts the changes of a block by class, fits the parameters, and writes the symbols and
 * the plain bits: FORMAT.md, section 7. One block of threads for each block of a tensor.
 */

#define MODEL_WARPS 8u

typedef struct model_memory {
    uint64_t firsts[DW_CUDA_STRIPS];
    uint32_t n_changes[DW_CUDA_STRIPS];
    uint32_t bases[DW_CUDA_STRIPS][DW_CLASSES]; /* ranks before the strip */
    uint32_t spots[DW_CUDA_STRIPS][DW_CLASSES]; /* changes before the strip */
    uint32_t totals[DW_CLASSES];
    uint32_t counts[DW_CLASSES]; /* changes */
    uint32_t first[DW_CLASSES + 1];
    dw_class_model models[DW_CLASSES];
    uint32_t n_symbols[2 * DW_CLASSES]; /* of gaps and moves, then where they begin */
    uint32_t n_bits[2 * DW_CLASSES];    /* likewise */
    uint32_t params[32];
    uint64_t sorted, symbols, bits;
    uint32_t n_bit_words;
    uint64_t halves[2]; /* of the digest */
    uint32_t is_put_off, is_done;
} model_memory;

DW_DEVICE void or_bits(uint32_t *words, uint32_t bit, uint64_t value, unsigned n)
{
    uint32_t *at = words + bit / 32;
    const unsigned shift = bit % 32;
    if (n == 0)
        return;
    atomicOr(at, (uint32_t)(value << shift));
    if (shift + n > 32)
        atomicOr(at + 1, (uint32_t)(value >> (32 - shift)));
    if (shift + n > 64)
        atomicOr(at + 2, (uint32_t)(value >> (64 - shift)));
}

/* Loads the strips. Each warp sums two classes over them. */
DW_DEVICE void load_strips(model_memory *s, const dw_cuda_strip *strips, uint32_t n_strips)
{
    if (threadIdx.x == 0)
        s->is_put_off = 0;
    if (threadIdx.x < 2)
        s->halves[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < DW_CUDA_STRIPS; i += blockDim.x) {
        const bool is_there = i < n_strips;
        s->firsts[i] = is_there ? strips[i].first : 0;
        s->n_changes[i] = is_there ? strips[i].n_changes : 0;
        for (uint32_t c = 0; c < DW_CLASSES; c++) {
            s->bases[i][c] = is_there ? strips[i].totals[c] : 0;
            s->spots[i][c] = 0;
        }
        if (is_there && strips[i].is_put_off)
            s->is_put_off = 1;
        if (is_there && strips[i].n_changes > 0)
            add_halves(s->halves, strips[i].digest);
    }
    __syncthreads();
}

/* Turns numbers of each strip into sums of the strips before; SUMS takes those of all. */
DW_DEVICE void sum_strips(uint32_t table[DW_CUDA_STRIPS][DW_CLASSES], uint32_t *sums)
{
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t c = threadIdx.x / WARP * 2 + i;
        uint32_t before = 0;
        for (uint32_t at = lane_of(); at < DW_CUDA_STRIPS; at += WARP) {
            const uint32_t own = table[at][c], sum = scan32(own);
            table[at][c] = before + sum - own;
            before += __shfl_sync(LANES, sum, WARP - 1);
        }
        if (lane_of() == 0)
            sums[c] = before;
    }
}

/* Goes through the changes of the strips in order, a warp for each strip. First counts
 * them by class, then stores them by class. */
DW_DEVICE void walk_strips(model_memory *s, const dw_cuda_encode_job *job, bool store)
{
    for (uint32_t strip = threadIdx.x / WARP; strip < DW_CUDA_STRIPS;
         strip += MODEL_WARPS) {
        const uint32_t n = s->n_changes[strip];
        for (uint32_t at = 0; at < n; at += WARP) {
            const bool is_there = at + lane_of() < n;
            const uint64_t from = s->firsts[strip] + at + lane_of();
            const uint32_t c = is_there ? job->places[from] >> 28 : DW_CLASSES;
            const uint32_t same = __match_any_sync(LANES, c);
            const uint32_t spot = is_there ? s->spots[strip][c] : 0;
            if (is_there && store) {
                const uint32_t lower = (uint32_t)__popc(same & ((1u << lane_of()) - 1));
                const uint64_t to = s->sorted + s->first[c] + spot + lower;
                job->sorted_ranks[to] = s->bases[strip][c] + job->ranks[from];
                store_move(job->sorted_moves, to, job->move_bytes,
                           load_move(job->moves, from, job->move_bytes));
            }
            __syncwarp(); /* all have read their spots */
            if (is_there && (uint32_t)__ffs((int)same) == lane_of() + 1)
                s->spots[strip][c] = spot + (uint32_t)__popc(same);
            __syncwarp();
        }
    }
}

/* As fit_moves in class_model.c, by one warp. The sums of elements up to 4 bytes are
 * whole numbers below 2^53, so any order gives the same; those of 8 bytes are added in
 * order by one lane. */
DW_DEVICE unsigned fit_class_moves(const dw_cuda_encode_job *job, uint64_t first,
                                   uint32_t n, unsigned bits)
{
    const dw_cuda_constants *constants = job->constants;
    uint64_t limit = ~0ull;
    unsigned q = 0;
    for (int round = 0; round < 3; round++) {
        double sum = 0;
        uint64_t n_near = 0;
        if (bits == 64) {
            for (uint32_t i = 0; lane_of() == 0 && i < n; i++) {
                const uint64_t size = load_move(job->sorted_moves, first + i, 8) >> 1;
                if (size < limit) {
                    sum += (double)size;
                    n_near++;
                }
            }
            q = dw_class_move_q(constants->stays, sum, n_near);
            q = __shfl_sync(LANES, q, 0);
        } else {
            uint64_t whole = 0;
            for (uint32_t i = lane_of(); i < n; i += WARP) {
                const uint64_t size =
                    load_move(job->sorted_moves, first + i, job->move_bytes) >> 1;
                whole += size < limit ? size : 0;
                n_near += size < limit;
            }
            sum = (double)sum64(whole);
            n_near = sum64(n_near);
            q = dw_class_move_q(constants->stays, sum, n_near);
        }
        limit = (uint64_t)DW_ANS_FAR << dw_ans_bucket_bits(q);
    }
    const uint32_t stride = n / 128 + 1;
    unsigned best = q;
    uint32_t best_cost = 0xffffffffu;
    for (unsigned next = q > 3 ? q - 3 : 0; next <= q + 3 && next <= DW_ANS_MAX_Q; next++) {
        const uint16_t *costs = constants->costs[dw_ans_table_of(next)];
        const unsigned k = dw_ans_bucket_bits(next);
        uint32_t cost = 0;
        for (uint32_t i = lane_of() * stride; i < n; i += WARP * stride)
            cost += dw_class_move_cost(
                load_move(job->sorted_moves, first + i, job->move_bytes), k, costs, bits);
        cost = __reduce_add_sync(LANES, cost);
        if (cost < best_cost) {
            best = next;
            best_cost = cost;
        }
    }
    return best;
}

DW_DEVICE uint32_t gap_at(const uint32_t *ranks, uint32_t i)
{
    return i == 0 ? ranks[0] : ranks[i] - ranks[i - 1] - 1;
}

/* The last symbols of the gaps of a class: *N_FAR times FAR, and the one returned. LEFT
 * elements are after the last change, not 0. */
DW_DEVICE uint32_t end_of_gaps(uint32_t left, unsigned k, const uint16_t *costs,
                               uint32_t *n_far)
{
    const uint32_t bucket = (uint32_t)(((uint64_t)left + (1u << k) - 1) >> k);
    *n_far = bucket > DW_ANS_FAR ? (bucket - 1) / DW_ANS_FAR : 0;
    const uint32_t last = bucket - *n_far * DW_ANS_FAR;
    return costs[DW_ANS_FAR] < costs[last] ? DW_ANS_FAR : last;
}

/* Fits a class, and counts its symbols and bits. By one warp. */
DW_DEVICE void fit_class(model_memory *s, const dw_cuda_encode_job *job, uint32_t c,
                         unsigned bits)
{
    const uint32_t n = s->counts[c], total = s->totals[c];
    const uint64_t first = s->sorted + s->first[c];
    const uint32_t *ranks = job->sorted_ranks + first;
    dw_class_model m;
    uint32_t n_gap_symbols = 0, n_far = 0, far = 0;
    m.changes = n > 0;
    m.far_moves = false;
    m.gap_q = m.move_q = 0;
    if (n > 0) {
        m.gap_q = dw_class_gap_q(job->constants->stays, n, total);
        const unsigned k = dw_ans_bucket_bits(m.gap_q);
        for (uint32_t i = lane_of(); i < n; i += WARP) {
            n_gap_symbols += 1 + (gap_at(ranks, i) >> k) / DW_ANS_FAR;
            far |= load_move(job->sorted_moves, first + i, job->move_bytes) > 1;
        }
        n_gap_symbols = __reduce_add_sync(LANES, n_gap_symbols);
        m.far_moves = __ballot_sync(LANES, (int)far) != 0;
        const uint32_t left = total - ranks[n - 1] - 1;
        if (left > 0) {
            uint32_t n_far_at_end;
            (void)end_of_gaps(left, k, job->constants->costs[dw_ans_table_of(m.gap_q)],
                              &n_far_at_end);
            n_gap_symbols += n_far_at_end + 1;
        }
        if (m.far_moves) {
            m.move_q = fit_class_moves(job, first, n, bits);
            const unsigned km = dw_ans_bucket_bits(m.move_q);
            for (uint32_t i = lane_of(); i < n; i += WARP)
                n_far += load_move(job->sorted_moves, first + i, job->move_bytes) >> 1 >>
                             km >=
                         DW_ANS_FAR;
            n_far = __reduce_add_sync(LANES, n_far);
        }
    }
    if (lane_of() == 0) {
        const unsigned km = m.far_moves ? dw_ans_bucket_bits(m.move_q) : 0;
        s->models[c] = m;
        s->n_symbols[2 * c] = n_gap_symbols;
        s->n_bits[2 * c] = n * dw_ans_bucket_bits(m.gap_q);
        s->n_symbols[2 * c + 1] = m.far_moves ? n : 0;
        s->n_bits[2 * c + 1] = (n - n_far) * (km + 1) + n_far * bits;
    }
}

/* Writes the parameters, and finds room for the symbols, the rANS stream and the bits. By
 * one thread. */
DW_DEVICE void lay_out(model_memory *s, const dw_cuda_encode_job *job, dw_cuda_code *code)
{
    dw_bit_writer w;
    uint8_t *params = (uint8_t *)s->params;
    for (uint32_t i = 0; i < 32; i++)
        s->params[i] = 0;
    w.at = params;
    w.held = 0;
    w.n_held = 0;
    dw_class_models_put(&w, s->models, s->totals);
    uint32_t bit = (uint32_t)(w.at - params) * 8 + w.n_held, symbol = 0, n_runs = 0;
    for (uint32_t i = 0; i < 2 * DW_CLASSES; i++) {
        const uint32_t n_symbols = s->n_symbols[i], n_bits = s->n_bits[i];
        const dw_class_model *m = &s->models[i / 2];
        s->n_symbols[i] = symbol;
        s->n_bits[i] = bit;
        symbol += n_symbols;
        bit += n_bits;
        if (n_symbols > 0) {
            code->run_end[n_runs] = symbol;
            code->run_table[n_runs] =
                (uint8_t)dw_ans_table_of(i % 2 ? m->move_q : m->gap_q);
            n_runs++;
        }
    }
    s->n_bit_words = bit / 32 + 1;
    const uint64_t n_symbols = ((uint64_t)symbol + 7) / 8 * 8;
    const uint64_t n_ans = 2 * n_symbols + 8;
    const uint64_t n_bits = ((uint64_t)s->n_bit_words + 1) / 2 * 8;
    const uint64_t n = n_symbols + n_ans + n_bits;
    const uint64_t at = add64(&job->counters[DW_CUDA_BYTES], n);
    s->is_done = at + n > job->n_room;
    s->symbols = at;
    s->bits = at + n_symbols + n_ans;
    code->sorted = s->sorted;
    code->symbols = at;
    code->ans_end = s->bits;
    code->bits = s->bits;
    code->n_symbols = symbol;
    code->n_bits = (bit + 7) / 8;
    code->n_runs = n_runs;
    code->state = s->is_done ? DW_CUDA_NO_ROOM : DW_CUDA_CODED;
}

DW_DEVICE void emit_class_gaps(model_memory *s, const dw_cuda_encode_job *job, uint32_t c,
                               uint8_t *symbols, uint32_t *words)
{
    const uint32_t n = s->counts[c];
    const unsigned q = s->models[c].gap_q, k = dw_ans_bucket_bits(q);
    const uint32_t *ranks = job->sorted_ranks + s->sorted + s->first[c];
    uint32_t next = s->n_symbols[2 * c];
    for (uint32_t at = 0; at < n; at += WARP) {
        const uint32_t i = at + lane_of();
        const uint32_t gap = i < n ? gap_at(ranks, i) : 0, bucket = gap >> k;
        const uint32_t own = i < n ? 1 + bucket / DW_ANS_FAR : 0, sum = scan32(own);
        if (i < n) {
            uint8_t *to = symbols + next + sum - own;
            for (uint32_t j = 1; j < own; j++)
                *to++ = DW_ANS_FAR;
            *to = (uint8_t)(bucket % DW_ANS_FAR);
            or_bits(words, s->n_bits[2 * c] + i * k, gap & ((1u << k) - 1), k);
        }
        next += __shfl_sync(LANES, sum, WARP - 1);
    }
    const uint32_t left = s->totals[c] - ranks[n - 1] - 1;
    if (left > 0 && lane_of() == 0) {
        uint32_t n_far;
        const uint32_t last =
            end_of_gaps(left, k, job->constants->costs[dw_ans_table_of(q)], &n_far);
        for (uint32_t j = 0; j < n_far; j++)
            symbols[next++] = DW_ANS_FAR;
        symbols[next] = (uint8_t)last;
    }
}

DW_DEVICE void emit_class_moves(model_memory *s, const dw_cuda_encode_job *job,
                                uint32_t c, uint8_t *symbols, uint32_t *words,
                                unsigned bits)
{
    const uint32_t n = s->counts[c];
    const dw_class_model *m = &s->models[c];
    const uint64_t first = s->sorted + s->first[c];
    const unsigned k = dw_ans_bucket_bits(m->move_q);
    uint32_t bit = s->n_bits[2 * c + 1];
    for (uint32_t at = 0; at < n; at += WARP) {
        const uint32_t i = at + lane_of();
        const uint64_t move =
            i < n ? load_move(job->sorted_moves, first + i, job->move_bytes) : 0;
        if (!m->far_moves) {
            const uint32_t signs = __ballot_sync(LANES, (int)(move & 1));
            if (lane_of() == 0)
                or_bits(words, bit + at, signs, min32(WARP, n - at));
            continue;
        }
        const uint64_t bucket = move >> 1 >> k;
        const bool is_far = bucket >= DW_ANS_FAR;
        const uint32_t own = i >= n ? 0 : is_far ? bits : k + 1, sum = scan32(own);
        if (i < n) {
            symbols[s->n_symbols[2 * c + 1] + i] = is_far ? DW_ANS_FAR : (uint8_t)bucket;
            or_bits(words, bit + sum - own, is_far ? move : move & ((2ull << k) - 1), own);
        }
        bit += __shfl_sync(LANES, sum, WARP - 1);
    }
}

DW_KERNEL(dw_cuda_model, 256, dw_cuda_encode_job)
{
    DW_BLOCK_MEMORY(model_memory, s);
    const dw_cuda_block *b = &job.blocks[blockIdx.x];
    dw_cuda_code *code = &job.codes[blockIdx.x];
    const uint32_t strip_elems = DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(b->width);
    const unsigned bits = 8u * b->width;
    load_strips(s, job.strips + b->first_strip, (b->n + strip_elems - 1) / strip_elems);
    if (threadIdx.x == 0) {
        code->state = s->is_put_off ? DW_CUDA_PUT_OFF : DW_CUDA_CODED;
        code->n_changes = 0;
        code->n_bytes = 0;
        code->digest[0] = s->halves[0];
        code->digest[1] = s->halves[1];
    }
    if (s->is_put_off)
        return;
    sum_strips(s->bases, s->totals);
    walk_strips(s, &job, false);
    __syncthreads();
    sum_strips(s->spots, s->counts);
    __syncthreads();
    if (threadIdx.x == 0) {
        s->first[0] = 0;
        for (uint32_t c = 0; c < DW_CLASSES; c++)
            s->first[c + 1] = s->first[c] + s->counts[c];
        code->n_changes = s->first[DW_CLASSES];
        s->sorted = add64(&job.counters[DW_CUDA_SORTED], s->first[DW_CLASSES]);
    }
    __syncthreads();
    if (s->first[DW_CLASSES] == 0)
        return;
    walk_strips(s, &job, true);
    __syncthreads();
    for (uint32_t c = threadIdx.x / WARP; c < DW_CLASSES; c += MODEL_WARPS)
        fit_class(s, &job, c, bits);
    __syncthreads();
    if (threadIdx.x == 0)
        lay_out(s, &job, code);
    __syncthreads();
    if (s->is_done)
        return;
    uint8_t *symbols = job.bytes + s->symbols;
    uint32_t *words = (uint32_t *)(job.bytes + s->bits);
    for (uint32_t i = threadIdx.x; i < s->n_bit_words; i += blockDim.x)
        words[i] = 0;
    __syncthreads();
    if (threadIdx.x < 32 && s->params[threadIdx.x] != 0)
        atomicOr(&words[threadIdx.x], s->params[threadIdx.x]);
    for (uint32_t c = threadIdx.x / WARP; c < DW_CLASSES; c += MODEL_WARPS) {
        if (s->counts[c] == 0)
            continue;
        emit_class_gaps(s, &job, c, symbols, words);
        emit_class_moves(s, &job, c, symbols, words, bits);
    }
}
