#include "weights/checkpoint_target.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "deltawire/checkpoint.h"
#include "tensor/shard_index.h"

#define PATCH_NAME  ".deltawire-patch"
#define STAGED_NAME ".deltawire-staged"

/* PATH without symbolic links; dw_free. */
static dw_status resolve(char **out, const char *path, dw_error *err)
{
    char *real = realpath(path, NULL);
    if (!real)
        return dw_fail_errno(err, path, "resolve");
    *out = dw_copy_string(real);
    free(real);
    return *out ? DW_OK : dw_fail_memory(err, path);
}

/* If an index beside FILE names it as a shard, sets *DIR to its directory and *FIRST to
 * the first file of the index, both for dw_free; else leaves them NULL. */
static dw_status find_index_of(char **dir, char **first, const char *file, dw_error *err)
{
    char *parent = dw_parent_path(file);
    char *path = parent ? dw_join_path(parent, DW_SHARD_INDEX_NAME) : NULL;
    bool exists = false, readable = false;
    dw_shard_index index;
    dw_status status =
        path ? dw_file_exists(path, &exists, err) : dw_fail_memory(err, file);
    if (status == DW_OK && exists) {
        status = dw_shard_index_read(&index, path, err);
        readable = status == DW_OK;
        if (status == DW_CORRUPT || status == DW_INVALID)
            status = DW_OK; /* an index that cannot be read names no shard */
    }
    if (readable) {
        const char *name = file + strlen(parent) + (strcmp(parent, "/") != 0);
        bool listed = false;
        for (size_t i = 0; i < index.n_files; i++)
            listed = listed || strcmp(index.files[i], name) == 0;
        if (listed) {
            *first = dw_join_path(parent, index.files[0]);
            *dir = parent;
            parent = NULL;
            if (!*first)
                status = dw_fail_memory(err, file);
        }
        dw_shard_index_release(&index);
    }
    dw_free(path);
    dw_free(parent);
    return status;
}

static dw_status find_identity(dw_target *t, const dw_checkpoint *ckpt, dw_error *err)
{
    const char *index = dw_checkpoint_index(ckpt);
    char *parent = index ? dw_parent_path(index) : NULL;
    if (index && !parent)
        return dw_fail_memory(err, t->path);
    const char *first = dw_checkpoint_file(ckpt, 0); /* an index may name no file */
    dw_status status = resolve(&t->identity, parent ? parent : first, err);
    if (status == DW_OK)
        status = resolve(&t->lock_path, first ? first : parent, err);
    dw_free(parent);
    if (status != DW_OK || index)
        return status;
    char *dir = NULL, *first_shard = NULL;
    status = find_index_of(&dir, &first_shard, t->identity, err);
    if (status == DW_OK && dir) {
        dw_free(t->identity);
        dw_free(t->lock_path);
        t->identity = dir;
        t->lock_path = NULL;
        dir = NULL;
        status = resolve(&t->lock_path, first_shard, err);
    }
    dw_free(dir);
    dw_free(first_shard);
    return status;
}

void dw_target_release(dw_target *t)
{
    dw_checkpoint_close(t->ckpt);
    if (t->lock >= 0) /* the lock last */
        close(t->lock);
    dw_free(t->path);
    dw_free(t->identity);
    dw_free(t->patch_path);
    dw_free(t->staged_path);
    dw_free(t->lock_path);
    *t = (dw_target){.lock = -1};
}

/* A file beside the checkpoint; NULL when out of memory. */
static char *name_beside(const dw_target *t, bool is_dir, const char *name)
{
    size_t n_bytes = strlen(t->identity) + strlen(name) + 2;
    char *path = dw_alloc(n_bytes);
    if (path)
        snprintf(path, n_bytes, "%s%s%s", t->identity, is_dir ? "/" : "", name);
    return path;
}

dw_status dw_target_identify(dw_target *t, const char *path, dw_error *err)
{
    *t = (dw_target){.path = dw_copy_string(path), .lock = -1};
    if (!t->path)
        return dw_fail_memory(err, path);
    dw_checkpoint *ckpt;
    struct stat st;
    dw_status status = dw_checkpoint_open(&ckpt, path, DW_CHECKPOINT_READ, err);
    if (status == DW_OK) {
        status = find_identity(t, ckpt, err);
        dw_checkpoint_close(ckpt);
    }
    if (status == DW_OK && stat(t->identity, &st) != 0)
        status = dw_fail_errno(err, t->identity, "look at");
    if (status == DW_OK) {
        t->patch_path = name_beside(t, S_ISDIR(st.st_mode), PATCH_NAME);
        t->staged_path = name_beside(t, S_ISDIR(st.st_mode), STAGED_NAME);
        if (!t->patch_path || !t->staged_path)
            status = dw_fail_memory(err, path);
    }
    if (status != DW_OK)
        dw_target_release(t);
    return status;
}

dw_status dw_target_remove_patch(const char *dir, dw_error *err)
{
    static const char *const names[] = {
        PATCH_NAME, STAGED_NAME, DW_WEIGHTS_NAME PATCH_NAME, DW_WEIGHTS_NAME STAGED_NAME};
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < sizeof names / sizeof *names; i++) {
        char *path = dw_join_path(dir, names[i]);
        status = path ? dw_remove_file(path, err) : dw_fail_memory(err, dir);
        dw_free(path);
    }
    return status;
}

dw_status dw_target_lock(dw_target *t, dw_error *err)
{
    /* writable, because locks over NFS ask for that */
    t->lock = open(t->lock_path, O_RDWR | O_CLOEXEC);
    if (t->lock < 0)
        return dw_fail_errno(err, t->lock_path, "open");
    if (flock(t->lock, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK
                   ? dw_fail(err, DW_CONFLICT, t->path,
                             "another process is applying to this checkpoint")
                   : dw_fail_errno(err, t->lock_path, "lock");
    return DW_OK;
}
