/* Signatures over the bytes of records. */
#ifndef DW_STREAM_SIGN_H
#define DW_STREAM_SIGN_H

#include "deltawire/stream.h"

#define DW_SIGNATURE_BYTES 64

dw_status dw_sign(const dw_sign_key *key, uint8_t signature[DW_SIGNATURE_BYTES],
                  const void *bytes, size_t n_bytes, dw_error *err);

/* DW_UNTRUSTED if the signature is not by that key over these bytes. */
dw_status dw_sign_verify(const uint8_t key[DW_PUBLIC_KEY_BYTES],
                         const uint8_t signature[DW_SIGNATURE_BYTES], const void *bytes,
                         size_t n_bytes, dw_error *err);

#endif
