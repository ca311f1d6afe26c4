#include "stream/record_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"

/* ---- names ---- */

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* The same in upper or lower case: to some filesystems they are one. */
static bool ends_like(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcasecmp(text + n - n_end, end) == 0;
}

/* Names of others' are never those of deltawire's own files, which all lie in .deltawire,
 * nor those of weights. */
static const char *reserved_fault(const char *name)
{
    if (name[0] == '.')
        return "begins with a dot";
    if (strncasecmp(name, "deltawire", strlen("deltawire")) == 0)
        return "begins with 'deltawire', which is for deltawire's own files";
    if (ends_like(name, ".safetensors") || ends_like(name, ".safetensors.index.json"))
        return "is a name for weights";
    return NULL;
}

bool dw_file_name_reserved(const char *name)
{
    return reserved_fault(name) != NULL;
}

static const char *name_fault(const char *name)
{
    const size_t n = strlen(name);
    char cleaned[DW_MAX_FILE_NAME + 1];
    if (n == 0)
        return "is empty";
    if (n > DW_MAX_FILE_NAME)
        return "has more than 255 bytes";
    if (strchr(name, '/') || strchr(name, '\\'))
        return "contains a path; only plain names are allowed";
    dw_text_clean(cleaned, sizeof cleaned, name);
    if (strcmp(cleaned, name) != 0)
        return "has control characters or is not UTF-8";
    return reserved_fault(name);
}

bool dw_file_name_valid(const char *name, const char **why)
{
    const char *fault = name_fault(name);
    if (why)
        *why = fault;
    return fault == NULL;
}

/* ---- JSON ---- */

static bool is_white(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

dw_json_look dw_file_json_look(const char *name, const void *given, size_t n_bytes)
{
    const uint8_t *bytes = given;
    size_t first = 0, end = n_bytes;
    if (!ends_with(name, ".json"))
        return DW_JSON_WHOLE;
    while (first < end && is_white(bytes[first]))
        first++;
    while (end > first && is_white(bytes[end - 1]))
        end--;
    if (first == end || bytes[first] == 0) /* 0: a file that has its size already */
        return DW_JSON_TORN;
    if (bytes[first] != '{' && bytes[first] != '[')
        return DW_JSON_NEVER;
    return end - first >= 2 && bytes[end - 1] == (bytes[first] == '{' ? '}' : ']')
               ? DW_JSON_WHOLE
               : DW_JSON_TORN;
}

/* ---- what a writer is given ---- */

static int compare_files(const void *a_, const void *b_)
{
    const dw_file *const *a = a_, *const *b = b_;
    return strcmp((*a)->name, (*b)->name);
}

static dw_status refuse_same_names(const dw_file *files, size_t n_files, dw_error *err)
{
    const dw_file **sorted = dw_alloc_array(n_files, sizeof *sorted);
    if (!sorted)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < n_files; i++)
        sorted[i] = &files[i];
    qsort(sorted, n_files, sizeof *sorted, compare_files);
    dw_status status = DW_OK;
    for (size_t i = 1; status == DW_OK && i < n_files; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            status = dw_fail(err, DW_INVALID, sorted[i]->name,
                             "there are two companion files of this name");
    dw_free(sorted);
    return status;
}

dw_status dw_files_check(const dw_file *files, size_t n_files, dw_error *err)
{
    if (n_files > DW_MAX_FILES)
        return dw_fail(err, DW_INVALID, NULL,
                       "there are %zu companion files, over the limit of %d: publish "
                       "fewer of them",
                       n_files, DW_MAX_FILES);
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < n_files; i++) {
        const dw_file *f = &files[i];
        const char *why;
        if (!f->name || (!f->bytes && f->n_bytes > 0))
            return dw_fail(err, DW_INVALID, NULL,
                           "companion file %zu has no name or no bytes", i);
        char shown[DW_MAX_FILE_NAME + 1]; /* may come from a directory that others fill */
        dw_text_clean(shown, sizeof shown, f->name);
        if (!dw_file_name_valid(f->name, &why))
            return dw_fail(err, DW_INVALID, shown,
                           "this cannot be the name of a companion file: it %s", why);
        if (f->n_bytes > DW_MAX_FILES_BYTES - n_bytes)
            return dw_fail(err, DW_INVALID, shown,
                           "with its %" PRIu64
                           " bytes the companion files have more than "
                           "%u together, which is the limit: leave it out",
                           f->n_bytes, DW_MAX_FILES_BYTES);
        n_bytes += f->n_bytes;
        if (dw_file_json_look(f->name, f->bytes, (size_t)f->n_bytes) != DW_JSON_WHOLE)
            return dw_fail(err, DW_INVALID, shown,
                           "the companion file is not JSON: it is no whole object or "
                           "array. Correct it, or leave it out");
    }
    return refuse_same_names(files, n_files, err);
}

/* ---- lists ---- */

const dw_file_entry *dw_file_list_find(const dw_file_list *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->items[i].name, name) == 0)
            return &list->items[i];
    return NULL;
}

bool dw_file_entry_same(const dw_file_entry *a, const dw_file_entry *b)
{
    return a->n_bytes == b->n_bytes &&
           memcmp(a->sha256, b->sha256, sizeof a->sha256) == 0;
}

uint64_t dw_file_list_bytes(const dw_file_list *list)
{
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < list->n; i++)
        n_bytes += list->items[i].n_bytes;
    return n_bytes;
}

