/* Strings of JSON, for hand-written output. base/json_tree.h reads JSON. */
#ifndef DW_BASE_JSON_H
#define DW_BASE_JSON_H

#include "base/bytes.h"

/* Appends TEXT as a quoted JSON string, spelled as serde_json does: only quotes,
 * backslashes and control bytes are escaped. */
void dw_write_json_string(dw_writer *w, const char *text);

/* The bytes of the UTF-8 character at TEXT, which ends in a NUL; 0 if there is no valid
 * one. */
size_t dw_utf8_bytes(const char *text);

/* Whether TEXT is UTF-8 as Unicode defines it: shortest forms only, no surrogates,
 * nothing above U+10FFFF. */
bool dw_utf8_valid(const char *text);

/* Appends TEXT with U+FFFD in place of each byte that is not UTF-8. */
void dw_write_utf8(dw_writer *w, const char *text);

/* Appends V, which is finite, with so many digits. The point does not depend on the
 * locale. */
void dw_write_real(dw_writer *w, double v, int n_digits);

#endif
