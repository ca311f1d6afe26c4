/* Strips of elements of WIDTH bytes. */

#define CONCAT_(a, b) a##b
#define CONCAT(a, b)  CONCAT_(a, b)
#define NAME(prefix)  CONCAT(prefix, WIDTH)
#define ELEMS         DW_CUDA_CELL_ELEMS(WIDTH)
#define WORDS         (ELEMS * WIDTH / 4)

#if WIDTH == 8
typedef uint64_t NAME(word_);
#else
typedef uint32_t NAME(word_);
#endif

/* Element E of a cell. */
DW_DEVICE NAME(word_) NAME(elem_)(const uint32_t w[WORDS], uint32_t e)
{
#if WIDTH == 8
    return w[2 * e] | (uint64_t)w[2 * e + 1] << 32;
#elif WIDTH == 4
    return w[e];
#else
    return w[e * WIDTH / 4] >> 8 * WIDTH * (e % (4 / WIDTH)) & ((1u << 8 * WIDTH) - 1);
#endif
}

/* As dw_class_of, in the narrowest type. */
DW_DEVICE uint32_t NAME(class_)(NAME(word_) x, const dw_class_map *map)
{
    NAME(word_) c = (x & (NAME(word_))map->magnitude) >> map->shift;
    c = c > map->base ? c - map->base : 0;
    return c < DW_CLASSES ? (uint32_t)c : DW_CLASSES - 1;
}

/* How many elements of a strip of N are in a cell. */
DW_DEVICE uint32_t NAME(valid_)(uint32_t n, uint32_t cell)
{
    return n > cell * ELEMS ? min32(ELEMS, n - cell * ELEMS) : 0;
}

/* Loads a cell of a strip. Elements that are not valid become 0. */
DW_DEVICE void NAME(load_cell_)(uint32_t w[WORDS], const uint8_t *strip, uint32_t cell,
                                uint32_t valid, bool is_aligned)
{
    const uint8_t *at = strip + (size_t)cell * (ELEMS * WIDTH);
    if (valid == ELEMS && is_aligned) {
#if WIDTH == 1
        const uint64_t v = *(const uint64_t *)at;
        w[0] = (uint32_t)v;
        w[1] = (uint32_t)(v >> 32);
#else
        const uint4 v = *(const uint4 *)at;
        w[0] = v.x;
        w[1] = v.y;
        w[2] = v.z;
        w[3] = v.w;
#endif
        return;
    }
    DW_UNROLL
    for (uint32_t i = 0; i < WORDS; i++)
        w[i] = 0;
    DW_UNROLL
    for (uint32_t e = 0; e < ELEMS; e++) {
        const uint64_t v = e < valid ? load_elem(at, e, WIDTH) : 0;
#if WIDTH == 8
        w[2 * e] = (uint32_t)v;
        w[2 * e + 1] = (uint32_t)(v >> 32);
#else
        w[e * WIDTH / 4] |= (uint32_t)v << 8 * (e * WIDTH % 4);
#endif
    }
}

DW_DEVICE void NAME(store_cell_)(uint8_t *strip, uint32_t cell, const uint32_t w[WORDS],
                                 uint32_t valid, bool is_aligned)
{
    uint8_t *at = strip + (size_t)cell * (ELEMS * WIDTH);
    if (valid == ELEMS && is_aligned) {
#if WIDTH == 1
        *(uint64_t *)at = w[0] | (uint64_t)w[1] << 32;
#else
        uint4 v;
        v.x = w[0];
        v.y = w[1];
        v.z = w[2];
        v.w = w[3];
        *(uint4 *)at = v;
#endif
        return;
    }
    DW_UNROLL
    for (uint32_t e = 0; e < ELEMS; e++)
        if (e < valid)
            store_elem(at, e, WIDTH, NAME(elem_)(w, e));
}

#if WIDTH == 2
/* Loads a cell of F32 and rounds it. */
DW_DEVICE void load_rounded(uint32_t w[WORDS], const uint8_t *strip, uint32_t cell,
                            uint32_t valid)
{
    const uint32_t *at = (const uint32_t *)strip + (size_t)cell * ELEMS;
    DW_UNROLL
    for (uint32_t i = 0; i < WORDS; i++) {
        const uint32_t low = 2 * i < valid ? at[2 * i] : 0;
        const uint32_t high = 2 * i + 1 < valid ? at[2 * i + 1] : 0;
        w[i] = dw_round_bf16(low) | (uint32_t)dw_round_bf16(high) << 16;
    }
}
#endif

/* Counts of a cell's classes, 4 bits each. */
DW_DEVICE uint64_t NAME(count_cell_)(const uint32_t w[WORDS], uint32_t valid,
                                     const dw_class_map *map)
{
    uint64_t counts = 0;
    DW_UNROLL
    for (uint32_t e = 0; e < ELEMS; e++)
        counts += (uint64_t)(e < valid) << 4 * NAME(class_)(NAME(elem_)(w, e), map);
    return counts;
}

