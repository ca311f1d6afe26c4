/* JSON on stdout. Paths and names may hold any bytes: bytes that are not UTF-8 are
 * replaced, so that the output always parses. */
#ifndef CLI_JSON_OUT_H
#define CLI_JSON_OUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <deltawire/stream.h>
#include <deltawire/tensor.h>
#include <deltawire/base.h>

/* TEXT with U+FFFD in place of each byte that is not UTF-8. */
json_t *cli_json_string(const char *text);
void cli_json_text(json_t *object, const char *key, const char *text);

void cli_json_flag(json_t *object, const char *key, bool v);

/* Adds a number. One above 2^63 - 1 becomes a string of digits, because jansson's
 * integers are signed. */
json_t *cli_json_integer(uint64_t n);
void cli_json_count(json_t *object, const char *key, uint64_t n);
void cli_json_version(json_t *object, const char *key, uint64_t version); /* or null */
void cli_json_digest(json_t *object, const char *key, dw_digest digest);

/* Rounded to six digits; null if it is not finite. */
void cli_json_real(json_t *object, const char *key, double v);

/* "times_ms": {"captured": ..., ...}: NAME has the names of the moments that are known.
 */
void cli_json_times(json_t *object, const dw_times *times,
                    const char *(*name)(unsigned moment));

/* {"code": ..., "where": ..., "text": ...} */
json_t *cli_json_error(const dw_error *err);

/* Prints the object on one line and frees it. */
void cli_json_print(json_t *object);

/* The same, and flushes: for events. */
void cli_json_event(json_t *object);

/* Writes the same line to a file, which appears whole or not at all. Borrows the object.
 */
dw_status cli_json_save(const json_t *object, const char *path, dw_error *err);

#endif
