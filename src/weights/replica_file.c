/* The file of a replica's weights: its layout, its directory, and filling it. */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "weights/replica.h"
#include "tensor/safetensors.h"
#include "tensor/tensor_list.h"

/* ---- layout ---- */

typedef struct layout {
    dw_writer header;
    dw_tensor *tensors; /* [n] in the order of the file */
    uint64_t n_bytes;   /* of the file */
} layout;

/* Sets *PAGE to the size of a page if files consist of whole pages, else to 0. */
static dw_status find_page(uint64_t *page, const char *dir, dw_error *err)
{
    struct statfs fs;
    if (statfs(dir, &fs) != 0)
        return dw_fail_errno(err, dir, "look at the filesystem of");
    *page = fs.f_type == HUGETLBFS_MAGIC ? (uint64_t)fs.f_bsize : 0;
    return DW_OK;
}

/* The layout of the stock library. If the file consists of whole huge pages, the data
 * ends with a page and begins anywhere: the order of types is reversed, so that each
 * tensor is still aligned for its type. */
static dw_status layout_make(layout *out, const dw_replica *r, uint64_t page,
                             dw_error *err)
{
    const size_t n = r->n_tensors;
    *out = (layout){.tensors = dw_alloc_array(n, sizeof *out->tensors)};
    if (!out->tensors)
        return dw_fail_memory(err, r->dir);
    if (n > 0) {
        memcpy(out->tensors, r->tensors, n * sizeof *out->tensors);
        qsort(out->tensors, n, sizeof *out->tensors, dw_safetensors_compare);
    }
    for (size_t i = 0; page > 0 && i < n / 2; i++) {
        dw_tensor t = out->tensors[i];
        out->tensors[i] = out->tensors[n - 1 - i];
        out->tensors[n - 1 - i] = t;
    }
    uint64_t n_data = 0;
    for (size_t i = 0; i < n; i++)
        n_data += r->tensors[i].n_bytes;
    static const dw_pair format = {"format", "pt"}; /* some loaders ask for it */
    dw_status status =
        dw_safetensors_header(&out->header, out->tensors, n, &format, 1, r->dir, err);
    if (status == DW_OK && page > 0)
        status = dw_safetensors_pad(&out->header, n_data, page, r->dir, err);
    out->n_bytes = out->header.n_bytes + n_data;
    return status;
}

static void layout_release(layout *l)
{
    dw_writer_release(&l->header);
    dw_free(l->tensors);
}

/* ---- filling ---- */

/* Points the replica's tensors into BYTES, or nowhere if that is NULL. */
static void point_into(dw_replica *r, const layout *l, uint8_t *bytes)
{
    uint8_t *at = bytes ? bytes + l->header.n_bytes : NULL;
    for (size_t i = 0; i < r->n_tensors; i++) {
        dw_tensor *t = bsearch(&l->tensors[i], r->tensors, r->n_tensors, sizeof *t,
                               dw_tensor_compare_names);
        t->data = at;
        at = at ? at + t->n_bytes : NULL;
    }
}

/* Fills a file that has no name yet, and digests it. All bytes go through the map: on
 * hugetlbfs there is no other way. */
static dw_status fill_file(dw_replica *r, dw_new_file *file, const layout *l,
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
        status = dw_replica_digest(r, NULL, err);
    if (status == DW_OK)
        status = dw_replica_check(r, position, err);
    if (status == DW_OK)
        status = dw_map_sync(&map, file->path, err);
    dw_map_close(&map);
    point_into(r, l, NULL);
    return status;
}

/* ---- its directory ---- */

/* The path of this replica's file in the directory for weights; dw_free. */
static dw_status kept_path(char **out, const dw_replica *r, dw_error *err)
{
    struct stat st;
    char name[NAME_MAX], ending[DW_KEPT_ENDING_SIZE];
    char *dir = realpath(r->weights_dir, NULL);
    if (!dir)
        return dw_fail_errno(err, r->weights_dir, "find the directory for the weights");
    if (stat(r->dir, &st) != 0) {
        free(dir);
        return dw_fail_errno(err, r->dir, "look at");
    }
    const char *last = strrchr(r->dir, '/');
    dw_kept_ending(ending, &st);
    snprintf(name, sizeof name, "%.60s%s", last ? last + 1 : r->dir, ending);
    *out = dw_join_path(dir, name);
    free(dir);
    if (!*out)
        return dw_fail_memory(err, r->dir);
    /* remove an old file that no link leads to any more */
    dw_remove_leftovers(*out);
    return dw_remove_file(*out, err);
}

static dw_status make_file(dw_replica *r, const char *path, const char *dir,
                           const dw_position *position, dw_fill_fn source, void *context,
                           dw_error *err)
{
    uint64_t page = 0;
    layout l = {0};
    dw_new_file file = {.fd = -1};
    dw_status status = find_page(&page, dir, err);
    if (status == DW_OK)
        status = layout_make(&l, r, page, err);
    if (status == DW_OK)
        status = dw_new_file_open(&file, path, err);
    if (status == DW_OK)
        status = fill_file(r, &file, &l, position, source, context, err);
    if (status == DW_OK)
        status = dw_position_write(&dw_nowhere, position, r->dir, err);
    if (status == DW_OK)
        status = dw_new_file_commit(&file, err);
    else
        dw_new_file_abort(&file);
    layout_release(&l);
    return status;
}

dw_status dw_replica_fill_dir(dw_replica *r, const dw_position *position,
                              dw_fill_fn source, void *context, dw_error *err)
{
    char *kept = NULL, *path = dw_join_path(r->dir, DW_WEIGHTS_NAME);
    dw_status status =
        path ? dw_target_remove_patch(r->dir, err) : dw_fail_memory(err, r->dir);
    if (status == DW_OK && r->weights_dir)
        status = kept_path(&kept, r, err);
    if (status == DW_OK)
        status = make_file(r, kept ? kept : path, kept ? r->weights_dir : r->dir,
                           position, source, context, err);
    if (status == DW_OK && kept)
        status = dw_symlink_file(kept, path, err);
    if (status == DW_OK && kept)
        status = dw_sync_parent(path, err);
    if (status == DW_OK)
        status = dw_replica_map_dir(r, err);
    dw_free(kept);
    dw_free(path);
    return status;
}
