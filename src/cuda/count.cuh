/* Counts the classes of each strip. */

/* Tells strips which block they belong to. One block of threads for each block. */
DW_KERNEL(dw_cuda_spread, 128, dw_cuda_decode_job)
{
    const uint32_t block = job.order[blockIdx.x];
    const dw_cuda_coded_block *b = &job.blocks[block];
    const uint32_t elems = DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(b->width);
    const uint32_t n_strips = (b->n + elems - 1) / elems;
    for (uint32_t i = threadIdx.x; i < n_strips; i += blockDim.x) {
        dw_cuda_segment *segment = &job.segments[b->first_strip + i];
        segment->first = 0;
        segment->n = 0;
        segment->block = block;
    }
}

typedef struct count_memory {
    uint32_t sums[8][CELL_WORDS];
} count_memory;

DW_DEVICE void count_strip(count_memory *s, const dw_cuda_coded_block *b, uint32_t before,
                           unsigned width)
{
    const uint32_t n = min32(b->n - before, DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(width));
    const uint8_t *data = b->data + (size_t)before * width;
    const bool is_aligned = (uintptr_t)data % (width == 1 ? 8 : 16) == 0;
    const cell_map map = cell_map_of(&b->map);
    uint32_t w[CELL_ROWS][4];
    DW_UNROLL
    for (uint32_t r = 0; r < CELL_ROWS; r++) {
        const uint32_t cell = r * 256 + threadIdx.x;
        cell_load(w[r], data, cell, cell_valid(n, cell, width), is_aligned, width);
    }
    uint64_t even = 0, odd = 0; /* 8 bits a class */
    DW_UNROLL
    for (uint32_t r = 0; r < CELL_ROWS; r++) {
        const uint32_t cell = r * 256 + threadIdx.x;
        const uint64_t counts =
            cell_count(w[r], cell_valid(n, cell, width), &map, width);
        even += counts & 0x0f0f0f0f0f0f0f0full;
        odd += counts >> 4 & 0x0f0f0f0f0f0f0f0full;
    }
    DW_UNROLL
    for (uint32_t i = 0; i < CELL_WORDS; i++) {
        const uint64_t from = i % 2 ? odd : even;
        const uint32_t two =
            (uint32_t)(from >> (i / 4 * 32 + i / 2 % 2 * 8)) & 0x00ff00ffu;
        const uint32_t sum = __reduce_add_sync(LANES, two);
        if (lane_of() == 0)
            s->sums[threadIdx.x / WARP][i] = sum;
    }
}

DW_KERNEL(dw_cuda_count, 256, dw_cuda_decode_job)
{
    DW_BLOCK_MEMORY(count_memory, s);
    const uint64_t strip = job.first_strip + blockIdx.x;
    const dw_cuda_coded_block *b = &job.blocks[job.segments[strip].block];
    if (b->news)
        return;
    const uint32_t before = (uint32_t)(strip - b->first_strip) * DW_CUDA_CELLS *
                            DW_CUDA_CELL_ELEMS(b->width);
    switch (b->width) {
    case 1:
        count_strip(s, b, before, 1);
        break;
    case 2:
        count_strip(s, b, before, 2);
        break;
    case 4:
        count_strip(s, b, before, 4);
        break;
    default:
        count_strip(s, b, before, 8);
    }
    __syncthreads();
    if (threadIdx.x < DW_CLASSES) {
        const uint32_t c = threadIdx.x;
        uint32_t sum = 0;
        for (uint32_t i = 0; i < 8; i++)
            sum += s->sums[i][word_of_class(c)] >> shift_of_class(c) & 0xffff;
        job.totals[strip * DW_CLASSES + c] = (uint16_t)sum;
    }
}
