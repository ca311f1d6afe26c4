#include "weights/own_files.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "weights/own_dir.h"
#include "inner.h"

static dw_ownership fail_replaced(const char *path, const char *fate, dw_error *err)
{
    dw_fail(err, DW_CONFLICT, path,
            "the file was %s while its weights were kept up to date", fate);
    return DW_FILES_REPLACED;
}

static dw_ownership fail_shared(const char *path, const char *why, dw_error *err)
{
    dw_fail(err, DW_CONFLICT, path,
            "%s: storing to it would change weights that others use. Write a "
            "new checkpoint instead, or replace the file with a copy of its own",
            why);
    return DW_FILES_SHARED;
}

static dw_ownership judge_file(int fd, const char *path, dw_error *err)
{
    struct stat held, named;
    if (fstat(fd, &held) != 0)
        return fail_replaced(path, "lost", err);
    if (lstat(path, &named) != 0)
        return fail_replaced(path, "removed", err);
    const bool is_link = S_ISLNK(named.st_mode);
    if (is_link && stat(path, &named) != 0)
        return fail_replaced(path, "removed", err);
    if (named.st_dev != held.st_dev || named.st_ino != held.st_ino)
        return fail_replaced(path, "replaced", err);
    if (is_link)
        return fail_shared(path, "it is a symbolic link", err);
    if (held.st_nlink > 1)
        return fail_shared(path, "the file has several names (hard links)", err);
    return DW_FILES_OWN;
}

dw_ownership dw_files_judge(const dw_checkpoint *ckpt, dw_error *err)
{
    dw_ownership worst = DW_FILES_OWN;
    for (size_t i = 0; i < dw_checkpoint_file_count(ckpt); i++) {
        dw_error fault;
        dw_ownership found =
            judge_file(dw_checkpoint_fd(ckpt, i), dw_checkpoint_file(ckpt, i), &fault);
        if (found <= worst)
            continue;
        worst = found;
        if (err)
            *err = fault;
    }
    return worst;
}

typedef dw_status (*copy_fn)(int fd, const char *path, const char *via, dw_error *err);

/* Makes PATH with COPY. */
static dw_status make_file(copy_fn copy, int fd, const char *path, dw_error *err)
{
    char *via;
    dw_status status = dw_own_via(&via, path, err);
    if (status == DW_OK)
        status = copy(fd, path, via, err);
    dw_free(via);
    return status;
}

dw_status dw_files_make_own(const dw_checkpoint *ckpt, uint64_t *n_copied, dw_error *err)
{
    for (size_t i = 0; i < dw_checkpoint_file_count(ckpt); i++) {
        const int fd = dw_checkpoint_fd(ckpt, i);
        const char *path = dw_checkpoint_file(ckpt, i);
        if (judge_file(fd, path, NULL) != DW_FILES_SHARED)
            continue;
        dw_status status = make_file(dw_copy_file, fd, path, err);
        if (status != DW_OK)
            return status;
        ++*n_copied;
    }
    return DW_OK;
}

dw_status dw_files_remove(const dw_checkpoint *ckpt, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < dw_checkpoint_file_count(ckpt); i++)
        status = dw_remove_file(dw_checkpoint_file(ckpt, i), err);
    return status;
}
