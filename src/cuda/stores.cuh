/* As scatter.cuh, for stores in any tensors that the host has computed. A place that has
 * DW_CUDA_NOT_STORED held another value than the old one. */

DW_KERNEL(dw_cuda_store, 256, dw_cuda_store_job)
{
    const dw_cuda_store_part part = job.parts[blockIdx.x];
    const uint8_t *olds = job.olds + part.values, *news = job.news + part.values;
    for (uint32_t i = threadIdx.x; i < part.n; i += blockDim.x) {
        const uint32_t place = job.places[part.first + i];
        const uint64_t old = load_elem(olds, i, part.width);
        const uint64_t new_ = load_elem(news, i, part.width);
        bool is_new = false;
        if (load_elem(part.data, place, part.width) == old) {
            store_elem(part.data, place, part.width, new_);
            is_new = load_again(part.data, place, part.width) == new_;
        } else {
            job.places[part.first + i] = place | DW_CUDA_NOT_STORED;
        }
        if (!is_new) {
            add64(&job.counters[DW_CUDA_MISMATCHES], 1);
            job.counters[DW_CUDA_FAULT] = part.tensor; /* any of them */
        }
    }
}

DW_KERNEL(dw_cuda_unstore, 256, dw_cuda_store_job)
{
    const dw_cuda_store_part part = job.parts[blockIdx.x];
    for (uint32_t i = threadIdx.x; i < part.n; i += blockDim.x) {
        const uint32_t place = job.places[part.first + i];
        if (!(place & DW_CUDA_NOT_STORED))
            store_elem(part.data, place, part.width,
                       load_elem(job.olds + part.values, i, part.width));
    }
}
