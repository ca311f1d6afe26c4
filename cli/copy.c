#include "copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "path.h"

#define PIECE_BYTES (16u << 20)
#define PATCH_NAME  ".deltawire-patch" /* state of an apply, not of the checkpoint */

static bool ends_with(const char *text, const char *tail)
{
    size_t n_text = strlen(text), n_tail = strlen(tail);
    return n_text >= n_tail && strcmp(text + n_text - n_tail, tail) == 0;
}

static dw_status fail_memory(dw_error *err, const char *path)
{
    return cli_error_set(err, DW_NO_MEMORY, path, "out of memory");
}

static dw_status sync_path(const char *path, dw_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return cli_error_errno(err, path, "open");
    /* some filesystems cannot sync a directory and say so with EINVAL */
    dw_status status =
        fsync(fd) == 0 || errno == EINVAL ? DW_OK : cli_error_errno(err, path, "sync");
    close(fd);
    return status;
}

/* ---- one file ---- */

/* Bytes copied, 0 at the end, -1 with errno. The kernel's own copy shares blocks where
 * the filesystem can; between two filesystems, or on old kernels, it refuses. */
static ssize_t copy_piece(int from, int to, void *buffer)
{
    ssize_t n = copy_file_range(from, NULL, to, NULL, PIECE_BYTES, 0);
    if (n >= 0 || (errno != EXDEV && errno != EINVAL && errno != ENOSYS &&
                   errno != EOPNOTSUPP && errno != EPERM))
        return n;
    n = read(from, buffer, PIECE_BYTES);
    for (ssize_t at = 0; at < n;) {
        ssize_t n_written = write(to, (char *)buffer + at, (size_t)(n - at));
        if (n_written < 0 && errno != EINTR)
            return -1;
        at += n_written < 0 ? 0 : n_written;
    }
    return n;
}

typedef struct copying {
    cli_progress *progress;
    uint64_t n_done, n_total;
    void *buffer; /* PIECE_BYTES */
} copying;

static dw_status copy_bytes(copying *c, int from, int to, const char *path,
                            const char *to_path, dw_error *err)
{
    for (ssize_t n;;) {
        n = copy_piece(from, to, c->buffer);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return cli_error_errno(err, to_path, "write the copy");
        if (n == 0)
            return fsync(to) == 0 ? DW_OK : cli_error_errno(err, path, "sync the copy");
        c->n_done += (uint64_t)n;
        if (cli_progress_report(c->progress, c->n_done, c->n_total) != 0)
            return cli_check_signal(err);
    }
}

static dw_status copy_file(copying *c, const char *path, const char *to_path,
                           dw_error *err)
{
    dw_status status;
    struct stat st;
    int from = open(path, O_RDONLY | O_CLOEXEC);
    if (from < 0 || fstat(from, &st) != 0) {
        status = cli_error_errno(err, path, "open");
    } else {
        /* writable for us, whatever the original is: the delta goes into it */
        int to = open(to_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                      (st.st_mode & 0777) | S_IWUSR);
        if (to < 0) {
            status = cli_error_errno(err, to_path, "create");
        } else {
            status = copy_bytes(c, from, to, path, to_path, err);
            if (close(to) != 0 && status == DW_OK)
                status = cli_error_errno(err, to_path, "close");
        }
    }
    if (from >= 0)
        close(from);
    return status;
}

/* ---- a directory ---- */

static bool is_wanted(DIR *dir, const char *name, uint64_t *n_bytes)
{
    struct stat st;
    if (strncmp(name, PATCH_NAME, sizeof PATCH_NAME - 1) == 0 ||
        fstatat(dirfd(dir), name, &st, 0) != 0 || !S_ISREG(st.st_mode))
        return false;
    *n_bytes = (uint64_t)st.st_size;
    return true;
}

static dw_status copy_entry(copying *c, const char *dir, const char *to_dir,
                            const char *name, dw_error *err)
{
    char *from = cli_path_join(dir, name), *to = cli_path_join(to_dir, name);
    dw_status status = from && to ? copy_file(c, from, to, err) : fail_memory(err, dir);
    free(from);
    free(to);
    return status;
}

