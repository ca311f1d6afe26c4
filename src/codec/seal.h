/* The seal: a hash in a file's own header, so that an altered header is noticed.
 *
 * __metadata__ has it under "seal" as 16 hexadecimal digits: the XXH64 of the JSON
 * header, with those digits as zeros, and of any other bytes that it protects.
 */
#ifndef DW_CODEC_SEAL_H
#define DW_CODEC_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "deltawire/base.h"

/* The value to write "seal" with, before dw_seal_set. */
#define DW_SEAL_BLANK  "0000000000000000"
#define DW_SEAL_DIGITS (sizeof DW_SEAL_BLANK - 1)

/* Computes the seal of BYTES, whose digits are at byte AT, with a NUL. REST may be NULL.
 */
void dw_seal_make(char out[DW_SEAL_DIGITS + 1], const uint8_t *bytes, size_t n_bytes,
                  size_t at, const void *rest, size_t n_rest);

/* Puts the seal into a header written with the blank. REST may be NULL. */
void dw_seal_set(uint8_t *json, size_t n_json, const void *rest, size_t n_rest);

/* False if the seal is missing or does not match. */
bool dw_seal_good(const uint8_t *json, size_t n_json, const void *rest, size_t n_rest);

/* Ends the JSON object in W with its seal and writes it to DIR/NAME, whole or not at all.
 * Releases W. */
dw_status dw_seal_write(dw_writer *w, const char *dir, const char *name, dw_error *err);

#endif
