#include "codec/scatter.h"

#include <string.h>

#include "codec/element.h"

#define PAGE_BYTES 4096u
#define RUN_BYTES  (16 * PAGE_BYTES)

dw_status dw_read_positions(const uint8_t **out, dw_loan *loan, const void *elems,
                            const uint32_t *positions, size_t n, unsigned width,
                            dw_error *err)
{
    const size_t first = n > 0 ? (size_t)positions[0] * width : 0;
    const size_t end = n > 0 ? ((size_t)positions[n - 1] + 1) * width : 0;
    const void *bytes;
    dw_status status =
        dw_map_read(&bytes, loan, (const uint8_t *)elems + first, end - first, err);
    /* computed as a number, because the result may be before the loan's first byte */
    *out = (const uint8_t *)((uintptr_t)bytes - first);
    return status;
}

/* How many elements from the first on form a run: they are close together and fit into
 * RUN_BYTES. */
static size_t run_length(const uint32_t *positions, size_t n, unsigned width)
{
    size_t k = 1;
    while (k < n && (size_t)(positions[k] - positions[k - 1]) * width <= PAGE_BYTES &&
           (size_t)(positions[k] - positions[0] + 1) * width <= RUN_BYTES)
        k++;
    return k;
}

/* Copies each run, stores to the copy, and lets the kernel write it back. A run has no
 * byte before its first element or after its last, because those may belong to another
 * thread. The copy is on the stack, so that stores cannot run out of memory half way. */
static dw_status scatter_file(uint8_t *elems, const uint32_t *positions,
                              const uint8_t *values, size_t n, unsigned width,
                              dw_error *err)
{
    uint64_t room[RUN_BYTES / sizeof(uint64_t)];
    dw_loan loan = {(uint8_t *)room, sizeof room};
    dw_status status = DW_OK;
    for (size_t at = 0, k; status == DW_OK && at < n; at += k) {
        const uint8_t *run;
        k = run_length(positions + at, n - at, width);
        const size_t first = (size_t)positions[at] * width;
        const size_t end = ((size_t)positions[at + k - 1] + 1) * width;
        status = dw_read_positions(&run, &loan, elems, positions + at, k, width, err);
        if (status != DW_OK)
            break;
        uint8_t *copy = (uint8_t *)(uintptr_t)run;
        dw_kernels_get()->scatter[dw_width_index(width)](copy, positions + at,
                                                         values + at * width, k);
        if (copy != elems)
            status = dw_map_store(elems + first, run + first, end - first, err);
    }
    return status;
}

dw_status dw_scatter(void *elems, const uint32_t *positions, const void *values, size_t n,
                     unsigned width, dw_error *err)
{
    if (!dw_map_may_touch(elems))
        return scatter_file(elems, positions, values, n, width, err);
    dw_kernels_get()->scatter[dw_width_index(width)](elems, positions, values, n);
    return DW_OK;
}
