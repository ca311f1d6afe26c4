/* A checkpoint on disk in the test's own directory, an old and a new version of it, and
 * the delta between them. Include after cmocka.h. */
#ifndef DW_TEST_DISK_MODEL_H
#define DW_TEST_DISK_MODEL_H

#include <errno.h>
#include <sys/stat.h>
#include "random_model.h"
#include "temp_dir.h"

enum { DISK_FILES = 3 }; /* two shards and an index, or one file */

typedef struct disk_model {
    char dir[256];
    char path[300]; /* the path of the checkpoint */
    char patch[320];
    size_t n_files;
    char files[DISK_FILES][320];
    uint8_t *old_bytes[DISK_FILES], *new_bytes[DISK_FILES];
    size_t n_bytes[DISK_FILES];
    model old_model, new_model;
    dw_delta *delta;
} disk_model;

static inline void disk_load(disk_model *d, uint8_t *bytes[DISK_FILES])
{
    for (size_t i = 0; i < d->n_files; i++)
        bytes[i] = get_file(d->files[i], &d->n_bytes[i]);
}

/* Restores the old files, and removes all others. */
static inline void disk_reset(const disk_model *d)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s'", d->dir, d->dir);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < d->n_files; i++)
        put_file(d->files[i], d->old_bytes[i], d->n_bytes[i]);
}

static inline bool disk_is(const disk_model *d, uint8_t *const bytes[DISK_FILES])
{
    bool same = true;
    for (size_t i = 0; same && i < d->n_files; i++) {
        size_t n;
        uint8_t *found = get_file(d->files[i], &n);
        same = n == d->n_bytes[i] && memcmp(found, bytes[i], n) == 0;
        free(found);
    }
    return same;
}

static inline bool disk_is_old(const disk_model *d)
{
    return disk_is(d, d->old_bytes);
}

static inline bool disk_is_new(const disk_model *d)
{
    return disk_is(d, d->new_bytes);
}

static inline bool disk_has_patch(const disk_model *d)
{
    return access(d->patch, F_OK) == 0;
}

static inline void disk_make_own_dir(const disk_model *d)
{
    char own[400];
    snprintf(own, sizeof own, "%s/.deltawire", d->dir);
    assert_true(mkdir(own, 0777) == 0 || errno == EEXIST);
}

/* Whether there are no files except the checkpoint and the patch. */
static inline bool disk_is_tidy(const disk_model *d)
{
    return count_files(d->dir) == d->n_files + disk_has_patch(d);
}

static inline void disk_write(disk_model *d, const model *m, bool sharded)
{
    dw_checkpoint_write_options o = {.struct_bytes = sizeof o,
                                     .max_shard_bytes =
                                         sharded ? model_bytes(m) / 4 * 3 : 0};
    dw_error err = {0};
    dw_status status = dw_checkpoint_write(d->path, m->tensors, m->n, &o, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(status, DW_OK);
}

/* Makes NAME below the temporary directory; SCALE sets the size. */
static inline void disk_make(disk_model *d, const char *name, bool sharded,
                             uint64_t scale)
{
    *d = (disk_model){0};
    snprintf(d->dir, sizeof d->dir, "%s/%s", temp_dir, name);
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s'", d->dir, d->dir);
    assert_int_equal(system(command), 0);
    d->old_model = model_new(4);
    const uint64_t dims[] = {scale, 10};
    model_set(&d->old_model, 0, "a", DW_BF16, 2, dims, 0);
    model_set(&d->old_model, 1, "b", DW_BF16, 2, dims, 0);
    model_set(&d->old_model, 2, "c", DW_U8, 0, NULL, 0);
    model_set(&d->old_model, 3, "d", DW_BF16, 2, dims, 0);
    model_fill(&d->old_model);
    d->new_model = model_copy(&d->old_model, false);
    model_change(&d->new_model, 30);
    assert_int_equal(dw_delta_diff(&d->delta, d->old_model.tensors, d->new_model.tensors,
                                   4, NULL, NULL),
                     DW_OK);
    if (sharded) {
        snprintf(d->path, sizeof d->path, "%s", d->dir);
        snprintf(d->patch, sizeof d->patch, "%s/.deltawire/patch", d->dir);
        d->n_files = 3;
        snprintf(d->files[0], sizeof d->files[0], "%s/model.safetensors.index.json",
                 d->dir);
        for (unsigned i = 1; i <= 2; i++)
            snprintf(d->files[i], sizeof d->files[i],
                     "%s/model-%05u-of-00002.safetensors", d->dir, i);
    } else {
        snprintf(d->path, sizeof d->path, "%s/model.safetensors", d->dir);
        snprintf(d->patch, sizeof d->patch, "%s/.deltawire/model.safetensors.patch",
                 d->dir);
        d->n_files = 1;
        snprintf(d->files[0], sizeof d->files[0], "%s", d->path);
    }
    disk_write(d, &d->new_model, sharded);
    disk_load(d, d->new_bytes);
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s'", d->dir, d->dir);
    assert_int_equal(system(command), 0);
    disk_write(d, &d->old_model, sharded);
    disk_load(d, d->old_bytes);
}

static inline void disk_free(disk_model *d)
{
    for (size_t i = 0; i < d->n_files; i++) {
        free(d->old_bytes[i]);
        free(d->new_bytes[i]);
    }
    model_free(&d->old_model);
    model_free(&d->new_model);
    dw_delta_close(d->delta);
}

#endif
