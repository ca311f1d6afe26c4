/* Chooses the class base of each tensor from a sample, as dw_class_map_choose does. */

#define EXPONENTS   2048u
#define SAMPLE_RUNS 16u

typedef struct choose_memory {
    uint32_t counts[EXPONENTS];
    uint32_t n_samples;
} choose_memory;

DW_KERNEL(dw_cuda_choose, 256, dw_cuda_encode_job)
{
    DW_BLOCK_MEMORY(choose_memory, s);
    dw_cuda_tensor *tensor = &job.tensors[blockIdx.x];
    if (!tensor->is_float)
        return;
    const uint32_t n = (uint32_t)(tensor->map.magnitude >> tensor->map.shift) + 1;
    uint64_t sample[SAMPLE_RUNS];
    DW_UNROLL
    for (uint32_t run = 0; run < SAMPLE_RUNS; run++) { /* all loads before the first use */
        const uint64_t at = tensor->n_elems / SAMPLE_RUNS * run + threadIdx.x;
        sample[run] =
            at < tensor->n_elems ? load_elem(tensor->old, at, tensor->width) : ~0ull;
    }
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        s->counts[i] = 0;
    if (threadIdx.x == 0)
        s->n_samples = 0;
    __syncthreads();
    DW_UNROLL
    for (uint32_t run = 0; run < SAMPLE_RUNS; run++) {
        const uint64_t at = tensor->n_elems / SAMPLE_RUNS * run + threadIdx.x;
        const bool is_there = at < tensor->n_elems;
        if (is_there)
            atomicAdd(&s->counts[(sample[run] & tensor->map.magnitude) >> tensor->map.shift],
                      1u);
        const uint32_t n_there = (uint32_t)__popc(__ballot_sync(LANES, is_there));
        if (lane_of() == 0)
            atomicAdd(&s->n_samples, n_there);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        /* the largest exponents are rare and share the last class; 16 from there down */
        uint32_t above = 0, top = n - 1;
        while (top > 0 && above + s->counts[top] <= s->n_samples / 128)
            above += s->counts[top--];
        tensor->map.base = top >= DW_CLASSES ? top - (DW_CLASSES - 1) : 0;
    }
}
