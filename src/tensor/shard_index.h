/* model.safetensors.index.json: lists the file of each tensor.
 *
 *     {"metadata": {"total_size": N}, "weight_map": {TENSOR: FILE, ...}}
 */
#ifndef DW_TENSOR_SHARD_INDEX_H
#define DW_TENSOR_SHARD_INDEX_H

#include "base/json_tree.h"
#include "deltawire/base.h"
#include "deltawire/tensor.h"

#define DW_SHARD_INDEX_NAME     "model.safetensors.index.json"
#define DW_SHARD_INDEX_MAX_SIZE 100000000u

typedef struct dw_shard_entry {
    const char *name;
    const char *file;
} dw_shard_entry;

typedef struct dw_shard_index {
    dw_json *root;           /* owns all the text below */
    dw_shard_entry *entries; /* of weight_map, ascending by name */
    size_t n_entries;
    const char **files; /* each file once, in the order of first mention */
    size_t n_files;
} dw_shard_index;

/* Files must be plain names, so that an index never leads out of its own directory. Links
 * in the directory are followed, as model caches need. */
dw_status dw_shard_index_parse(dw_shard_index *out, const void *text, size_t n_bytes,
                               const char *path, dw_error *err);
dw_status dw_shard_index_read(dw_shard_index *out, const char *path, dw_error *err);
void dw_shard_index_release(dw_shard_index *index);

/* Checks that the index places each of these tensors of FILE in FILE. */
dw_status dw_shard_index_check_file(const dw_shard_index *index, const char *file,
                                    const dw_tensor *tensors, size_t n_tensors,
                                    const char *path, dw_error *err);

#endif
