/* Compares a strip and lists its changes: the one pass over the weights.
 *
 * A block of 256 threads takes a strip of 1,024 cells: 4 rows of 256, one cell of each row
 * for each thread. Positions ascend with the row, the thread, and the place in the cell.
 *
 *     1. each thread counts the classes of its cells and marks what differs
 *     2. sums over groups of 16 cells, and over the changes before each row of a warp
 *     3. the changes are listed by position
 *     4. each thread takes changes from the list, whatever cell they are in
 *
 * The rank of a change among the elements of its class is the sum of the elements of that
 * class in the groups before its own, in the cells of its group before its own, and in
 * its cell before it.
 */

#define COMPARE_GROUP  16u /* cells */
#define COMPARE_GROUPS (DW_CUDA_CELLS / COMPARE_GROUP)
#define COMPARE_LIST   2048u /* changes at a time */

typedef struct compare_memory {
    uint4 news[DW_CUDA_CELLS];
    uint64_t cells[DW_CUDA_CELLS];          /* counts of 4 bits */
    uint32_t groups[8][COMPARE_GROUPS + 2]; /* two classes a word: spot_of */
    uint16_t list[COMPARE_LIST];            /* positions */
    uint16_t starts[32]; /* changes of each row of each warp, then those before it */
    uint64_t digests[8];
    uint64_t first;
    uint32_t n_changes;
    uint32_t has_room;
} compare_memory;

/* A strip, and what all its threads know. */
typedef struct compare_strip {
    const uint8_t *olds, *news;
    uint32_t before; /* elements of the block before the strip */
    uint32_t n;
    bool round_new;
    bool is_whole; /* and aligned to cells */
} compare_strip;

/* Where the count of class C is in a group: a word, and a shift in it. */
DW_DEVICE uint32_t spot_of(uint32_t c, uint32_t *shift)
{
    *shift = c << 2 & 16;
    return (c >> 1 & 4) | (c << 1 & 2) | (c >> 1 & 1);
}

/* Counts an element of class BY / 4. */
DW_DEVICE void count_one(uint32_t counts[2], uint32_t by)
{
    const uint64_t one = 1ull << by;
    counts[0] += (uint32_t)one; /* no count carries into the next */
    counts[1] += (uint32_t)(one >> 32);
}

/* The classes of two elements of at most 2 bytes, times 4. */
DW_DEVICE uint32_t two_classes(uint32_t two, const cell_map *m)
{
    return __viaddmin_s16x2_relu(two >> m->shift & m->mask, m->minus, 60 * 0x10001u);
}

/* Counts the classes of a cell, 4 bits each. */
DW_DEVICE void count_cell(uint32_t counts[2], const uint32_t w[4], const cell_map *m,
                          unsigned width)
{
    counts[0] = counts[1] = 0;
    if (width <= 2) {
        DW_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t two = width == 2 ? w[i] : w[i / 2] >> 8 * (i % 2) & 0xff00ffu;
            const uint32_t by = two_classes(two, m);
            count_one(counts, by & 63);
            count_one(counts, by >> 16);
        }
    } else {
        DW_UNROLL
        for (uint32_t e = 0; e < DW_CUDA_CELL_ELEMS(width); e++)
            count_one(counts, 4 * cell_class(cell_elem(w, e, width), &m->map, width));
    }
}

/* A bit for each element that differs. */
DW_DEVICE uint32_t differs(const uint32_t old[4], const uint32_t now[4], unsigned width)
{
    if (width == 2) {
        uint32_t bits = 0;
        DW_UNROLL
        for (uint32_t i = 4; i-- > 0;)
            bits = bits * 4 + __vminu2(old[i] ^ now[i], 0x10001u);
        return (bits | bits >> 15) & 0xff;
    }
    uint32_t bits = 0;
    DW_UNROLL
    for (uint32_t e = 0; e < DW_CUDA_CELL_ELEMS(width); e++)
        bits |= (uint32_t)(cell_elem(old, e, width) != cell_elem(now, e, width)) << e;
    return bits;
}

/* Of 2 N words, adds those that this lane keeps to the same ones of the lane that differs in
 * bit BIT of its number. */
DW_DEVICE void halve(uint32_t *w, uint32_t n, uint32_t bit)
{
    const bool is_odd = lane_of() >> bit & 1;
    DW_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t kept = is_odd ? w[2 * i + 1] : w[2 * i];
        const uint32_t given = is_odd ? w[2 * i] : w[2 * i + 1];
        w[i] = kept + __shfl_xor_sync(LANES, given, 1u << bit);
    }
}

/* Sums 16 words over the 16 lanes of each half of the warp. Each lane gets the sum of word
 * LANE % 16. */
