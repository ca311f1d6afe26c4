#include "deltawire/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/options.h"
#include "tensor/checkpoint.h"
#include "tensor/device.h"
#include "tensor/safetensors.h"
#include "tensor/shard_index.h"
#include "tensor/tensor_list.h"

/* Copies the tensors, sorted by name. The header's own limits are checked when it is
 * written. */
static dw_status sort_tensors(dw_tensor **out, const dw_tensor *tensors, size_t n_tensors,
                              const char *path, dw_error *err)
{
    for (size_t i = 0; i < n_tensors; i++) {
        if (!tensors[i].name)
            return dw_fail(err, DW_INVALID, path, "tensor %zu has no name", i);
        if (!tensors[i].data && tensors[i].n_bytes > 0)
            return dw_fail_tensor(err, DW_INVALID, path, tensors[i].name,
                                  "it has no data");
    }
    dw_tensor *sorted = dw_alloc_array(n_tensors, sizeof *sorted);
    if (!sorted)
        return dw_fail_memory(err, path);
    if (n_tensors > 0)
        memcpy(sorted, tensors, n_tensors * sizeof *sorted);
    qsort(sorted, n_tensors, sizeof *sorted, dw_tensor_compare_names);
    for (size_t i = 1; i < n_tensors; i++) {
        if (strcmp(sorted[i - 1].name, sorted[i].name) == 0) {
            dw_status status = dw_fail_tensor(err, DW_INVALID, path, sorted[i].name,
                                              "two tensors have this name");
            dw_free(sorted);
            return status;
        }
    }
    *out = sorted;
    return DW_OK;
}

static dw_status check_metadata(const dw_checkpoint_write_options *options,
                                const char *path, dw_error *err)
{
    for (size_t i = 0; i < options->n_metadata; i++) /* only a few */
        for (size_t j = 0; j < i; j++)
            if (strcmp(options->metadata[i].key, options->metadata[j].key) == 0)
                return dw_fail(err, DW_INVALID, path, "metadata '%.200s' is given twice",
                               options->metadata[i].key);
    return DW_OK;
}

/* Writes one file. Sorts the tensors into the stock order. */
static dw_status write_file(const char *path, dw_tensor *tensors, size_t n_tensors,
                            const dw_checkpoint_write_options *options, dw_error *err)
{
    qsort(tensors, n_tensors, sizeof *tensors, dw_safetensors_compare);
    dw_new_file file = {.fd = -1};
    dw_writer header = {0};
    dw_status status = dw_safetensors_header(
        &header, tensors, n_tensors, options->metadata, options->n_metadata, path, err);
    if (status == DW_OK)
        status = dw_new_file_open(&file, path, err);
    if (status == DW_OK)
        status = dw_new_file_write(&file, header.bytes, header.n_bytes, err);
    for (size_t i = 0; i < n_tensors && status == DW_OK; i++)
        status = dw_new_file_write(&file, tensors[i].data, tensors[i].n_bytes, err);
    if (status == DW_OK)
        status = dw_new_file_commit(&file, err);
    else
        dw_new_file_abort(&file);
    dw_writer_release(&header);
    return status;
}

/* ---- shards ----------------------------------------------------------------- */

/* A set of shards under construction. The path buffer is allocated first, so that
 * clean-up needs no memory. */
typedef struct shard_set {
    const char *dir;
    char *path;
    size_t path_size;
    size_t n_shards;
    bool made_dir;
    dw_writer index; /* the text of the index so far */
} shard_set;

static const char *index_path(shard_set *set)
{
    snprintf(set->path, set->path_size, "%s/" DW_SHARD_INDEX_NAME, set->dir);
    return set->path;
}

static const char *shard_path(shard_set *set, size_t i)
{
    snprintf(set->path, set->path_size, "%s/model-%05zu-of-%05zu.safetensors", set->dir,
             i + 1, set->n_shards);
    return set->path;
}

size_t dw_shard_fill(const dw_tensor *tensors, size_t n_tensors, uint64_t max_bytes)
{
    uint64_t used = 0;
    size_t n = 0;
    for (; n < n_tensors; n++) {
        uint64_t n_bytes = tensors[n].n_bytes;
        if (used > 0 && (used > max_bytes || n_bytes > max_bytes - used))
            break;
        used += n_bytes;
    }
    return n;
}

size_t dw_shard_count(const dw_tensor *tensors, size_t n_tensors, uint64_t max_bytes)
{
    size_t n_shards = 0;
    for (size_t at = 0; at < n_tensors; n_shards++)
        at += dw_shard_fill(tensors + at, n_tensors - at, max_bytes);
    return n_shards;
}

