#include "checkpoint_copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "inner.h"

#define PIECE_BYTES (16u << 20)
#define OWN_DIR     ".deltawire" /* as the library names it, ... */
#define PATCH_NAME  ".patch"     /* ... and a file in it */
#define TEMPORARY   ".tmp-"      /* the library's name for temporaries */
#define MAX_NAMES   10000        /* temporary names to try */

static dw_status sync_path(const char *path, dw_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return dw_fail_errno(err, path, "open");
    /* some filesystems cannot sync a directory: EINVAL */
    dw_status status =
        fsync(fd) == 0 || errno == EINVAL ? DW_OK : dw_fail_errno(err, path, "sync");
    close(fd);
    return status;
}

/* ---- one file ---- */

/* Returns the bytes copied, 0 at the end, or -1 with errno. copy_file_range shares blocks
 * if the filesystem can. It may refuse between two filesystems and on old kernels. */
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
            return dw_fail_errno(err, to_path, "write the copy");
        if (n == 0)
            return fsync(to) == 0 ? DW_OK : dw_fail_errno(err, path, "sync the copy");
        c->n_done += (uint64_t)n;
        if (cli_progress_report(c->progress, c->n_done, c->n_total) != 0)
            return cli_check_signal(err);
    }
}

/* The copy is writable even if the original is not, because the delta is applied to it.
 */
static int create_file(const char *path, mode_t mode)
{
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, (mode & 0777) | S_IWUSR);
}

/* Takes TO, which is open on TO_PATH. */
static dw_status copy_file(copying *c, const char *path, int to, const char *to_path,
                           dw_error *err)
{
    int from = open(path, O_RDONLY | O_CLOEXEC);
    dw_status status = from >= 0 ? copy_bytes(c, from, to, path, to_path, err)
                                 : dw_fail_errno(err, path, "open");
    if (close(to) != 0 && status == DW_OK)
        status = dw_fail_errno(err, to_path, "close");
    if (from >= 0)
        close(from);
    return status;
}

/* ---- a directory ---- */

static bool is_wanted(DIR *dir, const char *name, struct stat *st)
{
    return strcmp(name, OWN_DIR) != 0 && fstatat(dirfd(dir), name, st, 0) == 0 &&
           S_ISREG(st->st_mode);
}

static dw_status copy_entry(copying *c, const char *dir, const char *to_dir,
                            const char *name, mode_t mode, dw_error *err)
{
    char *from = dw_join_path(dir, name), *to = dw_join_path(to_dir, name);
    dw_status status;
    if (!from || !to) {
        status = dw_fail_memory(err, dir);
    } else {
        int fd = create_file(to, mode);
        status =
            fd >= 0 ? copy_file(c, from, fd, to, err) : dw_fail_errno(err, to, "create");
    }
    dw_free(from);
    dw_free(to);
    return status;
}

