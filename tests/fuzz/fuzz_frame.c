/* Packed tensors of any bytes; the first byte chooses packing, checksum and the size of
 * the tensor. If they are not refused, they unpack to the same bytes again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "formats/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

/* Applies it to a copy of OLD in INTO. */
static dw_status apply(uint8_t *into, const uint8_t *old, uint64_t n, const dw_frame *p,
                       dw_error *err)
{
    const dw_tensor tensor = {
        .name = "t", .dtype = DW_U8, .n_dims = 1, .dims = &n, .n_bytes = n, .data = into};
    memcpy(into, old, n);
    return dw_frame_apply(&tensor, p, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes == 0)
        return 0;
    const uint64_t n = 8u * (bytes[0] >> 3);
    /* separate allocations, so that an access past an end is noticed */
    uint8_t *old = malloc(n + 1), *first = malloc(n + 1), *again = malloc(n + 1);
    uint8_t *packed = malloc(n_bytes);
    for (uint64_t i = 0; i < n; i++)
        old[i] = (uint8_t)(i * 7);
    memcpy(packed, bytes + 1, n_bytes - 1);
    dw_frame p = {.packed = packed,
                  .n_packed = n_bytes - 1,
                  .overwrite = !(bytes[0] & 1),
                  .where = "fuzz"};
    dw_error err = {0};
    if (apply(first, old, n, &p, &err) == DW_OK) {
        char checksum[DW_CHECKSUM_TEXT];
        p.checksum = bytes[0] & 2 ? "xxh3-128" : "adler32";
        dw_checksum_of(checksum, p.checksum, first, n);
        p.checksum_text = checksum;
        if (apply(again, old, n, &p, &err) != DW_OK || memcmp(first, again, n) != 0)
            abort();
        checksum[0] = checksum[0] == '0' ? '1' : '0';
        if (apply(again, old, n, &p, &err) != DW_CORRUPT)
            abort();
    }
    free(old);
    free(first);
    free(again);
    free(packed);
    return 0;
}
