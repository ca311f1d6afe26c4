#include "stream/record_fields.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "stream/record_seal.h"

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

/* ---- single members ---- */

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

const dw_json *dw_field_list(dw_fields *f, const char *name, size_t max, size_t *n)
{
    const dw_json *list = dw_field_array(f, name);
    *n = dw_json_size(list);
    if (*n > max)
        dw_fields_fail(f, DW_CORRUPT, name, "has %zu entries, over the limit of %zu", *n,
                       max);
    return f->status == DW_OK ? list : NULL;
}

bool dw_field_object(dw_fields *inside, dw_fields *f, const char *name)
{
    *inside = *f;
    inside->object = require(f, name);
    snprintf(inside->path, sizeof inside->path, "%s.", name);
    if (f->status == DW_OK && !dw_json_is_object(inside->object))
        dw_fields_fail(f, DW_CORRUPT, name, "is not an object");
    return f->status == DW_OK;
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

static void read_null(dw_fields *f, const char *name)
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

static void read_hex(dw_fields *f, uint8_t *out, size_t n_bytes, const char *name)
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
    read_hex(f, bytes, sizeof bytes, name);
    dw_hex_encode(out, bytes, sizeof bytes);
}

/* ---- kinds ---- */

static uint64_t read_number(dw_fields *f, const dw_member *m)
{
    const uint64_t number = dw_field_number(f, m->name);
    if (m->is_optional && number == 0)
        dw_fields_fail(f, DW_CORRUPT, m->name, "is 0");
    if (m->kind == DW_MEMBER_RANK && number > MAX_RANKS)
        dw_fields_fail(f, DW_CORRUPT, m->name, "is over the limit of %d", MAX_RANKS);
    return f->status == DW_OK ? number : 0;
}

static uint64_t read_version(dw_fields *f, const char *name)
{
    const dw_json *value = require(f, name);
    return dw_json_is_null(value) ? DW_NO_VERSION : dw_field_number(f, name);
}

static const char *read_text(dw_fields *f, const dw_member *m, size_t max)
{
    const char *text = dw_field_text(f, m->name, max);
    if (f->status == DW_OK && m->of && (!*text || text[strspn(text, m->of)]))
        dw_fields_fail(f, DW_CORRUPT, m->name, "is not a word of %s",
                       (const char *)m->of);
    return text;
}

static char *read_copy(dw_fields *f, const dw_member *m)
{
    const char *text = read_text(f, m, DW_MAX_NOTE);
    char *copy = f->status == DW_OK ? dw_copy_string(text) : NULL;
    if (!copy)
        dw_fields_fail_memory(f);
    return copy;
}

static void read_time(dw_fields *f, char *out, const dw_member *m)
{
    const char *text = dw_field_text(f, m->name, m->n_bytes - 1);
    const size_t n = strlen(text);
    if (n == 0 || strspn(text, "0123456789-:.TZ") != n)
        dw_fields_fail(f, DW_CORRUPT, m->name,
                       "is not a time as 2026-11-15T05:20:59.123Z");
    memcpy(out, text, n + 1);
}

static dw_digest read_digest(dw_fields *f, const char *name)
{
    uint8_t bytes[8] = {0};
    dw_digest digest = 0;
    read_hex(f, bytes, sizeof bytes, name);
    for (size_t i = 0; i < sizeof bytes; i++)
        digest = digest << 8 | bytes[i];
    if (digest >= DIGEST_END)
        dw_fields_fail(f, DW_CORRUPT, name, "is not below 2^61 - 1");
    return digest;
}

static void read_word(dw_fields *f, void *out, const dw_member *m)
{
    const char *const *words = m->of;
    const char *text = dw_field_text(f, m->name, 32);
    unsigned i = 0;
    while (words[i] && strcmp(words[i], text) != 0)
        i++;
    if (!words[i])
        dw_fields_fail(f, DW_CORRUPT, m->name, "is '%s', which is not known here", text);
    else if (m->n_bytes == sizeof(bool))
        *(bool *)out = i > 0;
    else
        *(unsigned *)out = i;
}