/* Reads the entries twice: first the sizes, for the progress bar, then copies. */
static dw_status copy_directory(copying *c, const char *dir, const char *to_dir,
                                dw_error *err)
{
    DIR *stream = opendir(dir);
    if (!stream)
        return dw_fail_errno(err, dir, "read the directory");
    dw_status status = DW_OK;
    struct stat st;
    for (struct dirent *entry; (entry = readdir(stream));)
        if (is_wanted(stream, entry->d_name, &st))
            c->n_total += (uint64_t)st.st_size;
    rewinddir(stream);
    for (struct dirent *entry; status == DW_OK && (entry = readdir(stream));)
        if (is_wanted(stream, entry->d_name, &st))
            status = copy_entry(c, dir, to_dir, entry->d_name, st.st_mode, err);
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

/* Removes a copy, and what a failed apply left in it. */
static void remove_copy(const char *dir)
{
    char *own = dw_join_path(dir, OWN_DIR);
    if (own)
        remove_directory(own);
    dw_free(own);
    remove_directory(dir);
}

/* ---- the temporary name ---- */

static char *patch_of(const char *file)
{
    const char *slash = strrchr(file, '/');
    const int n_dir = slash ? (int)(slash + 1 - file) : 0;
    size_t n_bytes = strlen(file) + sizeof OWN_DIR "/" PATCH_NAME;
    char *path = malloc(n_bytes);
    if (path)
        snprintf(path, n_bytes, "%.*s" OWN_DIR "/%s" PATCH_NAME, n_dir, file,
                 file + n_dir);
    return path;
}

/* The N-th temporary name beside PATH, on the heap, or NULL. It may be taken. */
static char *temporary_name(const char *path, unsigned n)
{
    size_t n_path = strlen(path);
    while (n_path > 1 && path[n_path - 1] == '/')
        n_path--;
    size_t n_bytes = n_path + 48;
    char *name = malloc(n_bytes);
    if (name)
        snprintf(name, n_bytes, "%.*s" TEMPORARY "%ld-%u", (int)n_path, path,
                 (long)getpid(), n);
    return name;
}

/* Makes NAME: a directory, or an empty file with its descriptor in *FD. If there is a
 * patch beside a file's name, the name counts as taken: the apply to this copy would find
 * the patch of another one. */
static bool make_name(const char *name, bool is_directory, mode_t mode, int *fd)
{
    if (is_directory)
        return mkdir(name, 0777) == 0;
    char *patch = patch_of(name);
    int refused = !patch ? ENOMEM : access(patch, F_OK) == 0 ? EEXIST : 0;
    free(patch);
    *fd = refused ? -1 : create_file(name, mode);
    if (refused)
        errno = refused;
    return *fd >= 0;
}

/* Sets COPY's temporary only after making it, so that nothing else is ever removed. If a
 * name is taken, by a killed process or by somebody else, tries the next one.
 */
static dw_status make_temporary(cli_copy *copy, const char *destination, mode_t mode,
                                int *fd, dw_error *err)
{
    for (unsigned n = 0; n < MAX_NAMES; n++) {
        char *name = temporary_name(destination, n);
        if (!name)
            return dw_fail_memory(err, destination);
        if (make_name(name, copy->is_directory, mode, fd)) {
            copy->temporary = name;
            return DW_OK;
        }
        int refused = errno;
        free(name);
        errno = refused;
        if (refused != EEXIST)
            break;
    }
    return dw_fail_errno(err, destination, "create");
}

/* ---- the public face ---- */

/* Whether SOURCE, whose stat is *ST, is the index of a checkpoint. */
static bool is_index(const dw_checkpoint *ckpt, const struct stat *st)
{
    return S_ISREG(st->st_mode) && dw_checkpoint_index(ckpt);
}

/* The path at which to open the copy. */
static char *checkpoint_in(const cli_copy *copy, const char *source, bool by_index)
{
    const char *slash = strrchr(source, '/');
    return by_index ? dw_join_path(copy->temporary, slash ? slash + 1 : source)
                    : dw_copy_string(copy->temporary);
}

static dw_status fill(cli_copy *copy, copying *c, const char *source,
                      const struct stat *st, int fd, bool by_index, dw_error *err)
{
    if (!copy->is_directory) {
        c->n_total = (uint64_t)st->st_size;
        return copy_file(c, source, fd, copy->temporary, err);
    }
    char *dir = by_index ? dw_parent_path(source) : dw_copy_string(source);
    dw_status status =
        dir ? copy_directory(c, dir, copy->temporary, err) : dw_fail_memory(err, source);
    dw_free(dir);
    return status;
}

dw_status cli_copy_make(cli_copy *out, const char *source, const dw_checkpoint *ckpt,
                        const char *destination, cli_progress *progress, dw_error *err)
{
    *out = (cli_copy){0};
    struct stat st;
    if (lstat(destination, &st) == 0)
        return dw_fail(err, DW_CONFLICT, destination,
                       "is there already: name a new checkpoint");
    if (stat(source, &st) != 0)
        return dw_fail_errno(err, source, "open");
    bool by_index = is_index(ckpt, &st);
    out->is_directory = S_ISDIR(st.st_mode) || by_index;
    copying c = {.progress = progress, .buffer = malloc(PIECE_BYTES)};
    int fd = -1;
    dw_status status = c.buffer ? make_temporary(out, destination, st.st_mode, &fd, err)
                                : dw_fail_memory(err, source);
    if (status == DW_OK)
        status = fill(out, &c, source, &st, fd, by_index, err);
    if (status == DW_OK && !(out->checkpoint = checkpoint_in(out, source, by_index)))
        status = dw_fail_memory(err, source);
    free(c.buffer);
    if (status != DW_OK)
        cli_copy_discard(out);
    return status;
}

dw_status cli_copy_commit(cli_copy *copy, const char *destination, dw_error *err)
{
    /* does not replace a file that appeared meanwhile, if the filesystem supports that
     */
    int moved =
        renameat2(AT_FDCWD, copy->temporary, AT_FDCWD, destination, RENAME_NOREPLACE);
    if (moved != 0 && (errno == EINVAL || errno == ENOSYS))
        moved = rename(copy->temporary, destination);
    if (moved != 0)
        return dw_fail_errno(err, destination, "rename the copy into place");
    free(copy->temporary);
    copy->temporary = NULL;
    return dw_sync_parent(destination, err);
}

/* Removes the file, and the patch that a failed apply left. */
static void remove_file(const char *path)
{
    char *patch = patch_of(path);
    char *own = patch ? dw_parent_path(patch) : NULL;
    if (patch)
        unlink(patch);
    if (own)
        rmdir(own); /* unless others use it */
    dw_free(own);
    free(patch);
    unlink(path);
}

void cli_copy_discard(cli_copy *copy)
{
    if (copy->temporary)
        (copy->is_directory ? remove_copy : remove_file)(copy->temporary);
    free(copy->temporary);
    dw_free(copy->checkpoint);
    *copy = (cli_copy){0};
}
