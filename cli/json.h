/* JSON on stdout. Paths and names may hold any bytes: what is not UTF-8 is replaced,
 * so that the output always parses. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <jansson.h>
#include <stdint.h>

#include <deltawire/digest.h>

void cli_json_text(json_t *object, const char *key, const char *text);
void cli_json_count(json_t *object, const char *key, uint64_t n);
void cli_json_digest(json_t *object, const char *key, dw_digest digest);

/* Rounded to what a measurement is worth; null where it is not finite. */
void cli_json_real(json_t *object, const char *key, double v);

/* Prints the object on one line; takes it. */
void cli_json_print(json_t *object);

#endif
