#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLACEMENT   "\xef\xbf\xbd" /* U+FFFD */
#define N_REPLACEMENT 3

/* Bytes of the UTF-8 character at P, or 0 where there is none: jansson tells. */
static size_t character_bytes(const char *p)
{
    for (size_t n = 1; n <= 4 && p[n - 1]; n++) {
        json_t *character = json_stringn(p, n);
        if (character) {
            json_decref(character);
            return n;
        }
    }
    return 0;
}

static json_t *replace_invalid(const char *text)
{
    char *valid = malloc(N_REPLACEMENT * strlen(text) + 1);
    if (!valid)
        return NULL;
    char *to = valid;
    while (*text) {
        size_t n = character_bytes(text);
        memcpy(to, n ? text : REPLACEMENT, n ? n : N_REPLACEMENT);
        to += n ? n : N_REPLACEMENT;
        text += n ? n : 1;
    }
    json_t *string = json_stringn(valid, (size_t)(to - valid));
    free(valid);
    return string;
}

void cli_json_text(json_t *object, const char *key, const char *text)
{
    json_t *string = json_string(text);
    json_object_set_new(object, key, string ? string : replace_invalid(text));
}

void cli_json_count(json_t *object, const char *key, uint64_t n)
{
    json_object_set_new(object, key, json_integer((json_int_t)n));
}

void cli_json_digest(json_t *object, const char *key, dw_digest digest)
{
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, digest);
    json_object_set_new(object, key, json_string(text));
}

void cli_json_real(json_t *object, const char *key, double v)
{
    json_object_set_new(object, key, isfinite(v) ? json_real(v) : json_null());
}

void cli_json_print(json_t *object)
{
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(object);
}
