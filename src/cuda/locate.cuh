/* Finds the elements that changed, from their ranks in their classes, and makes the list
 * of a strip: position, old and new value. For dense blocks it compares. One block of
 * threads for each strip.
 *
 * A strip has 32 groups of 32 cells. To find the element with a given rank in its class:
 * the group by the counts of the groups before, the cell by the counts of the cells of
 * the group, the element by looking at those of the cell.
 */

#define NOWHERE 0xffffffffu

typedef struct locate_memory {
    /* with gaps: threads look at the same place of different groups, which should be in
     * different banks */
    uint64_t cells[CELL_GROUPS][WARP + 1];        /* counts of 4 bits */
    uint32_t groups[CELL_GROUPS][CELL_WORDS + 1]; /* of the groups before */
    uint32_t totals[CELL_WORDS];
    uint32_t bases[DW_CLASSES];      /* ranks before the strip */
    uint32_t low[DW_CLASSES];        /* the first entry of the class in the strip */
    uint32_t before[DW_CLASSES + 1]; /* changes of the strip in the classes before */
    uint32_t counts[8];
    uint64_t sums[8];
    uint64_t first; /* change */
    uint32_t has_room;
} locate_memory;

/* A strip, and what all its threads know. */
typedef struct locate_strip {
    const dw_cuda_coded_block *b;
    const uint8_t *data;
    uint32_t before; /* elements of the block before the strip */
    uint32_t n;
    uint32_t start; /* of the strip, from the first chunk of the block on, in bytes */
    bool is_aligned;
} locate_strip;

/* Counts the classes of all cells, and sums them up by group. */
DW_DEVICE void locate_count(locate_memory *s, const locate_strip *at, const cell_map *map,
                            unsigned width)
{
    uint32_t w[CELL_ROWS][4];
    DW_UNROLL
    for (uint32_t r = 0; r < CELL_ROWS; r++) {
        const uint32_t cell = r * 256 + threadIdx.x;
        cell_load(w[r], at->data, cell, cell_valid(at->n, cell, width), at->is_aligned,
                  width);
    }
    DW_UNROLL
    for (uint32_t r = 0; r < CELL_ROWS; r++) {
        const uint32_t cell = r * 256 + threadIdx.x;
        const uint64_t counts =
            cell_count(w[r], cell_valid(at->n, cell, width), map, width);
        s->cells[cell / WARP][lane_of()] = counts;
        DW_UNROLL
        for (uint32_t i = 0; i < CELL_WORDS; i++) {
            const uint32_t two =
                (uint32_t)(counts >> (i / 4 * 32)) >> 4 * (i % 4) & 0x000f000fu;
            const uint32_t sum = __reduce_add_sync(LANES, two);
            if (lane_of() == 0)
                s->groups[cell / WARP][i] = sum;
        }
    }
    __syncthreads();
    const uint32_t own = s->groups[lane_of()][threadIdx.x / WARP];
    const uint32_t sum = scan32(own); /* both halves: a strip has fewer than 2^16 */
    s->groups[lane_of()][threadIdx.x / WARP] = sum - own;
    if (lane_of() == WARP - 1)
        s->totals[threadIdx.x / WARP] = sum;
    __syncthreads();
}

/* The position in the strip of the element with rank RANK among those of class C; X takes
 * its value. NOWHERE if there is none: the weights changed since they were counted. */
