/* The file of the weights: its layout, its directory, and filling it. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "weights/own_dir.h"
#include "weights/target_inside.h"
#include "tensor/safetensors.h"
#include "tensor/shard_index.h"
#include "tensor/tensor_list.h"

/* ---- layout ---- */

typedef struct layout {
    dw_writer header;
    dw_tensor *tensors; /* [n] in the order of the file */
    uint64_t n_bytes;   /* of the file */
} layout;

/* The layout of the stock library. */
static dw_status layout_make(layout *out, const dw_target *r, dw_error *err)
{
    const size_t n = r->n_tensors;
    *out = (layout){.tensors = dw_alloc_array(n, sizeof *out->tensors)};
    if (!out->tensors)
        return dw_fail_memory(err, r->dir);
    if (n > 0) {
        memcpy(out->tensors, r->tensors, n * sizeof *out->tensors);
        qsort(out->tensors, n, sizeof *out->tensors, dw_safetensors_compare);
    }
    uint64_t n_data = 0;
    for (size_t i = 0; i < n; i++)
        n_data += r->tensors[i].n_bytes;
    static const dw_pair format = {"format", "pt"}; /* some loaders ask for it */
    dw_status status =
        dw_safetensors_header(&out->header, out->tensors, n, &format, 1, r->dir, err);
    out->n_bytes = out->header.n_bytes + n_data;
    return status;
}

static void layout_release(layout *l)
{
    dw_writer_release(&l->header);
    dw_free(l->tensors);
}

/* ---- filling ---- */

/* Points the tensors into BYTES, or nowhere if that is NULL. */
static void point_into(dw_target *r, const layout *l, uint8_t *bytes)
{
    uint8_t *at = bytes ? bytes + l->header.n_bytes : NULL;
    for (size_t i = 0; i < r->n_tensors; i++) {
        dw_tensor *t = bsearch(&l->tensors[i], r->tensors, r->n_tensors, sizeof *t,
                               dw_tensor_compare_names);
        t->data = at;
        at = at ? at + t->n_bytes : NULL;
    }
}

/* Fills a file that has no name yet, and digests it. */
static dw_status fill_file(dw_target *r, dw_new_file *file, const layout *l,
                           const dw_position *position, dw_fill_fn source, void *context,
                           dw_error *err)
{
    int failed = posix_fallocate(file->fd, 0, (off_t)l->n_bytes);
    if (failed)
        return dw_fail(err, DW_IO, file->path,
                       "there is no room for the model's %" PRIu64 " bytes: %s",
                       l->n_bytes, strerror(failed));
    dw_map map;
    dw_status status =
        dw_map_open_fd(&map, file->fd, (size_t)l->n_bytes, true, file->path, err);
    if (status != DW_OK)
        return status;
    point_into(r, l, map.bytes);
    status = dw_map_copy(map.bytes, l->header.bytes, l->header.n_bytes, err);
    if (status == DW_OK)
        status = source(context, r->tensors, r->n_tensors, err);
    if (status == DW_OK)
        status = dw_target_digest(r, err);
    if (status == DW_OK)
        status = dw_target_check(r, position, err);
    if (status == DW_OK)
        status = dw_map_sync(&map, file->path, err);
    dw_map_close(&map);
    point_into(r, l, NULL);
    return status;
}

/* ---- its directory ---- */

/* Whether NAME is a shard of a checkpoint, or their index. */
static bool is_of_shards(const char *name)
{
    return strcmp(name, DW_SHARD_INDEX_NAME) == 0 ||
           (strncmp(name, "model-", 6) == 0 && strstr(name, "-of-") &&
            dw_name_ends(name, ".safetensors"));
}

/* Removes damaged shards, which loaders would take beside the new file. */
static dw_status remove_shards(const char *path, dw_error *err)
{
    DIR *dir = opendir(path);
    if (!dir)
        return dw_fail_errno(err, path, "read the directory");
    dw_status status = DW_OK;
    for (struct dirent *e; status == DW_OK && (e = readdir(dir)) != NULL;) {
        if (!is_of_shards(e->d_name))
            continue;
        char *file = dw_join_path(path, e->d_name);
        status = file ? dw_remove_file(file, err) : dw_fail_memory(err, path);
        dw_free(file);
    }
    closedir(dir);
    return status;
}

static dw_status make_file(dw_target *r, const char *path, const dw_position *position,
                           dw_fill_fn source, void *context, dw_error *err)
{
    layout l = {0};
    dw_new_file file = {.fd = -1};
    dw_status status = layout_make(&l, r, err);
    char *via = NULL;
    if (status == DW_OK)
        status = dw_own_via(&via, path, err);
    if (status == DW_OK)
        status = dw_new_file_open_via(&file, path, via, err);
    dw_free(via);
    if (status == DW_OK)
        status = fill_file(r, &file, &l, position, source, context, err);
    if (status == DW_OK)
        status = dw_position_write(&dw_nowhere, position, r->dir, err);
    if (status == DW_OK && r->was_damaged)
        status = remove_shards(r->dir, err);
    if (status == DW_OK)
        status = dw_new_file_commit(&file, err);
    else
        dw_new_file_abort(&file);
    layout_release(&l);
    return status;
}

dw_status dw_target_fill_dir(dw_target *r, const dw_position *position, dw_fill_fn source,
                             void *context, dw_error *err)
{
    char *path = dw_join_path(r->dir, DW_WEIGHTS_NAME);
    dw_status status =
        path ? dw_target_remove_patch(r->dir, err) : dw_fail_memory(err, r->dir);
    if (status == DW_OK)
        status = make_file(r, path, position, source, context, err);
    if (status == DW_OK)
        status = dw_target_map_dir(r, err);
    dw_free(path);
    return status;
}
