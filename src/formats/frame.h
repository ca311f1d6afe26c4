/* Packed tensors of slime: one zstd frame with the new bytes XOR the old ones, or with
 * positions and new bytes; and the checksums of the new tensors.
 *
 *     xor        new XOR old, as many bytes as the tensor
 *     overwrite  u32 count | count u32 positions of bytes | count new bytes
 */
#ifndef DW_FORMATS_FRAME_H
#define DW_FORMATS_FRAME_H

#include "base/bytes.h"
#include "deltawire/tensor.h"

typedef struct dw_frame {
    const uint8_t *packed; /* borrowed */
    size_t n_packed;
    bool overwrite;
    const char *checksum;      /* its kind, or NULL */
    const char *checksum_text; /* if there is a kind */
    const char *where;         /* the file, for errors */
    const char *spool_dir; /* for data that is too large for memory; NULL: the default */
} dw_frame;

#define DW_CHECKSUM_TEXT 33

/* The checksum in lower case, with a NUL. KIND is "xxh3-128" or "adler32"; false for any
 * other. */
bool dw_checksum_of(char out[DW_CHECKSUM_TEXT], const char *kind, const void *bytes,
                    uint64_t n_bytes);

/* Turns the old bytes of TENSOR into the new ones, in place, and proves them by the
 * checksum. After a failure they are undefined. */
dw_status dw_frame_apply(const dw_tensor *tensor, const dw_frame *frame, dw_error *err);

/* Appends the frame that leads from BASE to NEXT, which are in memory. It declares the
 * size of its content. DW_UNSUPPORTED if OVERWRITE does not reach the tensor's end. */
dw_status dw_frame_make(dw_writer *out, const dw_tensor *base, const dw_tensor *next,
                        bool overwrite, dw_error *err);

#endif
