/* Packed tensors of slime: one zstd frame with the new bytes XOR the old ones,
 * or with positions and new bytes; and the checksums of the new tensors.
 */
#ifndef DW_COMPAT_PAYLOAD_H
#define DW_COMPAT_PAYLOAD_H

#include "deltawire/tensor.h"

typedef enum dw_packing {
    DW_PACKING_NONE = 0,  /* whole weights, or TRL's own layout */
    DW_PACKING_XOR,       /* new XOR old */
    DW_PACKING_OVERWRITE, /* u32 n | n u32 positions of bytes | n bytes */
} dw_packing;

typedef enum dw_checksum {
    DW_CHECKSUM_NONE = 0,
    DW_CHECKSUM_XXH3_128, /* 32 hexadecimal digits, most significant first */
    DW_CHECKSUM_ADLER32,  /* 8 */
} dw_checksum;

/* "xxh3-128" or "adler32"; false for any other name. */
bool dw_checksum_from_name(dw_checksum *out, const char *name);

#define DW_CHECKSUM_TEXT 33

/* The checksum in lower case, with a NUL; empty for DW_CHECKSUM_NONE. */
void dw_checksum_of(char out[DW_CHECKSUM_TEXT], dw_checksum kind, const void *bytes,
                    uint64_t n_bytes);

typedef struct dw_payload {
    const uint8_t *packed; /* borrowed */
    size_t n_packed;
    dw_packing packing;
    dw_checksum checksum;
    const char *checksum_text; /* if there is a checksum */
    const char *where;         /* the file, for errors */
    const char *spool_dir; /* for data that is too large for memory; NULL: the default */
} dw_payload;

/* Unpacks the new bytes of the tensor OLD to INTO, which has room for its n_bytes, and
 * proves them by the checksum. After a failure the bytes of INTO are undefined. */
dw_status dw_payload_decode(void *into, const dw_tensor *old, const dw_payload *payload,
                            dw_error *err);

#endif