DW_DEVICE uint32_t find_elem(uint64_t *x, const locate_memory *s, const locate_strip *at,
                             uint32_t c, uint32_t rank, const cell_map *map,
                             unsigned width)
{
    const uint32_t elems = DW_CUDA_CELL_ELEMS(width);
    const uint32_t word = word_of_class(c), shift = shift_of_class(c);
    if (rank >= (s->totals[word] >> shift & 0xffff))
        return NOWHERE;
    uint32_t group = 0;
    DW_UNROLL
    for (uint32_t step = CELL_GROUPS / 2; step > 0; step /= 2)
        group += (s->groups[group + step][word] >> shift & 0xffff) <= rank ? step : 0;
    rank -= s->groups[group][word] >> shift & 0xffff;
    uint32_t inner = 0, n; /* the group has more than RANK, so this ends */
    while ((n = (uint32_t)(s->cells[group][inner] >> 4 * c) & 15) <= rank) {
        rank -= n;
        inner++;
    }
    const uint32_t cell = group * WARP + inner;
    const uint32_t valid = cell_valid(at->n, cell, width);
    uint32_t w[4], found = NOWHERE;
    cell_load(w, at->data, cell, valid, at->is_aligned, width);
    DW_UNROLL
    for (uint32_t e = 0; e < elems; e++) {
        const uint64_t v = cell_elem(w, e, width);
        const bool is_it =
            e < valid && cell_class(v, &map->map, width) == c && rank-- == 0;
        found = is_it ? cell * elems + e : found;
        *x = is_it ? v : *x;
    }
    return found;
}

/* Writes a change; returns its effect on the digest. */
DW_DEVICE uint64_t put_change(const dw_cuda_decode_job *job, const locate_strip *at,
                              uint64_t to, uint32_t place, uint64_t x, uint64_t y,
                              unsigned width)
{
    const dw_cuda_changes *changes = &job->changes;
    changes->positions[to] = at->before + place;
    store_elem(changes->olds, to, changes->value_bytes, x);
    store_elem(changes->news, to, changes->value_bytes, y);
    return digest_change(job->constants, at->start + place * width, x, y, width);
}

DW_DEVICE uint64_t locate_coded(locate_memory *s, const dw_cuda_decode_job *job,
                                const locate_strip *at, uint64_t first, uint32_t n,
                                unsigned width)
{
    const dw_cuda_coded_block *b = at->b;
    const cell_map map = cell_map_of(&b->map);
    uint64_t digest = 0;
    locate_count(s, at, &map, width);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        uint32_t c = 0;
        DW_UNROLL
        for (uint32_t step = DW_CLASSES / 2; step > 0; step /= 2)
            c += s->before[c + step] <= i ? step : 0;
        const uint64_t entry = b->first + s->low[c] + i - s->before[c];
        const uint32_t rank = job->sorted_ranks[entry] - s->bases[c];
        const uint64_t move =
            load_elem(job->sorted_moves, entry, job->changes.value_bytes);
        uint64_t x = 0;
        const uint32_t place = find_elem(&x, s, at, c, rank, &map, width);
        if (place == NOWHERE) /* the digest will not agree */
            job->changes.positions[first + i] = DW_CUDA_NOT_STORED;
        else
            digest = dw_digest_plus(
                digest, put_change(job, at, first + i, place, x,
                                   dw_move_apply(x, move, 8 * width, b->is_float), width));
    }
    return digest;
}

/* Reserves room for the changes of a dense strip, of which this thread has OWN. FIRST
 * takes the place of its first one. False if there is no room. */
DW_DEVICE bool reserve(uint64_t *first, locate_memory *s, const dw_cuda_decode_job *job,
                       uint32_t own, dw_cuda_decoded *code, dw_cuda_segment *segment)
{
    const uint32_t up_to = scan32(own), t = threadIdx.x;
    if (lane_of() == WARP - 1)
        s->counts[t / WARP] = up_to;
    __syncthreads();
    uint32_t n = 0, to = up_to - own;
    for (uint32_t w = 0; w < 8; w++) {
        to += w < t / WARP ? s->counts[w] : 0;
        n += s->counts[w];
    }
    if (t == 0) {
        s->first = add64(&job->changes.counters[DW_CUDA_CHANGES], n);
        s->has_room = s->first + n <= job->changes.n_most;
        if (s->has_room) {
            atomicAdd(&code->n_changes, n);
            segment->first = s->first;
            segment->n = n;
        } else {
            code->state = DW_CUDA_CORRUPT;
        }
    }
    __syncthreads();
    *first = s->first + to;
    return s->has_room;
}

