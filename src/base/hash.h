/* SHA-256 and hexadecimal. */
#ifndef DW_BASE_HASH_H
#define DW_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deltawire/base.h"

#define DW_SHA256_BYTES 32
#define DW_SHA256_TEXT  65 /* in hex, with its NUL */

/* Hashes in pieces: init, update..., final. Final or release frees it. */
typedef struct dw_sha256 {
    void *context;
    bool failed;
} dw_sha256;

dw_status dw_sha256_init(dw_sha256 *h, dw_error *err);
void dw_sha256_update(dw_sha256 *h, const void *bytes, size_t n_bytes);
dw_status dw_sha256_final(dw_sha256 *h, uint8_t out[DW_SHA256_BYTES], dw_error *err);
void dw_sha256_release(dw_sha256 *h);

dw_status dw_sha256_of(uint8_t out[DW_SHA256_BYTES], const void *bytes, size_t n_bytes,
                       dw_error *err);
dw_status dw_hmac_sha256(uint8_t out[DW_SHA256_BYTES], const void *key, size_t n_key,
                         const void *bytes, size_t n_bytes, dw_error *err);

/* Whether it is a hash: zeros stand for none. */
bool dw_sha256_is_given(const uint8_t hash[DW_SHA256_BYTES]);

/* Lower case, 2 * N_BYTES characters and a NUL. */
void dw_hex_encode(char *out, const void *bytes, size_t n_bytes);

/* The value of a digit of either case, or -1. */
int dw_hex_digit(char c);

/* Parses exactly 2 * N_BYTES lower-case digits; false for any other text. */
bool dw_hex_decode(void *out, size_t n_bytes, const char *text);

#endif
