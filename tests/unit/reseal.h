/* Repairs the seal of a record that a test has altered. */
#ifndef DW_TEST_RESEAL_H
#define DW_TEST_RESEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "codec/seal.h"

#define RESEAL_BLANK ",\"seal\":\"" DW_SEAL_BLANK "\"}" /* the end of a record */

/* Returns false and does nothing if the record does not end in a seal. */
static inline bool reseal(void *record, size_t n_bytes)
{
    const size_t n_tail = sizeof RESEAL_BLANK - 1, n_after = 2;
    const size_t n_before = n_tail - DW_SEAL_DIGITS - n_after;
    uint8_t *bytes = record;
    char digits[DW_SEAL_DIGITS + 1];
    if (n_bytes < n_tail ||
        memcmp(bytes + n_bytes - n_tail, RESEAL_BLANK, n_before) != 0 ||
        memcmp(bytes + n_bytes - n_after, "\"}", n_after) != 0)
        return false;
    size_t at = n_bytes - n_after - DW_SEAL_DIGITS;
    dw_seal_make(digits, bytes, n_bytes, at, NULL, 0);
    memcpy(bytes + at, digits, DW_SEAL_DIGITS);
    return true;
}

#endif
