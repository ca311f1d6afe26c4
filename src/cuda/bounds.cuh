/* Finds the entries of each strip of a block: those with ranks between the numbers of
 * elements of their class before and after the strip. One block of threads for each block:
 * thread 16 j + c takes class c of strips 8 j to 8 j + 7.
 */

typedef struct bounds_memory {
    uint32_t sums[16][DW_CLASSES];
    uint32_t lows[DW_CUDA_STRIPS + 1][DW_CLASSES];
} bounds_memory;

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

DW_KERNEL(dw_cuda_bounds, 256, dw_cuda_decode_job)
{
    DW_BLOCK_MEMORY(bounds_memory, s);
    const uint32_t block = job.order[blockIdx.x], t = threadIdx.x;
    const dw_cuda_coded_block *b = &job.blocks[block];
    const dw_cuda_decoded *code = &job.decoded[block];
    if (b->news || code->state != DW_CUDA_STAGED)
        return;
    const uint32_t elems = DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(b->width);
    const uint32_t n_strips = (b->n + elems - 1) / elems;
    const uint32_t c = t % DW_CLASSES, j = t / DW_CLASSES;
    const uint64_t own = ((uint64_t)b->first_strip + 8 * j) * DW_CLASSES + c;
    uint32_t totals[8], base = 0;
    DW_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        totals[i] = 8 * j + i < n_strips ? job.totals[own + i * DW_CLASSES] : 0;
        base += totals[i];
    }
    s->sums[j][c] = base;
    __syncthreads();
    base = 0;
    for (uint32_t i = 0; i < j; i++)
        base += s->sums[i][c];
    const uint32_t *ranks = job.sorted_ranks + b->first;
    uint32_t low = code->first[c];
    for (uint32_t i = 0; i < 8 && 8 * j + i < n_strips; i++) {
        low = find_rank(ranks, low, code->first[c + 1], base);
        job.bases[own + i * DW_CLASSES] = base;
        job.lows[own + i * DW_CLASSES] = low;
        s->lows[8 * j + i][c] = low;
        base += totals[i];
    }
    if (j == 0)
        s->lows[n_strips][c] = code->first[c + 1];
    __syncthreads();
    if (t >= n_strips)
        return;
    uint64_t first = code->staged;
    uint32_t n = 0;
    for (uint32_t i = 0; i < DW_CLASSES; i++) {
        n += s->lows[t + 1][i] - s->lows[t][i];
        first += s->lows[t][i] - code->first[i];
    }
    dw_cuda_segment *segment = &job.segments[b->first_strip + t];
    segment->first = first;
    segment->n = n;
}
