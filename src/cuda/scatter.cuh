/* Stores new values, each only if the old one is there, or the new one, as after an apply
 * that was interrupted, or if two tensors share memory; reads them back; and takes that
 * back. One block of threads for each strip: with a warp for each, more strips are under
 * way at once, and that is slower.
 */

DW_DEVICE void scatter_strip(const dw_cuda_scatter_job *job,
                             const dw_cuda_segment *segment,
                             const dw_cuda_coded_block *b, unsigned width,
                             unsigned value_bytes)
{
    const dw_cuda_changes *changes = &job->changes;
    for (uint32_t i = threadIdx.x; i < segment->n; i += blockDim.x) {
        const uint64_t at = segment->first + i;
        const uint32_t position = changes->positions[at];
        const uint32_t place = position & ~DW_CUDA_NOT_STORED;
        const uint64_t old = load_elem(changes->olds, at, value_bytes);
        const uint64_t new_ = load_elem(changes->news, at, value_bytes);
        const uint64_t found = load_elem(b->data, place, width);
        uint64_t again = found;
        if (found == old) {
            store_elem(b->data, place, width, new_);
            again = load_again(b->data, place, width);
        }
        const uint32_t flag = found == old || found == new_ ? 0 : DW_CUDA_NOT_STORED;
        if (position != (place | flag))
            changes->positions[at] = place | flag;
        if (again != new_) {
            add64(&changes->counters[DW_CUDA_MISMATCHES], 1);
            changes->counters[DW_CUDA_FAULT] = b->tensor; /* any of them */
        }
    }
}

DW_KERNEL(dw_cuda_scatter, 256, dw_cuda_scatter_job)
{
    const dw_cuda_segment *segment = &job.segments[blockIdx.x];
    const dw_cuda_coded_block *b = &job.blocks[segment->block];
    if (b->width == 2 && job.changes.value_bytes == 2)
        scatter_strip(&job, segment, b, 2, 2);
    else
        scatter_strip(&job, segment, b, b->width, job.changes.value_bytes);
}

DW_KERNEL(dw_cuda_undo, 256, dw_cuda_scatter_job)
{
    const dw_cuda_changes *changes = &job.changes;
    const dw_cuda_segment *segment = &job.segments[blockIdx.x];
    const dw_cuda_coded_block *b = &job.blocks[segment->block];
    for (uint32_t i = threadIdx.x; i < segment->n; i += blockDim.x) {
        const uint64_t at = segment->first + i;
        const uint32_t position = changes->positions[at];
        if (!(position & DW_CUDA_NOT_STORED))
            store_elem(b->data, position, b->width,
                       load_elem(changes->olds, at, changes->value_bytes));
    }
}
