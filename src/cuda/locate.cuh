/* Finds the elements that changed, from their ranks in their classes, and makes the list
 * of a strip: position, old and new value. For dense blocks it compares. One block of
 * threads for each strip.
 */

typedef struct locate_memory {
    group_memory groups;
    uint32_t taken[DW_CUDA_STRIP_ELEMS / 32]; /* a bit for each element that changed */
    uint16_t items[DW_CUDA_STRIP_ELEMS];      /* its number in the order of classes */
    uint16_t totals[DW_CLASSES];
    uint32_t bases[DW_CLASSES];    /* ranks before the strip */
    uint32_t low[DW_CLASSES];      /* the first entry of the class in the strip */
    uint32_t high[DW_CLASSES];     /* the one after the last */
    uint32_t before[DW_CLASSES + 1]; /* changes of the strip in the classes before */
    uint32_t sums[8];
    uint64_t halves[2];
    uint64_t first; /* change */
    uint32_t has_room;
} locate_memory;

/* The first of entries [FROM, END) whose rank is at least RANK. */
DW_DEVICE uint32_t find_rank(const uint32_t *ranks, uint32_t from, uint32_t end,
                             uint32_t rank)
{
    while (from < end) {
        const uint32_t middle = from + (end - from) / 2;
        if (ranks[middle] < rank)
            from = middle + 1;
        else
            end = middle;
    }
    return from;
}

/* The class of change I of the strip, in the order of classes. */
DW_DEVICE uint32_t class_of_item(const locate_memory *s, uint32_t i)
{
    uint32_t c = 0;
    while (s->before[c + 1] <= i)
        c++;
    return c;
}

/* The position in the strip of the element with rank RANK among those of class C. If the
 * weights change meanwhile, any position in the strip: the digest will not agree. */
DW_DEVICE uint32_t find_elem(const group_memory *s, const dw_cuda_coded_block *b,
                             uint32_t before, uint32_t c, uint32_t rank)
{
    const uint32_t cell_elems = DW_CUDA_CELL_ELEMS(b->width);
    uint32_t group = 0;
    for (uint32_t step = GROUPS / 2; step > 0; step /= 2)
        group += s->rows[group + step][c] <= rank ? step : 0;
    rank -= s->rows[group][c];
    uint32_t cell = group * WARP, n; /* the class has more than RANK, so this ends */
    while ((n = (uint32_t)(s->cells[cell] >> 4 * c) & 15) <= rank) {
        rank -= n;
        cell++;
    }
    const uint32_t first = cell * cell_elems;
    for (uint32_t at = first; at < first + cell_elems && before + at < b->n; at++) {
        const uint64_t x = load_elem(b->data, before + at, b->width);
        if (dw_class_of(x, &b->map) == c && rank-- == 0)
            return at;
    }
    return first;
}

/* Marks the changes of a coded block that are in the strip. False if there are none. */
DW_DEVICE bool mark_coded(locate_memory *s, const dw_cuda_decode_job *job,
                          const dw_cuda_coded_block *b, const dw_cuda_decoded *code,
                          uint32_t strip, uint32_t before)
{
    const uint32_t *ranks = job->sorted_ranks + b->first;
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t c = threadIdx.x / WARP * 2 + i;
        uint32_t base = 0;
        for (uint32_t k = lane_of(); k < strip; k += WARP)
            base += job->strips[b->first_strip + k].totals[c];
        base = __reduce_add_sync(LANES, base);
        const uint32_t end = base + job->strips[b->first_strip + strip].totals[c];
        if (lane_of() == 0) {
            const uint32_t low =
                find_rank(ranks, code->first[c], code->first[c + 1], base);
            s->bases[c] = base;
            s->low[c] = low;
            s->high[c] = find_rank(ranks, low, code->first[c + 1], end);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint64_t first = code->staged;
        s->before[0] = 0;
        for (uint32_t c = 0; c < DW_CLASSES; c++) {
            s->before[c + 1] = s->before[c] + s->high[c] - s->low[c];
            first += s->low[c] - code->first[c];
        }
        s->first = first;
        s->has_room = 1;
    }
    __syncthreads();
    const uint32_t n = s->before[DW_CLASSES];
    if (n == 0)
        return false;
    count_strip(&s->groups, b, strip);
    __syncthreads();
    sum_groups(&s->groups, s->totals);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const uint32_t c = class_of_item(s, i);
        const uint32_t rank = ranks[s->low[c] + i - s->before[c]] - s->bases[c];
        if (rank >= s->totals[c]) /* the weights changed since they were counted */
            continue;
        const uint32_t at = find_elem(&s->groups, b, before, c, rank);
        s->items[at] = (uint16_t)i;
        atomicOr(&s->taken[at / 32], 1u << at % 32);
    }
    return true;
}

