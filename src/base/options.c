#include "base/options.h"

#include <string.h>

#include "base/error.h"

#define MAX_STRUCT_BYTES 65536 /* a larger value means that struct_bytes was not set */

static int is_zero(const unsigned char *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        if (bytes[i] != 0)
            return 0;
    return 1;
}

dw_status dw_options_take(void *out, size_t n_bytes, const void *given, const char *type,
                          dw_error *err)
{
    if (!given)
        return DW_OK;
    size_t given_bytes;
    memcpy(&given_bytes, given, sizeof given_bytes);
    if (given_bytes <= sizeof given_bytes || given_bytes % sizeof given_bytes != 0 ||
        given_bytes > MAX_STRUCT_BYTES)
        return dw_fail(err, DW_INVALID, NULL,
                       "struct_bytes of a %s is %zu: it must be sizeof(%s)", type,
                       given_bytes, type);
    if (given_bytes > n_bytes &&
        !is_zero((const unsigned char *)given + n_bytes, given_bytes - n_bytes))
        return dw_fail(err, DW_UNSUPPORTED, NULL,
                       "a %s has members set that this version of the library does not "
                       "know: update the library",
                       type);
    memcpy(out, given, given_bytes < n_bytes ? given_bytes : n_bytes);
    memcpy(out, &n_bytes, sizeof n_bytes);
    return DW_OK;
}
