/* Reads untrusted JSON in bounded memory.
 *
 * A tree is one block of memory: 8 bytes for each value and key, then a copy of the text
 * in which the strings are decoded. The text is checked in full and its values are
 * counted before anything is allocated. For N bytes of text a tree takes at most
 * 64 MiB + 3 N, and a text that needs more is refused.
 */
#ifndef DW_BASE_JSON_TREE_H
#define DW_BASE_JSON_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deltawire/base.h"

#define DW_JSON_MAX_DEPTH 64
#define DW_JSON_MAX_BYTES (256u << 20)

/* A value in a tree. A missing value is NULL, which every function here accepts. */
typedef struct dw_json {
    uint64_t bits;
} dw_json;

/* Reads TEXT, which must be one object in strict JSON: valid UTF-8, no key twice in an
 * object, no NUL in a string, no integer beyond 64 bits. SUBJECT ("header", "index") and
 * PATH are for errors. The caller frees *OUT with dw_json_free. TEXT is not needed after
 * the call. */
dw_status dw_json_read(dw_json **out, const void *text, size_t n_bytes,
                       const char *subject, const char *path, dw_error *err);

/* The same for what Python's json module writes and reads: also NaN, Infinity, -Infinity
 * and integers of any size, which are no integers for the functions below. */
dw_status dw_json_read_python(dw_json **out, const void *text, size_t n_bytes,
                              const char *subject, const char *path, dw_error *err);

/* The same as dw_json_read for a text that may be any value. */
dw_status dw_json_read_any(dw_json **out, const void *text, size_t n_bytes,
                           const char *subject, const char *path, dw_error *err);

void dw_json_free(dw_json *root);

bool dw_json_is_object(const dw_json *value);
bool dw_json_is_array(const dw_json *value);
bool dw_json_is_null(const dw_json *value);

/* The string, which lives as long as the tree; NULL if VALUE is no string. */
const char *dw_json_string(const dw_json *value);

/* False if VALUE is neither true nor false. */
bool dw_json_bool(const dw_json *value, bool *out);

/* False if VALUE is no integer. */
bool dw_json_integer(const dw_json *value, int64_t *out);
/* ... or is negative. */
bool dw_json_unsigned(const dw_json *value, uint64_t *out);

/* The member NAME of OBJECT. It walks over all members: do not look up many names in a
 * large object. */
const dw_json *dw_json_get(const dw_json *object, const char *name);

/* How many elements or members CONTAINER has, counted one by one; 0 if it is neither
 * array nor object. */
size_t dw_json_size(const dw_json *container);

/* Walks over the elements of an array, or over the keys of an object:
 *
 *     for (const dw_json *it = dw_json_first(c); it; it = dw_json_next(c, it))
 */
const dw_json *dw_json_first(const dw_json *container);
const dw_json *dw_json_next(const dw_json *container, const dw_json *item);
/* The value of a member, by its key. */
const dw_json *dw_json_value(const dw_json *key);

#endif
