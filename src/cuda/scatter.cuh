/* Stores new values, each only if the old one is what was expected, and reads them back;
 * and takes that back.
 */

DW_KERNEL(dw_cuda_scatter, 256, dw_cuda_scatter_job)
{
    const dw_cuda_segment *segment = &job.segments[blockIdx.x];
    const dw_cuda_changes *changes = &job.changes;
    for (uint32_t i = threadIdx.x; i < segment->n; i += blockDim.x) {
        const uint64_t at = segment->first + i;
        const uint32_t position = changes->positions[at];
        const uint64_t old = load_move(changes->olds, at, changes->value_bytes);
        const uint64_t new_ = load_move(changes->news, at, changes->value_bytes);
        const bool is_old = load_elem(segment->data, position, segment->width) == old;
        bool is_new = false;
        if (is_old) {
            store_elem(segment->data, position, segment->width, new_);
            is_new = load_again(segment->data, position, segment->width) == new_;
        } else {
            changes->positions[at] = position | DW_CUDA_NOT_STORED;
        }
        if (!is_new) {
            add64(&changes->counters[DW_CUDA_MISMATCHES], 1);
            changes->counters[DW_CUDA_FAULT] = segment->tensor; /* any of them */
        }
    }
}

DW_KERNEL(dw_cuda_undo, 256, dw_cuda_scatter_job)
{
    const dw_cuda_segment *segment = &job.segments[blockIdx.x];
    const dw_cuda_changes *changes = &job.changes;
    for (uint32_t i = threadIdx.x; i < segment->n; i += blockDim.x) {
        const uint64_t at = segment->first + i;
        const uint32_t position = changes->positions[at];
        if (!(position & DW_CUDA_NOT_STORED))
            store_elem(segment->data, position, segment->width,
                       load_move(changes->olds, at, changes->value_bytes));
    }
}
