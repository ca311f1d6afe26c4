/* Lists in byte order of whole keys. The keys of a directory continue with a slash, so it
 * is sorted as NAME/: 'a-b' comes before 'a/b', and 'a/b' before 'a0'. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/dir.h"
#include "store/store.h"

typedef struct walk {
    const dw_dir *dir;
    const char *prefix, *after;
    dw_list_fn fn;
    void *context;
    dw_error *err;
    char key[DW_MAX_KEY + 2]; /* of the current directory, with its slash */
} walk;

typedef struct names {
    char **names; /* those of directories end in a slash */
    size_t n, n_room;
} names;

static void names_release(names *list)
{
    for (size_t i = 0; i < list->n; i++)
        dw_free(list->names[i]);
    dw_free(list->names);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_directory(int fd, const struct dirent *e)
{
    struct stat st;
    if (e->d_type != DT_UNKNOWN)
        return e->d_type == DT_DIR;
    return fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* Whether KEY or, if it ends in a slash, a key that begins with it, can be in the list.
 */
static bool can_be_listed(const walk *w, const char *key)
{
    size_t n = strlen(key), n_prefix = strlen(w->prefix);
    if (key[n - 1] != '/')
        return dw_store_listed(key, w->prefix, w->after);
    return strncmp(key, w->prefix, n < n_prefix ? n : n_prefix) == 0 &&
           (!w->after || strncmp(key, w->after, n) >= 0);
}

/* Adds NAME if it is part of a key and its keys are wanted. False if out of memory. */
static bool add_name(walk *w, names *list, const char *name, bool is_dir)
{
    char key[sizeof w->key];
    int n = snprintf(key, sizeof key, "%s%s", w->key, name);
    if (n > DW_MAX_KEY || !dw_store_key_valid(key))
        return true;
    if (is_dir)
        strcat(key, "/");
    if (!can_be_listed(w, key))
        return true;
    char *copy = dw_copy_string(key + strlen(w->key));
    if (!copy ||
        !dw_grow_array((void **)&list->names, &list->n_room, list->n, sizeof(char *))) {
        dw_free(copy);
        return false;
    }
    list->names[list->n++] = copy;
    return true;
}

static dw_status read_names(walk *w, DIR *stream, names *list)
{
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(stream);
        if (!e && errno != 0)
            return dw_dir_fail(w->dir, w->key, "read the directory", w->err);
        if (!e)
            break;
        if (!add_name(w, list, e->d_name, is_directory(dirfd(stream), e)))
            return dw_fail_memory(w->err, w->dir->url);
    }
    if (list->n > 1)
        qsort(list->names, list->n, sizeof(char *), compare_names);
    return DW_OK;
}

static dw_status list_file(walk *w, int fd, const char *name)
{
    struct stat st;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? DW_OK : dw_dir_fail(w->dir, w->key, "stat", w->err);
    if (!S_ISREG(st.st_mode))
        return DW_OK;
    dw_store_entry entry = {
        .key = w->key,
        .n_bytes = (uint64_t)st.st_size,
        .modified_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000,
    };
    return w->fn(w->context, &entry, w->err);
}

static dw_status list_directory(walk *w, int fd);

/* Lists the object or directory of a NAME from add_name. */
static dw_status list_name(walk *w, int fd, char *name)
{
    size_t n_key = strlen(w->key), n_name = strlen(name);
    bool is_dir = name[n_name - 1] == '/';
    dw_status status = DW_OK;
    memcpy(w->key + n_key, name, n_name + 1);
    if (is_dir) {
        name[n_name - 1] = '\0';
        int below = dw_dir_open_below(fd, name);
        if (below >= 0)
            status = list_directory(w, below);
        else if (errno != ENOENT && errno != ENOTDIR)
            status = dw_dir_fail(w->dir, w->key, "open", w->err);
    } else {
        status = list_file(w, fd, name);
    }
    w->key[n_key] = '\0';
    return status;
}

/* Owns FD. A key has at most 512 bytes, so this goes at most 256 levels down. */
static dw_status list_directory(walk *w, int fd)
{
    DIR *stream = fdopendir(fd);
    if (!stream) {
        dw_status status = dw_dir_fail(w->dir, w->key, "read the directory", w->err);
        close(fd);
        return status;
    }
    names list = {0};
    dw_status status = read_names(w, stream, &list);
    for (size_t i = 0; status == DW_OK && i < list.n; i++)
        status = list_name(w, dirfd(stream), list.names[i]);
    names_release(&list);
    closedir(stream);
    return status;
}

dw_status dw_dir_list(void *self, const char *prefix, const char *after, dw_list_fn fn,
                      void *context, dw_error *err)
{
    dw_dir *d = self;
    walk w = {d, prefix, after, fn, context, err, ""};
    int fd = dw_dir_open_root(d, DW_DIR_READ);
    if (fd >= 0)
        return list_directory(&w, fd);
    return errno == ENOENT ? DW_OK : dw_dir_fail(d, "", "open", err);
}