DW_DEVICE uint32_t sum_half_warps(uint32_t w[16])
{
    halve(w, 8, 0);
    halve(w, 4, 1);
    halve(w, 2, 2);
    halve(w, 1, 3);
    return w[0];
}

/* Loads the cells of a strip that is not whole or not aligned, through the memory of the
 * block. Elements after the end become 0. */
DW_DEVICE void load_by_elems(uint32_t w[CELL_ROWS][4], compare_memory *s, const uint8_t *from,
                             uint32_t n, bool is_rounded, unsigned width)
{
    const uint32_t elems = DW_CUDA_CELL_ELEMS(width);
    __syncthreads(); /* the cells before were read */
    for (uint32_t i = threadIdx.x; i < DW_CUDA_CELLS * elems; i += 256) {
        uint64_t v = 0;
        if (i < n)
            v = width == 2 && is_rounded ? dw_round_bf16(((const uint32_t *)from)[i])
                                         : load_elem(from, i, width);
        store_elem(s->news, i, width, v);
    }
    __syncthreads();
    DW_UNROLL
    for (uint32_t r = 0; r < CELL_ROWS; r++)
        cell_load(w[r], (const uint8_t *)s->news, r * 256 + threadIdx.x, elems, true,
                  width);
}

DW_DEVICE uint32_t two_rounded(uint32_t low, uint32_t high)
{
    return dw_round_bf16(low) | (uint32_t)dw_round_bf16(high) << 16;
}

/* Loads all cells of a thread; each new element is read once. */
DW_DEVICE void load_rows(uint32_t old[CELL_ROWS][4], uint32_t now[CELL_ROWS][4], compare_memory *s,
                         const compare_strip *strip, unsigned width)
{
    const uint32_t elems = DW_CUDA_CELL_ELEMS(width);
    if (!strip->is_whole) {
        load_by_elems(old, s, strip->olds, strip->n, false, width);
        load_by_elems(now, s, strip->news, strip->n, strip->round_new, width);
        __syncthreads();
        return;
    }
    if (width == 2 && strip->round_new) {
        DW_UNROLL
        for (uint32_t r = 0; r < CELL_ROWS; r++) {
            const uint32_t cell = r * 256 + threadIdx.x;
            const uint4 *at = (const uint4 *)strip->news + 2 * cell;
            const uint4 a = at[0], b = at[1];
            cell_load(old[r], strip->olds, cell, elems, true, width);
            now[r][0] = two_rounded(a.x, a.y);
            now[r][1] = two_rounded(a.z, a.w);
            now[r][2] = two_rounded(b.x, b.y);
            now[r][3] = two_rounded(b.z, b.w);
        }
        return;
    }
    DW_UNROLL
    for (uint32_t r = 0; r < CELL_ROWS; r++)
        cell_load(old[r], strip->olds, r * 256 + threadIdx.x, elems, true, width);
    DW_UNROLL
    for (uint32_t r = 0; r < CELL_ROWS; r++)
        cell_load(now[r], strip->news, r * 256 + threadIdx.x, elems, true, width);
}

/* Step 1. Returns what differs, 8 bits a row; UP_TO takes the changes of the same row in
 * the lanes before, 8 bits a row. */
DW_DEVICE uint32_t look_at_cells(uint32_t *up_to, compare_memory *s,
                                 const compare_strip *strip, const cell_map *map,
                                 unsigned width)
{
    const uint32_t t = threadIdx.x, warp = t / WARP, elems = DW_CUDA_CELL_ELEMS(width);
    uint32_t old[CELL_ROWS][4], now[CELL_ROWS][4], sums[16], masks = 0;
    load_rows(old, now, s, strip, width);
    DW_UNROLL
    for (uint32_t r = 0; r < CELL_ROWS; r++) {
        const uint32_t cell = r * 256 + t;
        uint32_t counts[2];
        count_cell(counts, old[r], map, width);
        if (!strip->is_whole) /* the class of 0 is 0 */
            counts[0] -= elems - cell_valid(strip->n, cell, width);
        masks |= differs(old[r], now[r], width) << 8 * r;
        s->cells[cell] = counts[0] | (uint64_t)counts[1] << 32;
        if (width == 1) {
            ((uint64_t *)s->news)[cell] = now[r][0] | (uint64_t)now[r][1] << 32;
        } else {
            uint4 v;
            v.x = now[r][0];
            v.y = now[r][1];
            v.z = now[r][2];
            v.w = now[r][3];
            s->news[cell] = v;
        }
        sums[r] = counts[0] & 0x0f0f0f0fu;
        sums[4 + r] = counts[0] >> 4 & 0x0f0f0f0fu;
        sums[8 + r] = counts[1] & 0x0f0f0f0fu;
        sums[12 + r] = counts[1] >> 4 & 0x0f0f0f0fu;
    }
    const uint32_t sum = sum_half_warps(sums);
    const uint32_t row = t % 4, word = t / 4 % 4;
    const uint32_t group = (row * 256 + t / 16 * 16) / COMPARE_GROUP;
    s->groups[2 * word][group] = sum & 0x00ff00ffu;
    s->groups[2 * word + 1][group] = sum >> 8 & 0x00ff00ffu;

    /* changes in the lanes before: at most 248 */
    uint32_t n = masks - (masks >> 1 & 0x55555555u);
    n = (n & 0x33333333u) + (n >> 2 & 0x33333333u);
    n = (n + (n >> 4)) & 0x0f0f0f0fu;
    uint32_t before = __shfl_up_sync(LANES, n, 1);
    before = scan32(lane_of() ? before : 0);
    *up_to = before;
    if (lane_of() == WARP - 1) {
        DW_UNROLL
        for (uint32_t r = 0; r < CELL_ROWS; r++)
            s->starts[r * 8 + warp] =
                (uint16_t)((before >> 8 * r & 0xff) + (n >> 8 * r & 0xff));
    }
    return masks;
}