DW_DEVICE uint64_t locate_dense(locate_memory *s, const dw_cuda_decode_job *job,
                                const locate_strip *at, dw_cuda_decoded *code,
                                dw_cuda_segment *segment)
{
    const unsigned width = at->b->width;
    const uint8_t *news = at->b->news + (size_t)at->before * width;
    uint32_t own = 0;
    for (uint32_t i = threadIdx.x; i < at->n; i += blockDim.x)
        own += load_elem(at->data, i, width) != load_elem(news, i, width);
    uint64_t first = 0, digest = 0;
    if (!reserve(&first, s, job, own, code, segment))
        return 0;
    for (uint32_t i = threadIdx.x; i < at->n && own > 0; i += blockDim.x) {
        const uint64_t x = load_elem(at->data, i, width), y = load_elem(news, i, width);
        if (x == y)
            continue;
        digest = dw_digest_plus(digest, put_change(job, at, first++, i, x, y, width));
        own--;
    }
    /* if the weights changed meanwhile; the digest will not agree */
    for (; own > 0; own--)
        job->changes.positions[first++] = DW_CUDA_NOT_STORED;
    return digest;
}

/* The entries of the strip: S takes the bounds of each class. By the first warp. */
DW_DEVICE void load_bounds(locate_memory *s, const dw_cuda_decode_job *job,
                           const dw_cuda_decoded *code, uint64_t strip, bool is_last)
{
    const uint32_t c = lane_of() % DW_CLASSES;
    const uint64_t own = strip * DW_CLASSES + c;
    const uint32_t low = job->lows[own];
    const uint32_t high = is_last ? code->first[c + 1] : job->lows[own + DW_CLASSES];
    const uint32_t n = lane_of() < DW_CLASSES ? high - low : 0, sum = scan32(n);
    if (lane_of() < DW_CLASSES) {
        s->bases[c] = job->bases[own];
        s->low[c] = low;
        s->before[c] = sum - n;
    }
    if (lane_of() == DW_CLASSES)
        s->before[DW_CLASSES] = sum;
}

DW_KERNEL(dw_cuda_locate, 256, dw_cuda_decode_job)
{
    DW_BLOCK_MEMORY(locate_memory, s);
    const uint64_t strip = job.first_strip + blockIdx.x;
    dw_cuda_segment *segment = &job.segments[strip];
    const uint32_t block = segment->block, t = threadIdx.x;
    const dw_cuda_coded_block *b = &job.blocks[block];
    dw_cuda_decoded *code = &job.decoded[block];
    const uint32_t n = segment->n;
    const uint64_t first = segment->first;
    if (!b->news && n == 0) /* also if the block does not decode */
        return;
    const uint32_t elems = DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(b->width);
    locate_strip at;
    at.b = b;
    at.before = (uint32_t)(strip - b->first_strip) * elems;
    at.n = min32(b->n - at.before, elems);
    at.data = b->data + (size_t)at.before * b->width;
    at.start = (uint32_t)(b->first_byte % DW_DIGEST_CHUNK) + at.before * b->width;
    at.is_aligned = (uintptr_t)at.data % (b->width == 1 ? 8 : 16) == 0;
    if (!b->news && t < WARP) /* there is a barrier before they are used */
        load_bounds(s, &job, code, strip, at.before + elems >= b->n);
    uint64_t digest;
    if (b->news)
        digest = locate_dense(s, &job, &at, code, segment);
    else if (b->width == 2)
        digest = locate_coded(s, &job, &at, first, n, 2);
    else if (b->width == 4)
        digest = locate_coded(s, &job, &at, first, n, 4);
    else if (b->width == 1)
        digest = locate_coded(s, &job, &at, first, n, 1);
    else
        digest = locate_coded(s, &job, &at, first, n, 8);
    digest = digest_sum(digest);
    if (lane_of() == 0)
        s->sums[t / WARP] = digest;
    __syncthreads();
    if (t == 0) {
        for (uint32_t w = 1; w < 8; w++)
            digest = dw_digest_plus(digest, s->sums[w]);
        add_halves(code->digest, digest);
    }
}
