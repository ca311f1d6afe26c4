#include "stream/record_fields.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"
#include "base/mem.h"

#define MAX_RANKS  100000 /* a rank has five digits in a key */
#define DIGEST_END ((1ull << 61) - 1)

void dw_fields_release(dw_fields *f)
{
    dw_json_free(f->root);
    f->root = NULL;
    f->object = NULL;
}

void dw_fields_fail(dw_fields *f, dw_status code, const char *name, const char *format,
                    ...)
{
    if (f->status != DW_OK)
        return;
    char fault[512];
    va_list args;
    va_start(args, format);
    vsnprintf(fault, sizeof fault, format, args);
    va_end(args);
    f->status = dw_fail(f->err, code, f->where, "member '%s%s' %s", f->path, name, fault);
}

void dw_fields_fail_memory(dw_fields *f)
{
    if (f->status == DW_OK)
        f->status = dw_fail_memory(f->err, f->where);
}

static const dw_json *require(dw_fields *f, const char *name)
{
    if (f->status != DW_OK)
        return NULL;
    const dw_json *value = dw_json_get(f->object, name);
    if (!value)
        dw_fields_fail(f, DW_CORRUPT, name, "is missing");
    return value;
}

const dw_json *dw_field_array(dw_fields *f, const char *name)
{
    const dw_json *value = require(f, name);
    if (!value || dw_json_is_array(value))
        return value;
    dw_fields_fail(f, DW_CORRUPT, name, "is not an array");
    return NULL;
}

const dw_json *dw_field_object(dw_fields *f, const char *name)
{
    const dw_json *value = require(f, name);
    if (!value || dw_json_is_object(value))
        return value;
    dw_fields_fail(f, DW_CORRUPT, name, "is not an object");
    return NULL;
}

bool dw_json_number(uint64_t *out, const dw_json *value)
{
    uint64_t n;
    if (!dw_json_unsigned(value, &n) || n >= DW_NUMBER_END)
        return false;
    *out = n;
    return true;
}

uint64_t dw_field_number(dw_fields *f, const char *name)
{
    uint64_t number = 0;
    const dw_json *value = require(f, name);
    if (value && !dw_json_number(&number, value))
        dw_fields_fail(f, DW_CORRUPT, name, "is not an integer from 0 to 2^53 - 1");
    return number;
}

uint64_t dw_field_version(dw_fields *f, const char *name)
{
    uint64_t number = DW_NO_VERSION;
    const dw_json *value = require(f, name);
    if (value && !dw_json_is_null(value) && !dw_json_number(&number, value))
        dw_fields_fail(f, DW_CORRUPT, name,
                       "is neither null nor an integer from 0 to 2^53 - 1");
    return number;
}

void dw_field_null(dw_fields *f, const char *name)
{
    const dw_json *value = require(f, name);
    if (value && !dw_json_is_null(value))
        dw_fields_fail(f, DW_CORRUPT, name, "is not null");
}

const char *dw_field_text(dw_fields *f, const char *name, size_t max)
{
    const dw_json *value = require(f, name);
    if (!value)
        return "";
    const char *text = dw_json_string(value);
    if (!text)
        dw_fields_fail(f, DW_CORRUPT, name, "is not a string");
    else if (strlen(text) > max)
        dw_fields_fail(f, DW_CORRUPT, name, "has %zu bytes, over the limit of %zu",
                       strlen(text), max);
    return f->status == DW_OK ? text : "";
}

char *dw_field_note(dw_fields *f, const char *name)
{
    const char *text = dw_field_text(f, name, DW_MAX_NOTE);
    if (f->status != DW_OK)
        return NULL;
    char *copy = dw_copy_string(text);
    if (!copy)
        dw_fields_fail_memory(f);
    return copy;
}

static void take_hex(dw_fields *f, uint8_t *out, size_t n_bytes, const char *name)
{
    const dw_json *value = require(f, name);
    const char *text = dw_json_string(value);
    if (value && (!text || !dw_hex_decode(out, n_bytes, text)))
        dw_fields_fail(f, DW_CORRUPT, name, "is not %zu lower-case hexadecimal digits",
                       2 * n_bytes);
}

void dw_field_id(dw_fields *f, char out[DW_ID_TEXT], const char *name)
{
    uint8_t bytes[(DW_ID_TEXT - 1) / 2] = {0};
    take_hex(f, bytes, sizeof bytes, name);
    dw_hex_encode(out, bytes, sizeof bytes);
}

void dw_field_sha256(dw_fields *f, uint8_t out[DW_SHA256_BYTES], const char *name)
{
    take_hex(f, out, DW_SHA256_BYTES, name);
}

void dw_field_rank(dw_fields *f, uint32_t *rank, uint32_t *n_ranks)
{
    const uint64_t own = dw_field_number(f, "rank");
    const uint64_t all = dw_field_number(f, "n_ranks");
    if (all > MAX_RANKS)
        dw_fields_fail(f, DW_CORRUPT, "n_ranks", "is over the limit of %d", MAX_RANKS);
    if (own >= all)
        dw_fields_fail(f, DW_CORRUPT, "rank", "is not below 'n_ranks'");
    if (f->status != DW_OK)
        return;
    *rank = (uint32_t)own;
    *n_ranks = (uint32_t)all;
}

dw_digest dw_field_digest(dw_fields *f, const char *name)
{
    uint8_t bytes[8] = {0};
    dw_digest digest = 0;
    take_hex(f, bytes, sizeof bytes, name);
    for (size_t i = 0; i < sizeof bytes; i++)
        digest = digest << 8 | bytes[i];
    if (digest >= DIGEST_END)
        dw_fields_fail(f, DW_CORRUPT, name, "is not below 2^61 - 1");
    return digest;
}

void dw_field_time(dw_fields *f, char out[DW_TIME_ROOM], const char *name)
{
    const char *text = dw_field_text(f, name, DW_TIME_ROOM - 1);
    size_t n = strlen(text);
    if (n == 0 || strspn(text, "0123456789-:.TZ") != n)
        dw_fields_fail(f, DW_CORRUPT, name, "is not a time as 2026-11-15T05:20:59.123Z");
    memcpy(out, text, n + 1);
}

void dw_field_times(dw_fields *f, dw_times *out, const char *(*name)(unsigned moment))
{
    if (f->status != DW_OK || !dw_json_get(f->object, "times"))
        return;
    dw_fields times = *f;
    times.object = dw_field_object(f, "times");
    times.path = "times.";
    times.status = f->status;
    for (unsigned i = 0; times.status == DW_OK && i < DW_N_MOMENTS; i++)
        if (dw_json_get(times.object, name(i)))
            out->us[i] = dw_field_number(&times, name(i));
    f->status = times.status;
}
