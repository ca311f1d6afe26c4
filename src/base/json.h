/* JSON: small texts as trees of jansson, and strings for hand-written output.
 * base/json_tree.h reads texts that may be large or that come with a stream or a
 * checkpoint. */
#ifndef DW_BASE_JSON_H
#define DW_BASE_JSON_H

#include <jansson.h>

#include "base/bytes.h"
#include "deltawire/error.h"

/* Parses TEXT, which must hold one object with no duplicate keys, no NUL in any
 * string and valid UTF-8 throughout. SUBJECT ("header", "index") and PATH are for
 * errors. A text with more than 200,000 values is refused. The caller releases *OUT with
 * json_decref. */
dw_status dw_json_parse_object(json_t **out, const void *text, size_t n_bytes,
                               const char *subject, const char *path, dw_error *err);

/* Appends TEXT as a quoted JSON string, spelled as serde_json does: only quotes,
 * backslashes and control bytes are escaped. */
void dw_write_json_string(dw_writer *w, const char *text);

/* The bytes of the UTF-8 character at TEXT, which ends in a NUL; 0 if there is no valid
 * one. */
size_t dw_utf8_bytes(const char *text);

/* Whether TEXT is UTF-8 as Unicode defines it: shortest forms only, no surrogates,
 * nothing above U+10FFFF. */
bool dw_utf8_valid(const char *text);

/* TEXT as a JSON string, with U+FFFD for each byte that is not UTF-8; NULL when out of
 * memory. */
json_t *dw_json_text(const char *text);

#endif
