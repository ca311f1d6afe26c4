/* Puts the parts of each block together, and all blocks one after the other. */

typedef struct pack_memory {
    uint64_t warps[8];
    uint64_t first;
} pack_memory;

DW_KERNEL(dw_cuda_pack, 256, dw_cuda_encode_job)
{
    DW_BLOCK_MEMORY(pack_memory, s);
    dw_cuda_code *code = &job.codes[blockIdx.x];
    uint64_t n_before = 0;
    for (uint32_t i = threadIdx.x; i < blockIdx.x; i += blockDim.x)
        n_before += job.codes[i].n_bytes;
    n_before = sum64(n_before);
    if (lane_of() == 0)
        s->warps[threadIdx.x / WARP] = n_before;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint64_t first = 0;
        for (uint32_t w = 0; w < 8; w++)
            first += s->warps[w];
        s->first = first;
        code->out = first;
    }
    __syncthreads();
    if (code->n_bytes == 0)
        return;
    const uint32_t n_length = code->n_bytes - code->n_ans - code->n_bits;
    uint8_t *out = job.out + s->first;
    const uint8_t *ans = job.bytes + code->ans_end - code->n_ans;
    const uint8_t *bits = job.bytes + code->bits;
    if (threadIdx.x < n_length)
        out[threadIdx.x] = (uint8_t)((code->n_ans >> 7 * threadIdx.x & 0x7f) |
                                     (threadIdx.x + 1 < n_length ? 0x80 : 0));
    out += n_length;
    for (uint32_t i = threadIdx.x; i < code->n_ans; i += blockDim.x)
        out[i] = ans[i];
    out += code->n_ans;
    for (uint32_t i = threadIdx.x; i < code->n_bits; i += blockDim.x)
        out[i] = bits[i];
}
