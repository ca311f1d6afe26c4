#include "weights/companion_list.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_tree.h"
#include "base/mem.h"
#include "codec/seal.h"
#include "weights/companion_files.h"
#include "weights/own_dir.h"

#define FORMAT "deltawire-files/1"
/* Interrupted installs of several versions can add up to more files than one version has.
 */
#define MAX_FILES (8u * DW_MAX_FILES)
#define MAX_BYTES (16u << 20)

void dw_companion_list_release(dw_companion_list *list)
{
    dw_file_list_release(&list->files);
    dw_file_list_release(&list->next);
    *list = (dw_companion_list){0};
}

static bool is_same(const dw_file_entry *a, const dw_file_entry *b)
{
    return a->n_bytes == b->n_bytes && strcmp(a->name, b->name) == 0 &&
           memcmp(a->sha256, b->sha256, sizeof a->sha256) == 0;
}

bool dw_companion_list_same(const dw_file_list *a, const dw_file_list *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++)
        same = is_same(&a->items[i], &b->items[i]);
    return same;
}

dw_status dw_companion_list_add(dw_file_list *list, const dw_file_entry *entry,
                                dw_error *err)
{
    dw_file_entry *items =
        dw_realloc_array(list->items, list->n + 1, sizeof *list->items);
    if (items)
        list->items = items;
    char *name = items ? dw_copy_string(entry->name) : NULL;
    if (!name)
        return dw_fail_memory(err, entry->name);
    items[list->n] = (dw_file_entry){.name = name, .n_bytes = entry->n_bytes};
    memcpy(items[list->n].sha256, entry->sha256, sizeof entry->sha256);
    list->n++;
    return DW_OK;
}

/* ---- writing ---- */

static void write_files(dw_writer *w, const dw_file_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        char sha256[DW_SHA256_TEXT];
        dw_hex_encode(sha256, list->items[i].sha256, DW_SHA256_BYTES);
        dw_write_text(w, i > 0 ? ",{\"name\":" : "{\"name\":");
        dw_write_json_string(w, list->items[i].name);
        dw_write_format(w, ",\"bytes\":%" PRIu64 ",\"sha256\":\"%s\"}",
                        list->items[i].n_bytes, sha256);
    }
}

dw_status dw_companion_list_write(const dw_companion_list *list, const char *dir,
                                  dw_error *err)
{
    if (list->files.n == 0 && list->next.n == 0) {
        char *path = dw_join_path(dir, DW_COMPANION_LIST_NAME);
        dw_status status = path ? dw_remove_file(path, err) : dw_fail_memory(err, dir);
        dw_free(path);
        return status;
    }
    dw_writer w = {0};
    dw_write_text(&w, "{\"format\":\"" FORMAT "\",\"files\":[");
    write_files(&w, &list->files);
    dw_write_u8(&w, ']');
    if (list->next.n > 0) {
        dw_write_text(&w, ",\"next\":[");
        write_files(&w, &list->next);
        dw_write_u8(&w, ']');
    }
    return dw_seal_write(&w, dir, DW_COMPANION_LIST_NAME, err);
}

/* ---- reading ---- */

/* False if it is no list of files. The sizes are not summed up: the files in it may be
 * those of several versions. */
static bool read_files(dw_file_list *out, const dw_json *array, bool *out_of_memory)
{
    if (!dw_json_is_array(array) || dw_json_size(array) > MAX_FILES)
        return false;
    for (const dw_json *item = dw_json_first(array); item;
         item = dw_json_next(array, item)) {
        const char *name = dw_json_string(dw_json_get(item, "name"));
        const char *sha256 = dw_json_string(dw_json_get(item, "sha256"));
        dw_file_entry entry = {.name = (char *)name};
        if (!name || !sha256 ||
            !dw_json_unsigned(dw_json_get(item, "bytes"), &entry.n_bytes) ||
            !dw_file_name_valid(name, NULL) ||
            !dw_hex_decode(entry.sha256, sizeof entry.sha256, sha256) ||
            (out->n > 0 && strcmp(out->items[out->n - 1].name, name) >= 0))
            return false;
        *out_of_memory = dw_companion_list_add(out, &entry, NULL) != DW_OK;
        if (*out_of_memory)
            return false;
    }
    return true;
}

static dw_status parse(dw_companion_list *out, const uint8_t *bytes, size_t n_bytes,
                       const char *path, dw_error *err)
{
    dw_json *root = NULL;
    bool out_of_memory = false;
    if (!dw_seal_good(bytes, n_bytes, NULL, 0))
        return DW_OK;
    dw_status status = dw_json_read(&root, bytes, n_bytes, "list", path, NULL);
    if (status != DW_OK)
        return status == DW_NO_MEMORY ? dw_fail_memory(err, path) : DW_OK;
    const char *format = dw_json_string(dw_json_get(root, "format"));
    const dw_json *next = dw_json_get(root, "next");
    const bool is_good =
        format && strcmp(format, FORMAT) == 0 &&
        read_files(&out->files, dw_json_get(root, "files"), &out_of_memory) &&
        (!next || read_files(&out->next, next, &out_of_memory));
    dw_json_free(root);
    if (out_of_memory)
        return dw_fail_memory(err, path);
    return is_good ? DW_OK
                   : dw_fail(err, DW_UNSUPPORTED, path,
                             "this version of deltawire does not know this list of "
                             "companion files. Use the version that wrote it, or remove "
                             "it: the files that it lists then count as yours");
}

dw_status dw_companion_list_read(dw_companion_list *out, const char *dir, dw_error *err)
{
    *out = (dw_companion_list){0};
    char *path = dw_join_path(dir, DW_COMPANION_LIST_NAME);
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    dw_error fault;
    dw_status status = path ? dw_own_dir_check(dir, &fault) : dw_fail_memory(&fault, dir);
    if (status == DW_OK)
        status = dw_read_file(&bytes, &n_bytes, path, MAX_BYTES, &fault);
    out->exists = status == DW_OK || status == DW_CORRUPT; /* CORRUPT: too long for one */
    if (status == DW_OK)
        status = parse(out, bytes, n_bytes, path, err);
    else if (status == DW_CORRUPT || status == DW_NOT_FOUND)
        status = DW_OK;
    else if (err)
        *err = fault;
    dw_free(bytes);
    dw_free(path);
    if (status != DW_OK)
        dw_companion_list_release(out);
    return status;
}
