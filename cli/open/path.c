#include "path.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"

dw_status cli_path_check_output(const char *path, dw_error *err)
{
    size_t n = strlen(path);
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (n == 0 || path[n - 1] == '/' || (exists && S_ISDIR(st.st_mode))) {
        errno = n == 0 ? ENOENT : EISDIR;
        return dw_fail_errno(err, path, "write");
    }
    /* a rename would replace it with a file */
    if (exists && !S_ISREG(st.st_mode))
        return dw_fail(err, DW_IO, path, "cannot replace it: not a regular file");
    char *dir = dw_parent_path(path);
    if (!dir)
        return dw_fail_memory(err, path);
    dw_status status =
        access(dir, W_OK | X_OK) == 0 ? DW_OK : dw_fail_errno(err, path, "create");
    dw_free(dir);
    return status;
}

dw_status cli_path_make_directories(const char *path, dw_error *err)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return DW_OK;
    return dw_make_dirs(path, 0700) ? DW_OK
                                    : dw_fail_errno(err, path, "make the directory");
}
