#include "tensor/shard_index.h"

#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

static dw_status load(json_t **root, const char *path, dw_error *err)
{
    dw_map map;
    dw_status status = dw_map_open(&map, path, false, err);
    if (status != DW_OK)
        return status;
    if (map.n_bytes > DW_SHARD_INDEX_MAX_SIZE)
        status = dw_fail(err, DW_CORRUPT, path,
                         "an index of %zu bytes is over the limit of %u", map.n_bytes,
                         DW_SHARD_INDEX_MAX_SIZE);
    else
        status = dw_json_parse_object(root, map.bytes, map.n_bytes, "index", path, err);
    dw_map_close(&map);
    return status;
}

static bool is_plain_name(const char *file)
{
    return file[0] != '\0' && !strchr(file, '/') && strcmp(file, ".") != 0 &&
           strcmp(file, "..") != 0;
}

static dw_status check_entry(const char *name, const json_t *file, const char *path,
                             dw_error *err)
{
    if (!json_is_string(file))
        return dw_fail_tensor(err, DW_CORRUPT, path, name,
                              "its file in weight_map is not a string");
    if (!is_plain_name(json_string_value(file)))
        return dw_fail_tensor(err, DW_CORRUPT, path, name,
                              "its file '%s' is not a plain name in this directory",
                              json_string_value(file));
    return DW_OK;
}

/* Lists every file once. SEEN is a set: a model can have very many shards. */
static dw_status collect_files(dw_shard_index *index, json_t *seen, const char *path,
                               dw_error *err)
{
    json_t *map = index->weight_map;
    for (void *it = json_object_iter(map); it; it = json_object_iter_next(map, it)) {
        const char *name = json_object_iter_key(it);
        json_t *value = json_object_iter_value(it);
        dw_status status = check_entry(name, value, path, err);
        if (status != DW_OK)
            return status;
        const char *file = json_string_value(value);
        if (json_object_get(seen, file))
            continue;
        if (json_object_set(seen, file, value) != 0)
            return dw_fail_memory(err, path);
        index->files[index->n_files++] = file;
    }
    return DW_OK;
}

dw_status dw_shard_index_read(dw_shard_index *out, const char *path, dw_error *err)
{
    *out = (dw_shard_index){0};
    dw_status status = load(&out->root, path, err);
    if (status != DW_OK)
        return status;
    out->weight_map = json_object_get(out->root, "weight_map");
    if (!json_is_object(out->weight_map)) {
        dw_shard_index_release(out);
        return dw_fail(err, DW_CORRUPT, path, "the index holds no weight_map object");
    }
    out->files = dw_alloc_array(json_object_size(out->weight_map), sizeof *out->files);
    json_t *seen = json_object();
    if (out->files && seen)
        status = collect_files(out, seen, path, err);
    else
        status = dw_fail_memory(err, path);
    json_decref(seen);
    if (status != DW_OK)
        dw_shard_index_release(out);
    return status;
}

void dw_shard_index_release(dw_shard_index *index)
{
    dw_free(index->files);
    json_decref(index->root);
    *index = (dw_shard_index){0};
}

dw_status dw_shard_index_check_file(const dw_shard_index *index, const char *file,
                                    const dw_tensor *tensors, size_t n_tensors,
                                    const char *path, dw_error *err)
{
    for (size_t i = 0; i < n_tensors; i++) {
        const char *name = tensors[i].name;
        const char *place = json_string_value(json_object_get(index->weight_map, name));
        if (!place)
            return dw_fail_tensor(err, DW_CORRUPT, path, name,
                                  "the index does not name it");
        if (strcmp(place, file) != 0)
            return dw_fail_tensor(err, DW_CORRUPT, path, name,
                                  "it stands here, but the index places it in '%s'",
                                  place);
    }
    return DW_OK;
}
