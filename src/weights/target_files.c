#include "weights/target_files.h"

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
#include "weights/own_dir.h"
#include "weights/position.h"
#include "inner.h"

#define PATCH_NAME  "patch"
#define STAGED_NAME "staged"

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

static dw_status find_identity(dw_target_files *t, const dw_checkpoint *ckpt,
                               dw_error *err)
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

void dw_target_files_release(dw_target_files *t)
{
    dw_checkpoint_close(t->ckpt);
    if (t->lock >= 0) /* the lock last */
        close(t->lock);
    dw_free(t->path);
    dw_free(t->identity);
    dw_free(t->dir);
    dw_free(t->own);
    dw_free(t->patch_path);
    dw_free(t->staged_path);
    dw_free(t->lock_path);
    *t = (dw_target_files){.lock = -1};
}

/* DIR/.deltawire/NAME or DIR/.deltawire/FILE.NAME; NULL when out of memory. */
static char *name_own(const dw_target_files *t, const char *file, const char *name)
{
    char *own = file ? dw_own_path(t->dir, file) : NULL;
    if (!file)
        return dw_own_path(t->dir, name);
    const size_t n_bytes = own ? strlen(own) + strlen(name) + 2 : 0;
    char *path = own ? dw_alloc(n_bytes) : NULL;
    if (path)
        snprintf(path, n_bytes, "%s.%s", own, name);
    dw_free(own);
    return path;
}

dw_status dw_target_files_find(dw_target_files *t, const char *path, dw_error *err)
{
    *t = (dw_target_files){.path = dw_copy_string(path), .lock = -1};
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
        const bool is_dir = S_ISDIR(st.st_mode);
        const char *file = is_dir ? NULL : strrchr(t->identity, '/') + 1;
        t->dir = is_dir ? dw_copy_string(t->identity) : dw_parent_path(t->identity);
        t->own = t->dir ? dw_join_path(t->dir, DW_OWN_DIR) : NULL;
        t->patch_path = t->dir ? name_own(t, file, PATCH_NAME) : NULL;
        t->staged_path = t->dir ? name_own(t, file, STAGED_NAME) : NULL;
        if (!t->own || !t->patch_path || !t->staged_path)
            status = dw_fail_memory(err, path);
    }
    if (status != DW_OK)
        dw_target_files_release(t);
    return status;
}

/* Sets *EXISTS if there is a patch file, and then NAMED and *KIND. A writer names the
 * patch before it is there, until it is gone. */
static dw_status find_patch(const dw_target_files *t, bool *exists, dw_patch_seal *named,
                            dw_record_kind *kind, dw_error *err)
{
    *exists = false;
    dw_status status = dw_own_dir_check(t->dir, err);
    if (status == DW_OK)
        status = dw_file_exists(t->patch_path, exists, err);
    return status == DW_OK && *exists ? dw_position_read_patch(named, kind, t->dir, err)
                                      : status;
}

dw_status dw_target_files_pending(const dw_target_files *t, bool *pending, dw_error *err)
{
    dw_patch_seal named = {0};
    dw_record_kind kind = DW_RECORD_NONE;
    dw_status status = find_patch(t, pending, &named, &kind, err);
    *pending = *pending && (kind != DW_RECORD_SEALED || named.n_bytes > 0);
    return status;
}

dw_status dw_target_files_may_finish(const dw_target_files *t, bool *may, dw_error *err)
{
    dw_patch_seal found, named = {0};
    dw_record_kind kind = DW_RECORD_NONE;
    dw_status status = find_patch(t, may, &named, &kind, err);
    if (status != DW_OK || !*may || kind == DW_RECORD_NONE)
        return status;
    status = dw_patch_read_seal(&found, t->patch_path, err);
    *may =
        named.n_bytes > 0 && found.n_bytes == named.n_bytes && found.hash == named.hash;
    return status;
}

dw_status dw_target_remove_patch(const char *dir, dw_error *err)
{
    static const char *const names[] = {PATCH_NAME, STAGED_NAME,
                                        DW_WEIGHTS_NAME "." PATCH_NAME,
                                        DW_WEIGHTS_NAME "." STAGED_NAME};
    dw_status status = dw_own_dir_check(dir, err);
    for (size_t i = 0; status == DW_OK && i < sizeof names / sizeof *names; i++) {
        char *path = dw_own_path(dir, names[i]);
        status = path ? dw_remove_file(path, err) : dw_fail_memory(err, dir);
        dw_free(path);
    }
    return status;
}

dw_status dw_target_files_lock(dw_target_files *t, dw_error *err)
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
