#include "codec/seal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* a hash state on the stack */
#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"

#define KEY   "\"seal\":\""
#define N_KEY (sizeof KEY - 1)

/* The offset of the digits; N_JSON if there are none. Quotes inside strings are escaped,
 * so no string can be mistaken for the key. */
static size_t find_digits(const uint8_t *json, size_t n_json)
{
    for (size_t i = 0; i + N_KEY + DW_SEAL_DIGITS < n_json; i++)
        if (memcmp(json + i, KEY, N_KEY) == 0 && json[i + N_KEY + DW_SEAL_DIGITS] == '"')
            return i + N_KEY;
    return n_json;
}

void dw_seal_make(char out[DW_SEAL_DIGITS + 1], const uint8_t *bytes, size_t n_bytes,
                  size_t at, const void *rest, size_t n_rest)
{
    XXH64_state_t state;
    XXH64_reset(&state, 0);
    XXH64_update(&state, bytes, at);
    XXH64_update(&state, DW_SEAL_BLANK, DW_SEAL_DIGITS);
    XXH64_update(&state, bytes + at + DW_SEAL_DIGITS, n_bytes - at - DW_SEAL_DIGITS);
    if (n_rest > 0)
        XXH64_update(&state, rest, n_rest);
    snprintf(out, DW_SEAL_DIGITS + 1, "%016" PRIx64, (uint64_t)XXH64_digest(&state));
}

void dw_seal_set(uint8_t *json, size_t n_json, const void *rest, size_t n_rest)
{
    char digits[DW_SEAL_DIGITS + 1];
    size_t at = find_digits(json, n_json);
    if (at == n_json)
        return;
    dw_seal_make(digits, json, n_json, at, rest, n_rest);
    memcpy(json + at, digits, DW_SEAL_DIGITS);
}

bool dw_seal_good(const uint8_t *json, size_t n_json, const void *rest, size_t n_rest)
{
    char digits[DW_SEAL_DIGITS + 1];
    size_t at = find_digits(json, n_json);
    if (at == n_json)
        return false;
    dw_seal_make(digits, json, n_json, at, rest, n_rest);
    return memcmp(json + at, digits, DW_SEAL_DIGITS) == 0;
}

dw_status dw_seal_write(dw_writer *w, const char *dir, const char *name, dw_error *err)
{
    dw_write_text(w, ",\"seal\":\"" DW_SEAL_BLANK "\"}\n");
    if (!w->failed)
        dw_seal_set(w->bytes, w->n_bytes, NULL, 0);
    char *path = dw_join_path(dir, name);
    dw_status status = w->failed || !path
                           ? dw_fail_memory(err, dir)
                           : dw_write_file(path, w->bytes, w->n_bytes, err);
    dw_free(path);
    dw_writer_release(w);
    return status;
}