void dw_file_list_release(dw_file_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        dw_free(list->items[i].name);
    dw_free(list->items);
    *list = (dw_file_list){0};
}

dw_status dw_file_list_copy(dw_file_list *out, const dw_file_list *list, dw_error *err)
{
    *out = (dw_file_list){.is_given = list->is_given};
    out->items = dw_alloc_zeroed(list->n, sizeof *out->items);
    if (!out->items)
        return dw_fail_memory(err, NULL);
    for (; out->n < list->n; out->n++) {
        dw_file_entry *entry = &out->items[out->n];
        *entry = list->items[out->n];
        entry->name = dw_copy_string(list->items[out->n].name);
        if (!entry->name) {
            dw_file_list_release(out);
            return dw_fail_memory(err, NULL);
        }
    }
    return DW_OK;
}

/* ---- reading ---- */

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void refuse_same_keys(dw_fields *f, const dw_file_list *list)
{
    if (f->status != DW_OK || list->n < 2)
        return;
    const char **keys = dw_alloc_array(list->n, sizeof *keys);
    if (!keys) {
        dw_fields_fail_memory(f);
        return;
    }
    for (size_t i = 0; i < list->n; i++)
        keys[i] = list->items[i].key;
    qsort(keys, list->n, sizeof *keys, compare_keys);
    for (size_t i = 1; i < list->n; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            dw_fields_fail(f, DW_CORRUPT, "files", "names '%s' twice", keys[i]);
    dw_free(keys);
}

static void read_name(dw_fields *f, dw_file_entry *out, const char *before)
{
    const char *why;
    const char *name = dw_field_text(f, "name", DW_MAX_FILE_NAME);
    if (f->status == DW_OK && !dw_file_name_valid(name, &why))
        dw_fields_fail(f, DW_CORRUPT, "name", "%s", why);
    if (f->status == DW_OK && before && strcmp(before, name) >= 0)
        dw_fields_fail(f, DW_CORRUPT, "name", "does not come after the one before");
    if (f->status != DW_OK)
        return;
    out->name = dw_copy_string(name);
    if (!out->name)
        dw_fields_fail_memory(f);
}

static void read_entry(dw_fields *f, dw_file_entry *out, const char *before,
                       uint64_t *n_total)
{
    uint64_t version;
    read_name(f, out, before);
    const char *key = dw_field_text(f, "key", DW_KEY_TEXT - 1);
    if (f->status == DW_OK && !dw_key_is_file(key, &version))
        dw_fields_fail(f, DW_CORRUPT, "key", "is no name of a companion file's object");
    if (f->status == DW_OK)
        memcpy(out->key, key, strlen(key) + 1);
    out->n_bytes = dw_field_number(f, "bytes");
    if (f->status == DW_OK && out->n_bytes > DW_MAX_FILES_BYTES - *n_total)
        dw_fields_fail(f, DW_CORRUPT, "bytes",
                       "brings the files to more than %u bytes, the limit",
                       DW_MAX_FILES_BYTES);
    *n_total += f->status == DW_OK ? out->n_bytes : 0;
    dw_field_sha256(f, out->sha256, "sha256");
}

void dw_field_files(dw_fields *f, dw_file_list *out)
{
    if (f->status != DW_OK || !dw_json_get(f->object, "files"))
        return;
    const dw_json *list = dw_field_array(f, "files");
    const size_t n = dw_json_size(list);
    if (n > DW_MAX_FILES)
        dw_fields_fail(f, DW_CORRUPT, "files", "has %zu entries, over the limit of %d", n,
                       DW_MAX_FILES);
    if (f->status != DW_OK)
        return;
    out->items = dw_alloc_zeroed(n, sizeof *out->items);
    if (!out->items) {
        dw_fields_fail_memory(f);
        return;
    }
    out->is_given = true;
    out->n = n;
    uint64_t n_total = 0;
    const dw_json *item = dw_json_first(list);
    for (size_t i = 0; item && f->status == DW_OK; i++, item = dw_json_next(list, item)) {
        char path[40];
        snprintf(path, sizeof path, "files[%zu].", i);
        dw_fields entry = {
            .object = item, .path = path, .where = f->where, .err = f->err};
        if (dw_json_is_object(item))
            read_entry(&entry, &out->items[i], i > 0 ? out->items[i - 1].name : NULL,
                       &n_total);
        else
            dw_fields_fail(f, DW_CORRUPT, "files", "has at %zu no object", i);
        if (f->status == DW_OK)
            f->status = entry.status;
    }
    refuse_same_keys(f, out);
}

/* ---- writing ---- */

void dw_write_files(dw_writer *out, const dw_file_list *list)
{
    dw_write_u8(out, '[');
    for (size_t i = 0; i < list->n; i++) {
        const dw_file_entry *entry = &list->items[i];
        char sha256[DW_SHA256_TEXT];
        dw_hex_encode(sha256, entry->sha256, DW_SHA256_BYTES);
        dw_write_text(out, i ? ",{\"name\":" : "{\"name\":");
        dw_write_json_string(out, entry->name);
        dw_write_text(out, ",\"key\":");
        dw_write_json_string(out, entry->key);
        dw_write_format(out, ",\"bytes\":%" PRIu64 ",\"sha256\":\"%s\"}", entry->n_bytes,
                        sha256);
    }
    dw_write_u8(out, ']');
}
