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
    for (uint32_t i = threadIdx.x; i < EXPONENTS; i += blockDim.x)
        s->counts[i] = 0;
    if (threadIdx.x == 0)
        s->n_samples = 0;
    __syncthreads();
    for (uint64_t run = 0; run < SAMPLE_RUNS; run++) {
        const uint64_t at = tensor->n_elems / SAMPLE_RUNS * run + threadIdx.x;
        if (at < tensor->n_elems) {
            const uint64_t x = load_elem(tensor->old, at, tensor->width);
            atomicAdd(&s->counts[(x & tensor->map.magnitude) >> tensor->map.shift], 1u);
            atomicAdd(&s->n_samples, 1u);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        /* the largest exponents are rare and share the last class; 16 from there down */
        uint32_t above = 0, top = EXPONENTS - 1;
        while (top > 0 && above + s->counts[top] <= s->n_samples / 128)
            above += s->counts[top--];
        tensor->map.base = top >= DW_CLASSES ? top - (DW_CLASSES - 1) : 0;
    }
}