DW_DEVICE void NAME(compare_strip_)(strip_memory *s, const dw_cuda_encode_job *job,
                                    uint32_t index)
{
    const uint32_t block = job->block_of[index], t = threadIdx.x;
    const dw_cuda_block *b = &job->blocks[block];
    dw_cuda_strip *strip = &job->strips[index];
    const dw_class_map map = job->tensors[b->tensor].map;
    const uint32_t before = (index - b->first_strip) * DW_CUDA_CELLS * ELEMS;
    const uint32_t n = min32(b->n - before, DW_CUDA_CELLS * ELEMS);
    uint8_t *olds = b->old + (size_t)before * WIDTH;
    const uint8_t *news = b->new_ + (size_t)before * (b->round_new ? 4 : WIDTH);
    const bool old_aligned = (uintptr_t)olds % (4 * WORDS) == 0;
    const bool new_aligned = (uintptr_t)news % (4 * WORDS) == 0;

    /* all loads before the first use; each new element is read once */
    uint32_t old[ROWS][WORDS], now[ROWS][WORDS];
    DW_UNROLL
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint32_t cell = r * 256 + t, valid = NAME(valid_)(n, cell);
        NAME(load_cell_)(old[r], olds, cell, valid, old_aligned);
#if WIDTH == 2
        if (b->round_new)
            load_rounded(now[r], news, cell, valid);
        else
#endif
            NAME(load_cell_)(now[r], news, cell, valid, new_aligned);
    }
    if (t < 2)
        s->halves[t] = 0;
    uint32_t masks = 0; /* what differs: 8 bits a row */
    uint64_t counts = 0; /* 16 bits a row */
    DW_UNROLL
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint32_t cell = r * 256 + t, valid = NAME(valid_)(n, cell);
        uint32_t mask = 0;
        DW_UNROLL
        for (uint32_t e = 0; e < ELEMS; e++)
            mask |= (uint32_t)(NAME(elem_)(old[r], e) != NAME(elem_)(now[r], e)) << e;
        masks |= mask << 8 * r;
        counts |= (uint64_t)(uint32_t)__popc(mask) << 16 * r;
        count_group(&s->groups, cell, NAME(count_cell_)(old[r], valid, &map));
    }
    const uint64_t up_to = scan64(counts);
    if (lane_of() == WARP - 1)
        s->sums[t / WARP] = up_to;
    __syncthreads();

    sum_groups(&s->groups, strip->totals);
    uint64_t all = 0, next = up_to - counts;
    for (uint32_t w = 0; w < 256 / WARP; w++) {
        next += w < t / WARP ? s->sums[w] : 0;
        all += s->sums[w];
    }
    const uint32_t n_changes = (uint32_t)((all & 0xffff) + (all >> 16 & 0xffff) +
                                          (all >> 32 & 0xffff) + (all >> 48));
    if (t == 0) {
        const uint64_t first =
            n_changes ? add64(&job->counters[DW_CUDA_ENTRIES], n_changes) : 0;
        s->first = first;
        s->has_room = n_changes == 0 || first + n_changes <= job->n_entries;
        strip->first = first;
        strip->n_changes = n_changes;
        strip->is_put_off = !s->has_room;
    }
    __syncthreads();
    const uint64_t first = s->first;
    if (!s->has_room || n_changes == 0)
        return;

    const uint32_t start = (uint32_t)(b->first_byte % DW_DIGEST_CHUNK) + before * WIDTH;
    uint32_t row_first = 0;
    uint64_t digest = 0;
    DW_UNROLL
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint32_t cell = r * 256 + t, mask = masks >> 8 * r & 0xff;
        uint32_t to = row_first + (uint32_t)(next >> 16 * r & 0xffff);
        row_first += (uint32_t)(all >> 16 * r & 0xffff);
        if (mask == 0)
            continue;
        uint64_t inner = 0;
        DW_UNROLL
        for (uint32_t e = 0; e < ELEMS; e++) {
            const NAME(word_) x = NAME(elem_)(old[r], e), y = NAME(elem_)(now[r], e);
            const uint32_t c = NAME(class_)(x, &map), at = cell * ELEMS + e;
            if (mask >> e & 1) {
                s->list[to] = at | c << 13 | ((uint32_t)(inner >> 4 * c) & 15) << 17;
                store_move(job->moves, first + to, job->move_bytes,
                           dw_move_between(x, y, 8 * WIDTH, b->is_float));
                digest = dw_digest_plus(digest, digest_change(job->constants,
                                                              start + at * WIDTH, x, y,
                                                              WIDTH));
                to++;
            }
            inner += 1ull << 4 * c;
        }
        NAME(store_cell_)(olds, cell, now[r], NAME(valid_)(n, cell), old_aligned);
    }
    if (masks)
        add_halves(s->halves, digest);
    __syncthreads();

    for (uint32_t i = t; i < n_changes; i += 256) {
        const uint32_t item = s->list[i], at = item & 0x1fff, c = item >> 13 & 15;
        job->ranks[first + i] = (uint16_t)(rank_before(&s->groups, at / ELEMS, c) + (item >> 17));
        job->places[first + i] = c << 28 | (before + at);
    }
    if (t < 2)
        add64(&job->codes[block].digest[t], s->halves[t]);
}

/* Counts the classes of a strip; BEFORE are the elements of the block before it. */
DW_DEVICE void NAME(count_strip_)(group_memory *s, const dw_cuda_coded_block *b,
                                  uint32_t before)
{
    const uint32_t n = min32(b->n - before, DW_CUDA_CELLS * ELEMS);
    const uint8_t *data = b->data + (size_t)before * WIDTH;
    const bool is_aligned = (uintptr_t)data % (4 * WORDS) == 0;
    const dw_class_map map = b->map;
    uint32_t old[ROWS][WORDS];
    DW_UNROLL
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint32_t cell = r * 256 + threadIdx.x;
        NAME(load_cell_)(old[r], data, cell, NAME(valid_)(n, cell), is_aligned);
    }
    DW_UNROLL
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint32_t cell = r * 256 + threadIdx.x;
        count_group(s, cell, NAME(count_cell_)(old[r], NAME(valid_)(n, cell), &map));
    }
}

#undef CONCAT_
#undef CONCAT
#undef NAME
#undef ELEMS
#undef WORDS
