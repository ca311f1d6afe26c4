/* Digests of bytes: FORMAT.md, section 3. */

/* Adds a sum below the prime to two halves, which take any number of them. */
DW_DEVICE void add_halves(uint64_t halves[2], uint64_t sum)
{
    atomicAdd((unsigned long long *)&halves[0], (unsigned long long)(sum & 0xffffffffu));
    atomicAdd((unsigned long long *)&halves[1], (unsigned long long)(sum >> 32));
}

DW_DEVICE uint64_t join_halves(const uint64_t halves[2])
{
    return dw_digest_reduce(((unsigned __int128)halves[1] << 32) + halves[0]);
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
