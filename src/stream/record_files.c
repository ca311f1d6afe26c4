#include "stream/record_files.h"

#include <inttypes.h>
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

/* ---- in a record ---- */

static const dw_member members[] = {
    DW_MEMBER(dw_file_entry, name, "name", TEXT),
    DW_MEMBER(dw_file_entry, key, "key", LABEL),
    DW_MEMBER(dw_file_entry, n_bytes, "bytes", NUMBER),
    DW_MEMBER(dw_file_entry, sha256, "sha256", SHA256),
    {0},
};

static void check_entry(dw_fields *f, const void *value)
{
    const dw_file_entry *entry = value;
    uint64_t version;
    const char *why;
    if (!dw_file_name_valid(entry->name, &why))
        dw_fields_fail(f, DW_CORRUPT, "name", "%s", why);
    if (!dw_key_is_file(entry->key, &version))
        dw_fields_fail(f, DW_CORRUPT, "key", "is no name of a companion file's object");
}

static const dw_member_list entries = {members, sizeof(dw_file_entry),
                                       offsetof(dw_file_entry, key), DW_MAX_FILES,
                                       check_entry};

static void read_files(dw_fields *f, const char *name, void *value)
{
    dw_file_list *out = value;
    out->items = dw_field_items(f, name, &entries, &out->n);
    out->is_given = true;
    uint64_t n_bytes = 0;
    for (size_t i = 0; f->status == DW_OK && i < out->n; i++) {
        const dw_file_entry *entry = &out->items[i];
        if (i > 0 && strcmp(entry[-1].name, entry->name) >= 0)
            dw_fields_fail(f, DW_CORRUPT, name,
                           "has '%s', which does not come after the name before",
                           entry->name);
        if (entry->n_bytes > DW_MAX_FILES_BYTES - n_bytes)
            dw_fields_fail(f, DW_CORRUPT, name,
                           "has more than %u bytes together, the limit",
                           DW_MAX_FILES_BYTES);
        n_bytes += entry->n_bytes;
    }
}

static void write_files(dw_writer *out, const void *value)
{
    const dw_file_list *list = value;
    dw_write_items(out, &entries, list->items, list->n);
}

void dw_file_list_release(dw_file_list *list)
{
    dw_items_release(&entries, list->items, list->n);
    *list = (dw_file_list){0};
}

static void release_files(void *list)
{
    dw_file_list_release(list);
}

static bool is_given(const void *list)
{
    return ((const dw_file_list *)list)->is_given;
}

const dw_member_own dw_files_member = {read_files, write_files, release_files, is_given};
