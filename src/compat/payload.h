/* Packed tensors of slime and SkyRL: one zstd frame that holds the new bytes XOR the old
 * ones, or positions and what stands there; and the checksums of what comes of it.
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

/* In lower case, with a NUL; empty for DW_CHECKSUM_NONE. */
void dw_checksum_of(char out[DW_CHECKSUM_TEXT], dw_checksum kind, const void *bytes,
                    uint64_t n_bytes);

typedef struct dw_payload {
    const uint8_t *packed; /* borrowed */
    size_t n_packed;
    dw_packing packing;
    dw_checksum checksum;
    const char *checksum_text; /* if there is a checksum */
    const char *where;         /* the file, for errors */
    const char *spool_dir;     /* of what is too large for memory; NULL: a usual one */
} dw_payload;

/* Makes the new bytes of the tensor OLD, whose bytes are borrowed, INTO n_bytes of room,
 * and proves them by the checksum. INTO holds rubbish after a failure. */
dw_status dw_payload_decode(void *into, const dw_tensor *old, const dw_payload *payload,
                            dw_error *err);

/* What can be known of a payload for the tensor NAME without its old bytes: that it is
 * one whole frame. */
dw_status dw_payload_look(const dw_payload *payload, const char *name, dw_error *err);

#endif