static void read_object(dw_fields *f, void *out, const dw_member *m)
{
    dw_fields inside;
    if (!dw_field_object(&inside, f, m->name))
        return;
    dw_members_read(&inside, m->of, out);
    f->status = inside.status;
}

static void read_value(dw_fields *f, const dw_member *m, void *holder)
{
    void *out = (char *)holder + m->at;
    switch (m->kind) {
    case DW_MEMBER_NUMBER:
        *(uint64_t *)out = read_number(f, m);
        break;
    case DW_MEMBER_RANK:
        *(uint32_t *)out = (uint32_t)read_number(f, m);
        break;
    case DW_MEMBER_VERSION:
        *(uint64_t *)out = read_version(f, m->name);
        break;
    case DW_MEMBER_TEXT:
        *(char **)out = read_copy(f, m);
        break;
    case DW_MEMBER_LABEL:
        strcpy(out, read_text(f, m, m->n_bytes - 1));
        break;
    case DW_MEMBER_CLEANED:
        dw_text_clean(out, m->n_bytes, dw_field_text(f, m->name, DW_MAX_NOTE));
        break;
    case DW_MEMBER_TIME:
        read_time(f, out, m);
        break;
    case DW_MEMBER_ID:
        dw_field_id(f, out, m->name);
        break;
    case DW_MEMBER_SHA256:
        read_hex(f, out, DW_SHA256_BYTES, m->name);
        break;
    case DW_MEMBER_DIGEST:
        *(dw_digest *)out = read_digest(f, m->name);
        break;
    case DW_MEMBER_TRUE:
        *(bool *)out = dw_field_number(f, m->name) == 1;
        if (!*(bool *)out)
            dw_fields_fail(f, DW_CORRUPT, m->name, "is not 1");
        break;
    case DW_MEMBER_WORD:
        read_word(f, out, m);
        break;
    case DW_MEMBER_OBJECT:
        read_object(f, out, m);
        break;
    case DW_MEMBER_OWN:
        ((const dw_member_own *)m->of)->read(f, m->name, out);
        break;
    }
}

static void write_hex(dw_writer *out, const uint8_t *bytes, size_t n_bytes)
{
    char text[DW_SHA256_TEXT];
    dw_hex_encode(text, bytes, n_bytes);
    dw_write_format(out, "\"%s\"", text);
}

static void write_number(dw_writer *out, uint64_t number)
{
    if (number == DW_NO_VERSION)
        dw_write_text(out, "null");
    else
        dw_write_format(out, "%" PRIu64, number);
}

static void write_value(dw_writer *out, const dw_member *m, const void *holder)
{
    const void *value = (const char *)holder + m->at;
    const char *text;
    switch (m->kind) {
    case DW_MEMBER_NUMBER:
    case DW_MEMBER_VERSION:
        write_number(out, *(const uint64_t *)value);
        break;
    case DW_MEMBER_RANK:
        write_number(out, *(const uint32_t *)value);
        break;
    case DW_MEMBER_TEXT:
        text = *(char *const *)value;
        dw_write_json_string(out, text ? text : "");
        break;
    case DW_MEMBER_LABEL:
    case DW_MEMBER_CLEANED:
    case DW_MEMBER_TIME:
    case DW_MEMBER_ID:
        dw_write_json_string(out, value);
        break;
    case DW_MEMBER_SHA256:
        write_hex(out, value, DW_SHA256_BYTES);
        break;
    case DW_MEMBER_DIGEST:
        dw_write_format(out, "\"%016" PRIx64 "\"", *(const dw_digest *)value);
        break;
    case DW_MEMBER_TRUE:
        dw_write_u8(out, '1');
        break;
    case DW_MEMBER_WORD:
        text = ((const char *const *)
                    m->of)[m->n_bytes == sizeof(bool) ? *(const bool *)value
                                                      : *(const unsigned *)value];
        dw_write_json_string(out, text);
        break;
    case DW_MEMBER_OBJECT:
        dw_write_u8(out, '{');
        dw_members_write(out, m->of, value, true);
        dw_write_u8(out, '}');
        break;
    case DW_MEMBER_OWN:
        ((const dw_member_own *)m->of)->write(out, value);
        break;
    }
}

