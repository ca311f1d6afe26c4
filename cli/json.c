#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deltawire/stream.h>

#include "new_file.h"

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

json_t *cli_json_integer(uint64_t n)
{
    if (n <= INT64_MAX)
        return json_integer((json_int_t)n);
    return json_sprintf("%" PRIu64, n);
}

void cli_json_count(json_t *object, const char *key, uint64_t n)
{
    json_object_set_new(object, key, cli_json_integer(n));
}

void cli_json_version(json_t *object, const char *key, uint64_t version)
{
    json_object_set_new(
        object, key, version == DW_NO_VERSION ? json_null() : cli_json_integer(version));
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

static bool dump(const json_t *object, FILE *out)
{
    bool fine = json_dumpf(object, out, JSON_COMPACT | JSON_REAL_PRECISION(6)) == 0;
    return putc('\n', out) != EOF && fine;
}

void cli_json_print(json_t *object)
{
    dump(object, stdout);
    json_decref(object);
}

void cli_json_event(json_t *object)
{
    cli_json_print(object);
    fflush(stdout);
}

dw_status cli_json_save(const json_t *object, const char *path, dw_error *err)
{
    cli_new_file file;
    dw_status status = cli_new_file_open(&file, path, err);
    if (status != DW_OK)
        return status;
    return cli_new_file_close(&file, dump(object, file.file), err);
}