static dw_status make_directory(shard_set *set, dw_error *err)
{
    if (mkdir(set->dir, 0777) == 0) {
        set->made_dir = true;
        return dw_sync_parent(set->dir, err);
    }
    if (errno != EEXIST)
        return dw_fail_errno(err, set->dir, "create the directory");
    struct stat st;
    if (stat(set->dir, &st) == 0 && !S_ISDIR(st.st_mode))
        return dw_fail(err, DW_INVALID, set->dir, "shards need a directory, not a file");
    /* readers of an old index would find a mix of old and new shards; and after a failure
     * only files that were not there before may be removed */
    bool taken = stat(index_path(set), &st) == 0;
    for (size_t i = 0; i < set->n_shards && !taken; i++)
        taken = stat(shard_path(set, i), &st) == 0;
    if (taken)
        return dw_fail(err, DW_CONFLICT, set->dir,
                       "a sharded checkpoint is here already: remove it first");
    return DW_OK;
}

static void list_in_index(shard_set *set, const dw_tensor *tensors, size_t n_tensors,
                          size_t shard)
{
    const char *file = shard_path(set, shard) + strlen(set->dir) + 1;
    for (size_t i = 0; i < n_tensors; i++) {
        dw_write_text(&set->index, shard == 0 && i == 0 ? "\n" : ",\n");
        dw_write_text(&set->index, "    ");
        dw_write_json_string(&set->index, tensors[i].name);
        dw_write_format(&set->index, ": \"%s\"", file);
    }
}

static dw_status write_index(shard_set *set, dw_error *err)
{
    const char *path = index_path(set);
    if (set->index.failed)
        return dw_fail_memory(err, path);
    dw_new_file file;
    dw_status status = dw_new_file_open(&file, path, err);
    if (status != DW_OK)
        return status;
    status = dw_new_file_write(&file, set->index.bytes, set->index.n_bytes, err);
    if (status == DW_OK)
        status = dw_new_file_commit(&file, err);
    else
        dw_new_file_abort(&file);
    return status;
}

/* Writes the files. After a failure it removes them; none existed before. TENSORS and so
 * the shards are sorted by name: each range is listed in the index before write_file
 * reorders it. */
static dw_status write_shard_files(shard_set *set, dw_tensor *tensors, size_t n_tensors,
                                   const dw_checkpoint_write_options *options,
                                   dw_error *err)
{
    uint64_t total = 0;
    for (size_t i = 0; i < n_tensors; i++)
        total += tensors[i].n_bytes;
    dw_write_format(&set->index,
                    "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n"
                    "  \"weight_map\": {",
                    total);
    dw_status status = DW_OK;
    size_t n_done = 0;
    for (size_t at = 0; at < n_tensors && status == DW_OK; n_done++) {
        size_t n = dw_shard_fill(tensors + at, n_tensors - at, options->max_shard_bytes);
        list_in_index(set, tensors + at, n, n_done);
        status = write_file(shard_path(set, n_done), tensors + at, n, options, err);
        at += n;
    }
    dw_write_text(&set->index, "\n  }\n}\n");
    if (status == DW_OK)
        status = write_index(set, err);
    if (status != DW_OK) {
        unlink(index_path(set));
        while (n_done > 0)
            unlink(shard_path(set, --n_done));
    }
    return status;
}

static dw_status write_shards(const char *dir, dw_tensor *tensors, size_t n_tensors,
                              const dw_checkpoint_write_options *options, dw_error *err)
{
    shard_set set = {
        .dir = dir,
        .path_size = strlen(dir) + 80, /* the numbers have at most 20 digits */
        .n_shards = dw_shard_count(tensors, n_tensors, options->max_shard_bytes),
    };
    set.path = dw_alloc(set.path_size);
    if (!set.path)
        return dw_fail_memory(err, dir);
    dw_status status = make_directory(&set, err);
    if (status == DW_OK)
        status = write_shard_files(&set, tensors, n_tensors, options, err);
    if (status != DW_OK && set.made_dir)
        rmdir(dir);
    dw_writer_release(&set.index);
    dw_free(set.path);
    return status;
}

dw_status dw_checkpoint_write(const char *path, const dw_tensor *tensors,
                              size_t n_tensors, const dw_checkpoint_write_options *given,
                              dw_error *err)
{
    dw_checkpoint_write_options options;
    dw_tensor *sorted = NULL;
    dw_status status = DW_OPTIONS_TAKE(dw_checkpoint_write_options, &options, given, err);
    if (status == DW_OK)
        status = check_metadata(&options, path, err);
    if (status == DW_OK)
        status = dw_tensors_need_host(tensors, n_tensors, "write a checkpoint", err);
    if (status == DW_OK)
        status = sort_tensors(&sorted, tensors, n_tensors, path, err);
    if (status == DW_OK && options.max_shard_bytes > 0)
        status = write_shards(path, sorted, n_tensors, &options, err);
    else if (status == DW_OK)
        status = write_file(path, sorted, n_tensors, &options, err);
    dw_free(sorted);
    return status;
}
