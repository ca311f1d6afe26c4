#include "tensor/shard_index.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"

static bool is_plain_name(const char *file)
{
    return file[0] != '\0' && !strchr(file, '/') && strcmp(file, ".") != 0 &&
           strcmp(file, "..") != 0;
}

static dw_status check_entry(const dw_shard_entry *e, const char *path, dw_error *err)
{
    if (!e->file)
        return dw_fail_tensor(err, DW_CORRUPT, path, e->name,
                              "its file in weight_map is not a string");
    if (!is_plain_name(e->file))
        return dw_fail_tensor(err, DW_CORRUPT, path, e->name,
                              "its file '%s' is not a plain name in this directory",
                              e->file);
    return DW_OK;
}

static dw_status read_entries(dw_shard_index *index, const dw_json *map, const char *path,
                              dw_error *err)
{
    index->entries = dw_alloc_array(dw_json_size(map), sizeof *index->entries);
    if (!index->entries)
        return dw_fail_memory(err, path);
    for (const dw_json *k = dw_json_first(map); k; k = dw_json_next(map, k)) {
        dw_shard_entry *e = &index->entries[index->n_entries++];
        *e = (dw_shard_entry){dw_json_string(k), dw_json_string(dw_json_value(k))};
        dw_status status = check_entry(e, path, err);
        if (status != DW_OK)
            return status;
    }
    return DW_OK;
}

/* Strings of the tree are in the order of the text. */
static int compare_places(const void *a, const void *b)
{
    const char *left = *(const char *const *)a, *right = *(const char *const *)b;
    return left < right ? -1 : left > right;
}

static int compare_files(const void *a, const void *b)
{
    int order = strcmp(*(const char *const *)a, *(const char *const *)b);
    return order ? order : compare_places(a, b);
}

static dw_status list_files(dw_shard_index *index, const char *path, dw_error *err)
{
    const char **files = dw_alloc_array(index->n_entries, sizeof *files);
    if (!files)
        return dw_fail_memory(err, path);
    index->files = files;
    for (size_t i = 0; i < index->n_entries; i++)
        files[i] = index->entries[i].file;
    qsort(files, index->n_entries, sizeof *files, compare_files);
    size_t n = 0;
    for (size_t i = 0; i < index->n_entries; i++)
        if (n == 0 || strcmp(files[n - 1], files[i]) != 0)
            files[n++] = files[i];
    qsort(files, n, sizeof *files, compare_places);
    index->n_files = n;
    return DW_OK;
}

static int compare_names(const void *a, const void *b)
{
    const dw_shard_entry *left = a, *right = b;
    return strcmp(left->name, right->name);
}

dw_status dw_shard_index_parse(dw_shard_index *out, const void *text, size_t n_bytes,
                               const char *path, dw_error *err)
{
    *out = (dw_shard_index){0};
    dw_status status = dw_json_read(&out->root, text, n_bytes, "index", path, err);
    if (status != DW_OK)
        return status;
    const dw_json *map = dw_json_get(out->root, "weight_map");
    if (dw_json_is_object(map))
        status = read_entries(out, map, path, err);
    else
        status = dw_fail(err, DW_CORRUPT, path, "the index holds no weight_map object");
    if (status == DW_OK)
        status = list_files(out, path, err);
    if (status == DW_OK)
        qsort(out->entries, out->n_entries, sizeof *out->entries, compare_names);
    else
        dw_shard_index_release(out);
    return status;
}

dw_status dw_shard_index_read(dw_shard_index *out, const char *path, dw_error *err)
{
    uint8_t *bytes;
    size_t n_bytes;
    *out = (dw_shard_index){0};
    dw_status status = dw_read_file(&bytes, &n_bytes, path, DW_SHARD_INDEX_MAX_SIZE, err);
    if (status == DW_OK)
        status = dw_shard_index_parse(out, bytes, n_bytes, path, err);
    dw_free(bytes);
    return status;
}

void dw_shard_index_release(dw_shard_index *index)
{
    dw_free(index->files);
    dw_free(index->entries);
    dw_json_free(index->root);
    *index = (dw_shard_index){0};
}

dw_status dw_shard_index_check_file(const dw_shard_index *index, const char *file,
                                    const dw_tensor *tensors, size_t n_tensors,
                                    const char *path, dw_error *err)
{
    for (size_t i = 0; i < n_tensors; i++) {
        const dw_shard_entry wanted = {.name = tensors[i].name};
        const dw_shard_entry *found = bsearch(&wanted, index->entries, index->n_entries,
                                              sizeof *index->entries, compare_names);
        if (!found)
            return dw_fail_tensor(err, DW_CORRUPT, path, wanted.name,
                                  "the index does not name it");
        if (strcmp(found->file, file) != 0)
            return dw_fail_tensor(err, DW_CORRUPT, path, wanted.name,
                                  "it is here, but the index places it in '%s'",
                                  found->file);
    }
    return DW_OK;
}
