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

/* Whole chunks, 16 bytes a thread and chunk. */
DW_DEVICE uint64_t digest_chunks(const uint8_t *data, uint32_t n_chunks,
                                 const dw_cuda_constants *constants)
{
    const uint32_t t = threadIdx.x;
    const uint64_t *a = constants->coefficients + 4 * t;
    const uint64_t a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
    const uint4 *at = (const uint4 *)data + t;
    uint64_t sum = 0;
    for (uint32_t k = 0; k < n_chunks; k++) {
        const uint4 w = at[k * (DW_DIGEST_CHUNK / 16)];
        unsigned __int128 inside = (unsigned __int128)a0 * w.x;
        inside += (unsigned __int128)a1 * w.y;
        inside += (unsigned __int128)a2 * w.z;
        inside += (unsigned __int128)a3 * w.w;
        sum = dw_digest_plus(
            sum, dw_digest_times(dw_digest_reduce(inside), constants->powers[k]));
    }
    return sum;
}

/* Any bytes, one at a time. START is where they begin in the first chunk. */
DW_DEVICE uint64_t digest_rest(const uint8_t *data, uint32_t from, uint32_t n_bytes,
                               uint32_t start, const dw_cuda_constants *constants)
{
    uint64_t sum = 0;
    for (uint32_t i = from + threadIdx.x; i < n_bytes; i += blockDim.x) {
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
    uint64_t halves[2];
} digest_memory;

DW_KERNEL(dw_cuda_digest, 256, dw_cuda_digest_job)
{
    DW_BLOCK_MEMORY(digest_memory, s);
    dw_cuda_piece *piece = &job.pieces[blockIdx.x];
    const uint8_t *data = piece->data;
    const uint32_t n_bytes = (uint32_t)piece->n_bytes;
    const uint32_t start = (uint32_t)(piece->first_byte % DW_DIGEST_CHUNK);
    const bool is_aligned = start == 0 && (uintptr_t)data % 16 == 0;
    const uint32_t n_chunks = is_aligned ? n_bytes / DW_DIGEST_CHUNK : 0;
    if (threadIdx.x < 2)
        s->halves[threadIdx.x] = 0;
    __syncthreads();
    uint64_t sum = digest_chunks(data, n_chunks, job.constants);
    sum = dw_digest_plus(
        sum, digest_rest(data, n_chunks * DW_DIGEST_CHUNK, n_bytes, start, job.constants));
    add_halves(s->halves, sum);
    __syncthreads();
    if (threadIdx.x == 0)
        piece->sum = join_halves(s->halves);
}
