/* Digests of bytes: FORMAT.md, section 3. */

/* The effect of a change on the digest: of an element at byte AT, counted from the start of
 * the first chunk. */
DW_DEVICE uint64_t digest_change(const dw_cuda_constants *constants, uint32_t at,
                                 uint64_t old, uint64_t new_, unsigned width)
{
    const uint64_t *a = &constants->coefficients[at % DW_DIGEST_CHUNK / 4];
    uint64_t sum = 0;
    for (unsigned k = 0; k < (width == 8 ? 2u : 1u); k++) {
        const uint64_t x = width == 8 ? old >> 32 * k & 0xffffffffu : old;
        const uint64_t y = width == 8 ? new_ >> 32 * k & 0xffffffffu : new_;
        const uint64_t size = (y > x ? y - x : x - y) << 8 * (at % 4);
        const uint64_t term = dw_digest_times(a[k], size);
        sum = dw_digest_plus(sum, y >= x || term == 0 ? term : DW_DIGEST_PRIME - term);
    }
    return dw_digest_times(sum, constants->powers[at / DW_DIGEST_CHUNK]);
}

/* The sum of all lanes. */
DW_DEVICE uint64_t digest_sum(uint64_t sum)
{
    for (unsigned by = WARP / 2; by > 0; by /= 2)
        sum = dw_digest_plus(sum, __shfl_xor_sync(LANES, sum, by));
    return sum;
}

/* Whole chunks, 16 bytes a thread and chunk. A thread has the same words of each chunk, so
 * the sum over k of g^k w is all it needs, times the word's coefficient in the end. The
 * powers are cut into 21, 20 and 20 bits: products with a word have 53, and 2,048 of them
 * fit. */
DW_DEVICE uint64_t digest_chunks(const uint8_t *data, uint32_t first, uint32_t n_chunks,
                                 const dw_cuda_constants *constants)
{
    const uint4 *at = (const uint4 *)data + threadIdx.x;
    uint64_t low[4] = {0, 0, 0, 0}, middle[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
    DW_UNROLL_BY(8)
    for (uint32_t k = 0; k < n_chunks; k++) {
        const uint4 v = at[k * (DW_DIGEST_CHUNK / 16)];
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
        const uint64_t power = constants->powers[first + k];
        const uint32_t p0 = (uint32_t)power & 0x1fffff;
        const uint32_t p1 = (uint32_t)(power >> 21) & 0xfffff;
        const uint32_t p2 = (uint32_t)(power >> 41);
        DW_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            low[i] += (uint64_t)w[i] * p0;
            middle[i] += (uint64_t)w[i] * p1;
            high[i] += (uint64_t)w[i] * p2;
        }
    }
    uint64_t sum = 0;
    DW_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const unsigned __int128 all = ((unsigned __int128)high[i] << 41) +
                                      ((unsigned __int128)middle[i] << 21) + low[i];
        sum = dw_digest_plus(sum,
                             dw_digest_times(constants->coefficients[4 * threadIdx.x + i],
                                             dw_digest_reduce(all)));
    }
    return sum;
}

/* Bytes [FROM, END), one at a time. START is where byte 0 is in its chunk. */
DW_DEVICE uint64_t digest_rest(const uint8_t *data, uint32_t from, uint32_t end,
                               uint32_t start, const dw_cuda_constants *constants)
{
    uint64_t sum = 0;
    for (uint32_t i = from + threadIdx.x; i < end; i += blockDim.x) {
        const uint32_t place = start + i;
        const uint64_t word = (uint64_t)data[i] << 8 * (place % 4);
        const uint64_t a = constants->coefficients[place % DW_DIGEST_CHUNK / 4];
        sum = dw_digest_plus(sum,
                             dw_digest_times(dw_digest_times(a, word),
                                             constants->powers[place / DW_DIGEST_CHUNK]));
    }
    return sum;
}

typedef struct digest_memory {
    uint64_t sums[8];
} digest_memory;

/* A part are 16 chunks of the tensor, or what the piece has of them. */
DW_KERNEL(dw_cuda_digest, 256, dw_cuda_digest_job)
{
    DW_BLOCK_MEMORY(digest_memory, s);
    dw_cuda_piece *piece = &job.pieces[blockIdx.x / DW_CUDA_PARTS];
    const uint32_t start = (uint32_t)(piece->first_byte % DW_DIGEST_CHUNK);
    const uint32_t part = blockIdx.x % DW_CUDA_PARTS * DW_CUDA_PART_CHUNKS;
    const uint32_t from = part == 0 ? 0 : part * DW_DIGEST_CHUNK - start;
    const uint32_t end = min32((uint32_t)piece->n_bytes,
                               (part + DW_CUDA_PART_CHUNKS) * DW_DIGEST_CHUNK - start);
    if (from >= end)
        return;
    /* [from, head) and [tail, end) are not whole chunks */
    uint32_t head = part == 0 && start ? DW_DIGEST_CHUNK - start : from, tail = end;
    if (head > end || (uintptr_t)(piece->data + head) % 16 != 0)
        head = end;
    else
        tail = head + (end - head) / DW_DIGEST_CHUNK * DW_DIGEST_CHUNK;
    uint64_t sum = digest_rest(piece->data, from, head, start, job.constants);
    if (tail > head)
        sum = dw_digest_plus(sum, digest_chunks(piece->data + head,
                                                (start + head) / DW_DIGEST_CHUNK,
                                                (tail - head) / DW_DIGEST_CHUNK,
                                                job.constants));
    if (tail < end)
        sum = dw_digest_plus(sum,
                             digest_rest(piece->data, tail, end, start, job.constants));
    sum = digest_sum(sum);
    if (lane_of() == 0)
        s->sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t w = 1; w < 8; w++)
            sum = dw_digest_plus(sum, s->sums[w]);
        add_halves(piece->halves, sum);
    }
}