/* Step 2. OUT takes the size of each class. Each of the 8 warps does two. */
DW_DEVICE void sum_strip(compare_memory *s, const dw_cuda_encode_job *job,
                         dw_cuda_strip *out)
{
    const uint32_t warp = threadIdx.x / WARP;
    if (warp == 0) {
        const uint32_t own = s->starts[lane_of()], sum = scan32(own);
        s->starts[lane_of()] = (uint16_t)(sum - own);
        if (lane_of() == WARP - 1) {
            const uint64_t first =
                sum ? add64(&job->counters[DW_CUDA_ENTRIES], sum) : 0;
            s->first = first;
            s->n_changes = sum;
            s->has_room = sum == 0 || first + sum <= job->n_entries;
            out->first = first;
            out->n_changes = sum;
            out->is_put_off = !s->has_room;
            out->digest = 0;
        }
    }
    uint32_t *groups = &s->groups[warp][2 * lane_of()];
    const uint32_t first = groups[0], second = groups[1];
    const uint32_t sum = scan32(first + second); /* both halves stay below 2^16 */
    groups[0] = sum - first - second;
    groups[1] = sum - second;
    if (lane_of() == WARP - 1) {
        /* the class of word 4a + 2b + c is 8a + b + 2c, and 4 more in the upper half */
        const uint32_t c = warp / 4 * 8 + warp / 2 % 2 + warp % 2 * 2;
        out->totals[c] = (uint16_t)sum;
        out->totals[c + 4] = (uint16_t)(sum >> 16);
    }
}

/* Step 3, for changes [FROM, FROM + COMPARE_LIST). */
DW_DEVICE void list_positions(compare_memory *s, uint32_t masks, uint32_t up_to,
                              uint32_t from, unsigned width)
{
    uint32_t row = 4, next = 0;
    while (masks) {
        const uint32_t bit = (uint32_t)__ffs((int)masks) - 1;
        masks &= masks - 1;
        if (bit / 8 != row) {
            row = bit / 8;
            next = s->starts[row * 8 + threadIdx.x / WARP] + (up_to >> 8 * row & 0xff) -
                   from;
        }
        if (next < COMPARE_LIST)
            s->list[next] = (uint16_t)((row * 256 + threadIdx.x) *
                                           DW_CUDA_CELL_ELEMS(width) +
                                       bit % 8);
        next++;
    }
}

/* Step 4: stores the change at AT as entry TO, and returns its effect on the digest. */
DW_DEVICE uint64_t store_change(const compare_memory *s, const dw_cuda_encode_job *job,
                                const dw_cuda_block *b, const compare_strip *strip,
                                const cell_map *map, uint32_t at, uint64_t to,
                                unsigned width)
{
    const uint32_t elems = DW_CUDA_CELL_ELEMS(width), cell = at / elems;
    uint32_t old[4];
    cell_load(old, strip->olds, cell, cell_valid(strip->n, cell, width), strip->is_whole,
              width);
    uint64_t x = 0;
    DW_UNROLL
    for (uint32_t e = 0; e < elems; e++)
        x = e == at % elems ? cell_elem(old, e, width) : x;
    const uint64_t y = load_elem(s->news, at, width);
    const uint32_t c = cell_class(x, &map->map, width);
    uint32_t shift, rank = 0;
    rank = s->groups[spot_of(c, &shift)][cell / COMPARE_GROUP];
    rank = rank >> shift & 0xffff;
    const uint32_t *counts = (const uint32_t *)s->cells + c / 8;
    DW_UNROLL
    for (uint32_t i = 0; i < COMPARE_GROUP - 1; i++)
        if (i < cell % COMPARE_GROUP)
            rank += counts[2 * (cell / COMPARE_GROUP * COMPARE_GROUP + i)] >> c % 8 * 4 & 15;
    DW_UNROLL
    for (uint32_t e = 0; e < elems - 1; e++)
        rank += e < at % elems &&
                cell_class(cell_elem(old, e, width), &map->map, width) == c;
    job->ranks[to] = (uint16_t)rank;
    job->places[to] = c << 28 | (strip->before + at);
    store_move(job->moves, to, job->move_bytes,
               dw_move_between(x, y, 8 * width, b->is_float));
    const uint32_t start = (uint32_t)(b->first_byte % DW_DIGEST_CHUNK);
    return digest_change(job->constants, start + (strip->before + at) * width, x, y,
                         width);
}