/* Of an optional member. A struct is empty if it begins with an empty text. */
static bool is_given(const dw_member *m, const void *holder)
{
    const unsigned char *value = (const unsigned char *)holder + m->at;
    const size_t n = m->kind == DW_MEMBER_LABEL || m->kind == DW_MEMBER_CLEANED ||
                             m->kind == DW_MEMBER_OBJECT
                         ? 1
                         : m->n_bytes;
    if (m->kind == DW_MEMBER_OWN)
        return ((const dw_member_own *)m->of)->is_given(value);
    for (size_t i = 0; i < n; i++)
        if (value[i])
            return true;
    return false;
}

/* ---- tables ---- */

static void read_member(dw_fields *f, const dw_member *m, void *holder)
{
    const bool applies = !m->applies || m->applies(holder);
    if (f->status != DW_OK)
        return;
    if (!applies && m->or_null)
        read_null(f, m->name);
    else if (!applies && dw_json_get(f->object, m->name))
        dw_fields_fail(f, DW_CORRUPT, m->name, "does not belong to this record");
    else if (applies && (!m->is_optional || dw_json_get(f->object, m->name)))
        read_value(f, m, holder);
}

void dw_members_read(dw_fields *f, const dw_member *members, void *holder)
{
    for (const dw_member *m = members; m->name; m++)
        read_member(f, m, holder);
}

void dw_members_write(dw_writer *out, const dw_member *members, const void *holder,
                      bool is_first)
{
    for (const dw_member *m = members; m->name; m++) {
        const bool applies = !m->applies || m->applies(holder);
        if (applies ? m->is_optional && !is_given(m, holder) : !m->or_null)
            continue;
        dw_write_format(out, "%s\"%s\":", is_first ? "" : ",", m->name);
        is_first = false;
        if (applies)
            write_value(out, m, holder);
        else
            dw_write_text(out, "null");
    }
}

void dw_members_release(const dw_member *members, void *holder)
{
    for (const dw_member *m = members; m->name; m++) {
        void *value = (char *)holder + m->at;
        const dw_member_own *own = m->kind == DW_MEMBER_OWN ? m->of : NULL;
        if (m->kind == DW_MEMBER_TEXT)
            dw_free(*(char **)value);
        else if (m->kind == DW_MEMBER_OBJECT)
            dw_members_release(m->of, value);
        else if (own && own->release)
            own->release(value);
    }
}