DW_DEVICE void mark_dense(locate_memory *s, const dw_cuda_coded_block *b, uint32_t before)
{
    const uint32_t n = min32(b->n - before, DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(b->width));
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        if (load_elem(b->data, before + i, b->width) !=
            load_elem(b->news, before + i, b->width))
            atomicOr(&s->taken[i / 32], 1u << i % 32);
}

/* The new value of the element at AT, whose old value is X. */
DW_DEVICE uint64_t new_value(const locate_memory *s, const dw_cuda_decode_job *job,
                             const dw_cuda_coded_block *b, uint32_t before, uint32_t at,
                             uint64_t x)
{
    if (b->news)
        return load_elem(b->news, before + at, b->width);
    const uint32_t c = class_of_item(s, s->items[at]);
    const uint64_t entry = b->first + s->low[c] + s->items[at] - s->before[c];
    const uint64_t move = load_move(job->sorted_moves, entry, job->changes.value_bytes);
    return dw_move_apply(x, move, 8u * b->width, b->is_float);
}

DW_KERNEL(dw_cuda_locate, 256, dw_cuda_decode_job)
{
    DW_BLOCK_MEMORY(locate_memory, s);
    const uint32_t block = job.block_of[blockIdx.x], t = threadIdx.x;
    const dw_cuda_coded_block *b = &job.blocks[block];
    dw_cuda_decoded *code = &job.decoded[block];
    dw_cuda_segment *segment = &job.segments[blockIdx.x];
    const uint32_t strip = blockIdx.x - b->first_strip;
    const uint32_t before = strip * DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(b->width);
    if (t == 0)
        segment->n = 0;
    if (!b->news && code->state != DW_CUDA_STAGED)
        return;
    s->taken[t] = 0;
    if (t < 2)
        s->halves[t] = 0;
    __syncthreads();
    if (b->news)
        mark_dense(s, b, before);
    else if (!mark_coded(s, &job, b, code, strip, before))
        return;
    __syncthreads();
    uint32_t word = s->taken[t];
    const uint32_t own = (uint32_t)__popc(word), up_to = scan32(own);
    if (lane_of() == WARP - 1)
        s->sums[t / WARP] = up_to;
    __syncthreads();
    uint32_t n = 0, to = up_to - own;
    for (uint32_t w = 0; w < 8; w++) {
        to += w < t / WARP ? s->sums[w] : 0;
        n += s->sums[w];
    }
    if (t == 0 && b->news) { /* a coded block has its place */
        const uint64_t first = add64(&job.changes.counters[DW_CUDA_CHANGES], n);
        s->first = first;
        s->has_room = first + n <= job.changes.n_most;
        if (s->has_room)
            atomicAdd(&code->n_changes, n);
        else
            code->state = DW_CUDA_CORRUPT;
    }
    __syncthreads();
    if (!s->has_room)
        return;
    const uint64_t first = s->first;
    const uint32_t start =
        (uint32_t)(b->first_byte % DW_DIGEST_CHUNK) + before * b->width;
    uint64_t digest = 0;
    for (; word != 0; word &= word - 1, to++) {
        const uint32_t at = t * 32 + (uint32_t)__ffs((int)word) - 1;
        const uint64_t x = load_elem(b->data, before + at, b->width);
        const uint64_t y = new_value(s, &job, b, before, at, x);
        job.changes.positions[first + to] = before + at;
        store_move(job.changes.olds, first + to, job.changes.value_bytes, x);
        store_move(job.changes.news, first + to, job.changes.value_bytes, y);
        digest = dw_digest_plus(
            digest, digest_change(job.constants, start + at * b->width, x, y, b->width));
    }
    if (own)
        add_halves(s->halves, digest);
    __syncthreads();
    if (t < 2)
        add64(&code->digest[t], s->halves[t]);
    if (t == 0) {
        segment->first = first;
        segment->n = n;
    }
}