/* Twice over the entries: sizes for the bar, then the copies. */
static dw_status copy_directory(copying *c, const char *dir, const char *to_dir,
                                dw_error *err)
{
    DIR *stream = opendir(dir);
    if (!stream)
        return cli_error_errno(err, dir, "read the directory");
    dw_status status = DW_OK;
    uint64_t n_bytes;
    for (struct dirent *entry; (entry = readdir(stream));)
        if (is_wanted(stream, entry->d_name, &n_bytes))
            c->n_total += n_bytes;
    rewinddir(stream);
    for (struct dirent *entry; status == DW_OK && (entry = readdir(stream));)
        if (is_wanted(stream, entry->d_name, &n_bytes))
            status = copy_entry(c, dir, to_dir, entry->d_name, err);
    closedir(stream);
    return status == DW_OK ? sync_path(to_dir, err) : status;
}

static void remove_directory(const char *dir)
{
    DIR *stream = opendir(dir);
    if (stream) {
        for (struct dirent *entry; (entry = readdir(stream));)
            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
                unlinkat(dirfd(stream), entry->d_name, 0);
        closedir(stream);
    }
    rmdir(dir);
}

/* ---- the public face ---- */

static char *temporary_name(const char *destination)
{
    size_t n = strlen(destination);
    while (n > 1 && destination[n - 1] == '/')
        n--;
    size_t n_bytes = n + 32;
    char *path = malloc(n_bytes);
    if (path)
        snprintf(path, n_bytes, "%.*s.tmp-%ld", (int)n, destination, (long)getpid());
    return path;
}

/* Fills COPY's names, and *DIR with the directory to copy where it is one. */
static dw_status plan(cli_copy *copy, char **dir, const char *source,
                      const char *destination, uint64_t *n_bytes, dw_error *err)
{
    struct stat st;
    if (lstat(destination, &st) == 0)
        return cli_error_set(err, DW_CONFLICT, destination,
                             "is there already: name a new checkpoint");
    if (stat(source, &st) != 0)
        return cli_error_errno(err, source, "open");
    *n_bytes = (uint64_t)st.st_size;
    copy->temporary = temporary_name(destination);
    if (!copy->temporary)
        return fail_memory(err, destination);
    bool is_index = S_ISREG(st.st_mode) && ends_with(source, ".json");
    copy->is_directory = S_ISDIR(st.st_mode) || is_index;
    if (copy->is_directory)
        *dir = is_index ? cli_path_parent(source) : strdup(source);
    const char *slash = strrchr(source, '/');
    copy->checkpoint = is_index
                           ? cli_path_join(copy->temporary, slash ? slash + 1 : source)
                           : strdup(copy->temporary);
    return copy->checkpoint && (*dir || !copy->is_directory) ? DW_OK
                                                             : fail_memory(err, source);
}

dw_status cli_copy_make(cli_copy *out, const char *source, const char *destination,
                        cli_progress *progress, dw_error *err)
{
    *out = (cli_copy){0};
    copying c = {.progress = progress, .buffer = malloc(PIECE_BYTES)};
    char *dir = NULL;
    uint64_t n_bytes = 0;
    dw_status status = c.buffer ? plan(out, &dir, source, destination, &n_bytes, err)
                                : fail_memory(err, source);
    if (status == DW_OK && !out->is_directory) {
        c.n_total = n_bytes;
        status = copy_file(&c, source, out->temporary, err);
    } else if (status == DW_OK && dir) {
        status = mkdir(out->temporary, 0777) == 0
                     ? copy_directory(&c, dir, out->temporary, err)
                     : cli_error_errno(err, out->temporary, "create the directory");
    }
    free(dir);
    free(c.buffer);
    if (status != DW_OK)
        cli_copy_discard(out);
    return status;
}

dw_status cli_copy_commit(cli_copy *copy, const char *destination, dw_error *err)
{
    /* another one that appeared meanwhile is not replaced, where the filesystem can */
    int moved =
        renameat2(AT_FDCWD, copy->temporary, AT_FDCWD, destination, RENAME_NOREPLACE);
    if (moved != 0 && (errno == EINVAL || errno == ENOSYS))
        moved = rename(copy->temporary, destination);
    if (moved != 0)
        return cli_error_errno(err, destination, "rename the copy into place");
    free(copy->temporary);
    copy->temporary = NULL;
    char *dir = cli_path_parent(destination);
    dw_status status = dir ? sync_path(dir, err) : fail_memory(err, destination);
    free(dir);
    return status;
}

void cli_copy_discard(cli_copy *copy)
{
    if (copy->temporary && copy->is_directory)
        remove_directory(copy->temporary);
    else if (copy->temporary)
        unlink(copy->temporary);
    free(copy->temporary);
    free(copy->checkpoint);
    *copy = (cli_copy){0};
}