DW_DEVICE void compare(compare_memory *s, const dw_cuda_encode_job *job,
                       const dw_cuda_block *b, unsigned width)
{
    const uint32_t elems = DW_CUDA_CELL_ELEMS(width), t = threadIdx.x;
    const cell_map map = cell_map_of(&job->tensors[b->tensor].map);
    dw_cuda_strip *out = &job->strips[blockIdx.x];
    compare_strip strip;
    strip.before = (blockIdx.x - b->first_strip) * DW_CUDA_CELLS * elems;
    strip.n = min32(b->n - strip.before, DW_CUDA_CELLS * elems);
    strip.round_new = b->round_new;
    strip.olds = b->old + (size_t)strip.before * width;
    strip.news = b->new_ + (size_t)strip.before * (width == 2 && b->round_new ? 4 : width);
    strip.is_whole = strip.n == DW_CUDA_CELLS * elems &&
                     ((uintptr_t)strip.olds | (uintptr_t)strip.news) % 16 == 0;
    uint32_t up_to;
    const uint32_t masks = look_at_cells(&up_to, s, &strip, &map, width);
    __syncthreads();
    sum_strip(s, job, out);
    __syncthreads();
    const uint32_t n = s->n_changes;
    const uint64_t first = s->first;
    if (n == 0 || !s->has_room)
        return;
    uint64_t digest = 0;
    for (uint32_t from = 0; from < n; from += COMPARE_LIST) {
        list_positions(s, masks, up_to, from, width);
        __syncthreads();
        const uint32_t n_now = min32(n - from, COMPARE_LIST);
        for (uint32_t i = t; i < n_now; i += 256)
            digest = dw_digest_plus(digest,
                                    store_change(s, job, b, &strip, &map, s->list[i],
                                                 first + from + i, width));
        __syncthreads();
    }
    digest = sum_digests(digest);
    if (lane_of() == 0)
        s->digests[t / WARP] = digest;
    __syncthreads();
    if (t == 0) {
        for (uint32_t w = 1; w < 8; w++)
            digest = dw_digest_plus(digest, s->digests[w]);
        out->digest = digest;
    }
}

DW_DENSE_KERNEL(dw_cuda_compare, 256, 5, dw_cuda_encode_job)
{
    DW_BLOCK_MEMORY(compare_memory, s);
    const dw_cuda_block *b = &job.blocks[job.block_of[blockIdx.x]];
    switch (b->width) {
    case 1:
        compare(s, &job, b, 1);
        break;
    case 2:
        compare(s, &job, b, 2);
        break;
    case 4:
        compare(s, &job, b, 4);
        break;
    default:
        compare(s, &job, b, 8);
    }
}

/* Makes the new elements of a block from the old ones and the moves. One block of threads
 * for each of its strips. */
DW_KERNEL(dw_cuda_rebuild, 256, dw_cuda_encode_job)
{
    const dw_cuda_block *b = &job.blocks[job.block];
    const dw_cuda_strip *strip = &job.strips[b->first_strip + blockIdx.x];
    const uint32_t elems = DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(b->width);
    const uint32_t before = blockIdx.x * elems, n = min32(b->n - before, elems);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        store_elem(job.scratch, before + i, b->width,
                   load_elem(b->old, before + i, b->width));
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < strip->n_changes; i += blockDim.x) {
        const uint32_t at = job.places[strip->first + i] & (DW_BLOCK_ELEMS - 1);
        const uint64_t move = load_move(job.moves, strip->first + i, job.move_bytes);
        store_elem(job.scratch, at, b->width,
                   dw_move_apply(load_elem(b->old, at, b->width), move, 8u * b->width,
                                 b->is_float));
    }
}
