#include "path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"

char *cli_path_join(const char *dir, const char *name)
{
    size_t n_bytes = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n_bytes);
    if (path)
        snprintf(path, n_bytes, "%s/%s", dir, name);
    return path;
}

char *cli_path_parent(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    return n == 0 ? strdup(".") : strndup(path, n);
}

char *cli_path_temporary(const char *path, unsigned n)
{
    size_t n_path = strlen(path);
    while (n_path > 1 && path[n_path - 1] == '/')
        n_path--;
    size_t n_bytes = n_path + 48;
    char *temporary = malloc(n_bytes);
    if (temporary)
        snprintf(temporary, n_bytes, "%.*s" CLI_TEMPORARY "%ld-%u", (int)n_path, path,
                 (long)getpid(), n);
    return temporary;
}

dw_status cli_path_check_output(const char *path, dw_error *err)
{
    size_t n = strlen(path);
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (n == 0 || path[n - 1] == '/' || (exists && S_ISDIR(st.st_mode))) {
        errno = n == 0 ? ENOENT : EISDIR;
        return cli_error_errno(err, path, "write");
    }
    /* a rename would put a file in its place */
    if (exists && !S_ISREG(st.st_mode))
        return cli_error_set(err, DW_IO, path, "cannot replace it: not a regular file");
    char *dir = cli_path_parent(path);
    if (!dir)
        return cli_error_set(err, DW_NO_MEMORY, path, "out of memory");
    dw_status status =
        access(dir, W_OK | X_OK) == 0 ? DW_OK : cli_error_errno(err, path, "create");
    free(dir);
    return status;
}

dw_status cli_path_make_directories(const char *path, dw_error *err)
{
    char *part = strdup(path);
    if (!part)
        return cli_error_set(err, DW_NO_MEMORY, path, "out of memory");
    dw_status status = DW_OK;
    for (char *at = part; status == DW_OK && at;) {
        at = strchr(at + 1, '/');
        if (at)
            *at = '\0';
        /* what stands above may be there and not ours to write in */
        struct stat st;
        if (mkdir(part, 0700) != 0 && !(stat(part, &st) == 0 && S_ISDIR(st.st_mode)))
            status = cli_error_errno(err, part, "make the directory");
        if (at)
            *at = '/';
    }
    free(part);
    return status;
}
