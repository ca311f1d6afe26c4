#include "weights/own_dir.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"

char *dw_own_path(const char *dir, const char *name)
{
    char *own = dw_join_path(dir, DW_OWN_DIR);
    char *path = own ? dw_join_path(own, name) : NULL;
    dw_free(own);
    return path;
}

static dw_status check(const char *path, dw_error *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT || errno == ENOTDIR ? DW_OK
                                                   : dw_fail_errno(err, path, "look at");
    return S_ISDIR(st.st_mode)
               ? DW_OK
               : dw_fail(err, DW_CONFLICT, path,
                         "this is no directory, and deltawire keeps its own files in a "
                         "directory of this name. Rename it, or remove it");
}

dw_status dw_own_dir_check(const char *dir, dw_error *err)
{
    char *path = dw_join_path(dir, DW_OWN_DIR);
    dw_status status = path ? check(path, err) : dw_fail_memory(err, dir);
    dw_free(path);
    return status;
}

dw_status dw_own_dir_make(const char *dir, dw_error *err)
{
    char *path = dw_join_path(dir, DW_OWN_DIR);
    dw_status status = DW_OK;
    if (!path)
        return dw_fail_memory(err, dir);
    if (mkdir(path, 0777) == 0)
        status = dw_sync_parent(path, err);
    else if (errno == EEXIST)
        status = check(path, err);
    else
        status = dw_fail_errno(err, path, "make the directory");
    dw_free(path);
    return status;
}

dw_status dw_own_via(char **via, const char *path, dw_error *err)
{
    const char *slash = strrchr(path, '/');
    char *dir = dw_parent_path(path);
    *via = dir ? dw_own_path(dir, slash ? slash + 1 : path) : NULL;
    dw_status status = *via ? dw_own_dir_make(dir, err) : dw_fail_memory(err, path);
    dw_free(dir);
    if (status == DW_OK)
        return DW_OK;
    dw_free(*via);
    *via = NULL;
    return status;
}

void dw_own_dir_tidy(const char *dir)
{
    char *path =
        dw_own_dir_check(dir, NULL) == DW_OK ? dw_join_path(dir, DW_OWN_DIR) : NULL;
    DIR *own = path ? opendir(path) : NULL;
    for (struct dirent *e; own && (e = readdir(own)) != NULL;)
        if (strstr(e->d_name, DW_TEMPORARY))
            (void)unlinkat(dirfd(own), e->d_name, 0);
    if (own)
        closedir(own);
    dw_free(path);
}
