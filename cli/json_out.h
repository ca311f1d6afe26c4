/* JSON on stdout. Paths and names may hold any bytes: bytes that are not UTF-8 are
 * replaced, so that the output always parses. */
#ifndef CLI_JSON_OUT_H
#define CLI_JSON_OUT_H

#include <jansson.h>
#include <stdint.h>

#include <deltawire/digest.h>
#include <deltawire/error.h>

void cli_json_text(json_t *object, const char *key, const char *text);

/* JSON integers are signed here: a number above 2^63 - 1 becomes a string of digits. */
json_t *cli_json_integer(uint64_t n);
void cli_json_count(json_t *object, const char *key, uint64_t n);
void cli_json_version(json_t *object, const char *key, uint64_t version); /* or null */
void cli_json_digest(json_t *object, const char *key, dw_digest digest);

/* Rounded to six digits; null if it is not finite. */
void cli_json_real(json_t *object, const char *key, double v);

/* Prints the object on one line; takes it. */
void cli_json_print(json_t *object);

/* The same, and at once: for a stream of events. */
void cli_json_event(json_t *object);

/* The same line as a file, which appears whole or not at all; borrows the object. */
dw_status cli_json_save(const json_t *object, const char *path, dw_error *err);

#endif
