/* Structs that callers fill: options and driver tables.
 *
 * Their first member is `size_t struct_bytes`: the size of the struct in the header that
 * the caller was built with. Members are appended, so a struct of an older header is the
 * beginning of ours. A new member never takes the padding at the end of the old struct:
 * callers leave that uninitialised.
 */
#ifndef DW_BASE_OPTIONS_H
#define DW_BASE_OPTIONS_H

#include <stddef.h>

#include "deltawire/base.h"

/* Copies the caller's struct GIVEN over OUT, which has N_BYTES and holds the defaults.
 * Members that GIVEN lacks keep their defaults. GIVEN may be NULL. DW_INVALID if
 * struct_bytes is no size of such a struct, DW_UNSUPPORTED if GIVEN sets members that
 * this library does not know. TYPE names the struct in errors. */
dw_status dw_options_take(void *out, size_t n_bytes, const void *given, const char *type,
                          dw_error *err);

/* The same with the defaults of TYPE_init. */
#define DW_OPTIONS_TAKE(type, out, given, err)                                           \
    (type##_init(out), dw_options_take(out, sizeof *(out), given, #type, err))

#endif
