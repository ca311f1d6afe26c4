#include "json_out.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deltawire/stream.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

json_t *cli_json_string(const char *text)
{
    dw_writer valid = {0};
    dw_write_utf8(&valid, text);
    json_t *string = NULL;
    if (!valid.failed) /* an empty text has no bytes */
        string = json_stringn_nocheck(valid.n_bytes > 0 ? (const char *)valid.bytes : "",
                                      valid.n_bytes);
    dw_writer_release(&valid);
    return string;
}

void cli_json_text(json_t *object, const char *key, const char *text)
{
    json_object_set_new(object, key, cli_json_string(text));
}

void cli_json_flag(json_t *object, const char *key, bool v)
{
    json_object_set_new(object, key, json_boolean(v));
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

#define DUMP_FLAGS (JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6))

void cli_json_times(json_t *object, const dw_times *times,
                    const char *(*name)(unsigned moment))
{
    json_t *list = json_object();
    for (unsigned i = 0; i < DW_N_MOMENTS; i++)
        if (times->us[i] > 0)
            cli_json_real(list, name(i), 1e-3 * (double)times->us[i]);
    json_object_set_new(object, "times_ms", list);
}

json_t *cli_json_error(const dw_error *err)
{
    json_t *object = json_object();
    cli_json_text(object, "code", dw_status_name(err->code));
    cli_json_text(object, "where", err->where);
    cli_json_text(object, "text", err->text);
    return object;
}

void cli_json_print(json_t *object)
{
    json_dumpf(object, stdout, DUMP_FLAGS);
    putchar('\n');
    json_decref(object);
}

void cli_json_event(json_t *object)
{
    cli_json_print(object);
    fflush(stdout);
}

dw_status cli_json_save(const json_t *object, const char *path, dw_error *err)
{
    char *text = json_dumps(object, DUMP_FLAGS);
    dw_writer line = {0};
    if (text)
        dw_write_text(&line, text);
    dw_write_u8(&line, '\n');
    dw_status status = text && !line.failed
                           ? dw_write_file(path, line.bytes, line.n_bytes, err)
                           : dw_fail_memory(err, path);
    dw_writer_release(&line);
    free(text);
    return status;
}