/* ---- lists ---- */

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void refuse_same_keys(dw_fields *f, const char *name, const dw_member_list *list,
                             const char *items, size_t n)
{
    if (f->status != DW_OK || n < 2)
        return;
    const char **keys = dw_alloc_array(n, sizeof *keys);
    if (!keys) {
        dw_fields_fail_memory(f);
        return;
    }
    for (size_t i = 0; i < n; i++)
        keys[i] = items + i * list->n_bytes + list->key_at;
    qsort(keys, n, sizeof *keys, compare_keys);
    for (size_t i = 1; i < n; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            dw_fields_fail(f, DW_CORRUPT, name, "names '%s' twice", keys[i]);
    dw_free(keys);
}

void *dw_field_items(dw_fields *f, const char *name, const dw_member_list *list,
                     size_t *n)
{
    const dw_json *array = dw_field_list(f, name, list->max, n);
    char *items = array ? dw_alloc_zeroed(*n, list->n_bytes) : NULL;
    if (!items) {
        dw_fields_fail_memory(f);
        *n = 0;
        return NULL;
    }
    char *item = items;
    const dw_json *it = dw_json_first(array);
    for (size_t i = 0; it && f->status == DW_OK; i++, it = dw_json_next(array, it)) {
        dw_fields entry = {.object = it, .where = f->where, .err = f->err};
        snprintf(entry.path, sizeof entry.path, "%s[%zu].", name, i);
        if (dw_json_is_object(it))
            dw_members_read(&entry, list->members, item);
        else
            dw_fields_fail(f, DW_CORRUPT, name, "has at %zu no object", i);
        if (f->status == DW_OK && entry.status == DW_OK)
            list->check(&entry, item);
        if (f->status == DW_OK)
            f->status = entry.status;
        item += list->n_bytes;
    }
    refuse_same_keys(f, name, list, items, *n);
    return items;
}

void dw_write_items(dw_writer *out, const dw_member_list *list, const void *items,
                    size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dw_write_text(out, i ? "},{" : "[{");
        dw_members_write(out, list->members, (const char *)items + i * list->n_bytes,
                         true);
    }
    dw_write_text(out, n ? "}]" : "[]");
}

void dw_items_release(const dw_member_list *list, void *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dw_members_release(list->members, (char *)items + i * list->n_bytes);
    dw_free(items);
}

/* ---- records ---- */

dw_status dw_record_parse(const dw_record_type *type, void *out, const void *bytes,
                          size_t n_bytes, const char *where, dw_error *err)
{
    memset(out, 0, type->n_bytes);
    dw_fields f;
    dw_record_seal *seal =
        type->seal_at ? (dw_record_seal *)((char *)out + type->seal_at) : NULL;
    dw_status status = dw_record_open(&f, out, seal, type->kind, type->max_bytes, bytes,
                                      n_bytes, where, err);
    if (status != DW_OK)
        return status;
    dw_members_read(&f, type->members, out);
    if (f.status == DW_OK && type->check)
        type->check(&f, out);
    dw_fields_release(&f);
    if (f.status != DW_OK)
        dw_record_release(type, out);
    return f.status;
}

/* No writer puts a record that readers refuse. */
static dw_status read_back(const dw_record_type *type, const uint8_t *bytes,
                           size_t n_bytes, dw_error *err)
{
    dw_error fault = {0};
    void *record = dw_alloc(type->n_bytes);
    if (!record)
        return dw_fail_memory(err, NULL);
    const dw_status status = dw_record_parse(type, record, bytes, n_bytes, NULL, &fault);
    if (status == DW_OK)
        dw_record_release(type, record);
    dw_free(record);
    if (status == DW_OK)
        return DW_OK;
    return status == DW_NO_MEMORY
               ? dw_fail_memory(err, NULL)
               : dw_fail(err, DW_INVALID, NULL, "no reader would take this record: %s",
                         fault.text);
}

/* A failure takes what was written back out of OUT. */
dw_status dw_record_write(const dw_record_type *type, dw_writer *out, void *record,
                          const dw_sign_key *key, dw_error *err)
{
    const size_t start = out->n_bytes;
    dw_record_seal *seal =
        type->seal_at ? (dw_record_seal *)((char *)record + type->seal_at) : NULL;
    for (const dw_member *m = type->members; m->name; m++) {
        char *time = (char *)record + m->at;
        if (m->kind == DW_MEMBER_TIME && !time[0])
            dw_time_format(time, dw_wall_clock_ms());
    }
    dw_record_begin(out, type->kind, record);
    dw_members_write(out, type->members, record, false);
    dw_status status = dw_record_end(out, start, seal, key, err);
    if (status == DW_OK)
        status = read_back(type, out->bytes + start, out->n_bytes - start, err);
    if (status != DW_OK)
        out->n_bytes = start;
    return status;
}

void dw_record_release(const dw_record_type *type, void *record)
{
    dw_members_release(type->members, record);
    memset(record, 0, type->n_bytes);
}
