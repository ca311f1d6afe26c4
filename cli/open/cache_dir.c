#include "cache_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "path.h"
#include "stream_open.h"

#define HASH_DIGITS 16
#define NOTE        ".deltawire-cache"
#define ASIDE                                                                            \
    ".of-" /* the library appends it to the name of a directory that it set aside */
#define MAX_URL   4096
#define DIR_TEXT  64
#define MAX_FILES 16 /* open at the same time during a walk */

/* ---- paths ---- */

/* Joins the parts with line ends. The caller frees the result. */
static char *join(const char *const *parts, size_t n_parts)
{
    size_t n_bytes = 1;
    for (size_t i = 0; i < n_parts; i++)
        n_bytes += (parts[i] ? strlen(parts[i]) : 0) + 1;
    char *text = calloc(n_bytes, 1);
    for (size_t i = 0; text && i < n_parts; i++) {
        strcat(text, i > 0 ? "\n" : "");
        strcat(text, parts[i] ? parts[i] : "");
    }
    return text;
}

/* The cache's own directory; the caller frees it. */
static char *find_root(const char *option, dw_error *err)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool own = cache && cache[0] == '/';
    if (!own && !home) {
        dw_fail(err, DW_INVALID, option,
                "neither HOME nor XDG_CACHE_HOME is set: name a directory");
        return NULL;
    }
    char *path =
        own ? dw_join_path(cache, "deltawire") : dw_join_path(home, ".cache/deltawire");
    if (!path)
        dw_fail_memory(err, option);
    return path;
}

char *cli_cache_dir(const char *kind, const char *const *parts, size_t n_parts,
                    const char *option, dw_error *err)
{
    uint8_t hash[DW_SHA256_BYTES];
    char digits[HASH_DIGITS + 1], name[2 * HASH_DIGITS + 64];
    char *root = find_root(option, err), *path = NULL;
    if (!root)
        return NULL;
    char *text = join(parts, n_parts);
    if (text && dw_sha256_of(hash, text, strlen(text), NULL) == DW_OK) {
        dw_hex_encode(digits, hash, HASH_DIGITS / 2);
        snprintf(name, sizeof name, "%s/%s", kind, digits);
        path = dw_join_path(root, name);
    }
    free(text);
    dw_free(root);
    if (!path)
        dw_fail_memory(err, option);
    return path;
}

/* ---- using ---- */

/* Opens the note of DIR with FLAGS; -1 with errno. */
static int open_note(const char *dir, int flags)
{
    char *path = dw_join_path(dir, NOTE);
    int file = path ? open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    dw_free(path);
    return file;
}

/* Whether a directory holds nothing but the note. */
static bool is_empty(const char *path)
{
    DIR *dir = opendir(path);
    bool empty = true;
    for (struct dirent *e; dir && empty && (e = readdir(dir)) != NULL;)
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
                strcmp(e->d_name, NOTE) == 0;
    if (dir)
        closedir(dir);
    return empty;
}

/* FSID:INODE of a directory, or "-" if it does not exist. */
static void describe_dir(char out[DIR_TEXT], const char *path)
{
    struct statvfs disk;
    struct stat found;
    snprintf(out, DIR_TEXT, "-");
    if (path && stat(path, &found) == 0 && statvfs(path, &disk) == 0)
        snprintf(out, DIR_TEXT, "%lx:%jx", disk.f_fsid, (uintmax_t)found.st_ino);
}

/* The identities of a store's directory and of its parent. */
typedef struct store_dirs {
    bool is_dir;
    char root[DIR_TEXT];
    char parent[DIR_TEXT];
} store_dirs;

static store_dirs find_dirs(const char *url)
{
    const char *path = cli_store_path(url);
    store_dirs dirs = {path != NULL, "-", "-"};
    if (path) {
        char *parent = dw_parent_path(path);
        describe_dir(dirs.root, path);
        describe_dir(dirs.parent, parent);
        dw_free(parent);
    }
    return dirs;
}

/* The note has a line each for the URL, the root and its parent. */
static bool names_dirs(int file, const store_dirs *now)
{
    char note[MAX_URL + 2 * DIR_TEXT] = "", root[DIR_TEXT], parent[DIR_TEXT];
    ssize_t n = pread(file, note, sizeof note - 1, 0);
    note[n > 0 ? n : 0] = '\0';
    const char *lines = strchr(note, '\n');
    if (!now->is_dir)
        return true;
    if (!lines || sscanf(lines, " %63s %63s", root, parent) != 2)
        return false;
    return strcmp(now->root, "-") != 0 ? strcmp(now->root, root) == 0
                                       : strcmp(now->parent, parent) == 0;
}

static dw_status write_note(int file, const char *dir, const char *url, dw_error *err)
{
    const store_dirs dirs = find_dirs(url);
    char note[MAX_URL + 2 * DIR_TEXT];
    const int n = snprintf(note, sizeof note, "%.*s\n%s\n%s\n", MAX_URL - 4, url,
                           dirs.root, dirs.parent);
    if (ftruncate(file, 0) != 0 || pwrite(file, note, (size_t)n, 0) != n)
        return dw_fail_errno(err, dir, "write " NOTE);
    return DW_OK;
}

/* Whether the open file is still the note of DIR. It may have been removed since. */
static bool is_note_of(int file, const char *dir)
{
    struct stat held, named;
    const int again = open_note(dir, O_RDONLY);
    const bool same = again >= 0 && fstat(file, &held) == 0 &&
                      fstat(again, &named) == 0 && held.st_dev == named.st_dev &&
                      held.st_ino == named.st_ino;
    if (again >= 0)
        close(again);
    return same;
}

/* Opens the note with FLAGS and locks it; -1 with errno, EWOULDBLOCK if it is about to be
 * removed. */
static int lock_note(const char *dir, int flags)
{
    int file = open_note(dir, flags);
    if (file >= 0 && (flock(file, LOCK_SH | LOCK_NB) != 0 || !is_note_of(file, dir))) {
        close(file);
        file = -1;
        errno = EWOULDBLOCK;
    }
    return file;
}

/* Keeps FILE, and with it the lock, until the process ends or takes another one. */
static void keep_lock(int file)
{
    static int kept = -1;
    if (kept >= 0)
        close(kept);
    kept = file;
}

dw_status cli_cache_use(const char *dir, const char *url, cli_cache_state *out,
                        dw_error *err)
{
    const store_dirs dirs = find_dirs(url);
    *out = (cli_cache_state){.is_new = is_empty(dir)};
    dw_status status = cli_path_make_directories(dir, err);
    if (status != DW_OK)
        return status;
    int file = lock_note(dir, O_RDWR | O_CREAT);
    if (file < 0 && errno == EWOULDBLOCK)
        return dw_fail(err, DW_CONFLICT, dir,
                       "`deltawire cache --prune` is removing it; try again");
    if (file < 0)
        return dw_fail_errno(err, dir, "write " NOTE);
    keep_lock(file);
    out->same_parent = names_dirs(file, &dirs);
    return out->is_new ? write_note(file, dir, url, err) : DW_OK;
}

void cli_cache_hold(const char *dir)
{
    const int file = lock_note(dir, O_RDONLY);
    if (file >= 0)
        keep_lock(file);
}

dw_status cli_cache_note(const char *dir, const char *url, dw_error *err)
{
    int file = open_note(dir, O_RDWR | O_CREAT);
    if (file < 0)
        return dw_fail_errno(err, dir, "write " NOTE);
    dw_status status = write_note(file, dir, url, err);
    close(file);
    return status;
}

/* Renames DIR. *ASIDE takes the new name; the caller frees it. */
static dw_status move_aside(char **aside, const char *dir, dw_error *err)
{
    char name[64];
    *aside = malloc(strlen(dir) + sizeof name);
    if (!*aside)
        return dw_fail_memory(err, dir);
    snprintf(name, sizeof name, ASIDE "%jd-%d", (intmax_t)time(NULL), (int)getpid());
    strcat(strcpy(*aside, dir), name);
    return rename(dir, *aside) == 0 ? DW_OK
                                    : dw_fail_errno(err, dir, "set aside the copy");
}

dw_status cli_cache_set_aside(const char *dir, dw_error *err)
{
    char *aside;
    dw_status status = move_aside(&aside, dir, err);
    free(aside);
    return status;
}

/* ---- listing ---- */

typedef struct cache_list {
    cli_cached *items;
    size_t n;
} cache_list;

static uint64_t n_walked_bytes; /* nftw has no argument for its caller */

static int add_bytes(const char *path, const struct stat *found, int kind, struct FTW *at)
{
    (void)path;
    (void)at;
    if (kind == FTW_F || kind == FTW_SL)
        n_walked_bytes += (uint64_t)found->st_blocks * 512;
    return 0;
}

static void read_note(cli_cached *c)
{
    char url[MAX_URL] = "";
    struct stat found;
    int file = open_note(c->path, O_RDONLY);
    if (file >= 0) {
        ssize_t n = pread(file, url, sizeof url - 1, 0);
        url[n > 0 ? n : 0] = '\0';
        url[strcspn(url, "\n")] = '\0';
        if (fstat(file, &found) == 0)
            c->t_used = found.st_mtime;
        c->in_use = flock(file, LOCK_EX | LOCK_NB) != 0;
        close(file);
    } else if (stat(c->path, &found) == 0) {
        c->t_used = found.st_mtime;
    }
    c->url = strdup(url);
}

static bool add_cached(cache_list *list, const char *dir, const char *name)
{
    cli_cached *more = realloc(list->items, (list->n + 1) * sizeof *more);
    if (!more)
        return false;
    list->items = more;
    cli_cached *c = &more[list->n++];
    *c = (cli_cached){.path = dw_join_path(dir, name),
                      .is_aside = strstr(name, ASIDE) != NULL};
    if (!c->path)
        return false;
    n_walked_bytes = 0;
    nftw(c->path, add_bytes, MAX_FILES, FTW_PHYS);
    c->n_bytes = n_walked_bytes;
    read_note(c);
    return c->url != NULL;
}

/* If a kind has no directory, nothing of it is cached. */
static bool list_kind(cache_list *list, const char *root, const char *kind)
{
    char *path = dw_join_path(root, kind);
    DIR *dir = path ? opendir(path) : NULL;
    bool good = path != NULL;
    for (struct dirent *e; dir && good && (e = readdir(dir)) != NULL;)
        if (e->d_name[0] != '.')
            good = add_cached(list, path, e->d_name);
    if (dir)
        closedir(dir);
    dw_free(path);
    return good;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const cli_cached *)a)->path, ((const cli_cached *)b)->path);
}

dw_status cli_cache_list(cli_cached **out, size_t *n, dw_error *err)
{
    cache_list list = {0};
    char *root = find_root("cache", err);
    if (!root)
        return err->code;
    const bool good =
        list_kind(&list, root, "baselines") && list_kind(&list, root, "mirrors");
    dw_free(root);
    if (!good) {
        cli_cache_free(list.items, list.n);
        return dw_fail_memory(err, "cache");
    }
    if (list.n > 0)
        qsort(list.items, list.n, sizeof *list.items, compare_paths);
    *out = list.items;
    *n = list.n;
    return DW_OK;
}

void cli_cache_free(cli_cached *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dw_free(list[i].path);
        free(list[i].url);
    }
    free(list);
}

/* ---- removing ---- */

static int remove_one(const char *path, const struct stat *found, int kind,
                      struct FTW *at)
{
    (void)found;
    (void)kind;
    (void)at;
    return remove(path);
}

dw_status cli_cache_remove(const cli_cached *c, dw_error *err)
{
    int file =
        open_note(c->path, O_RDONLY); /* there may be none, if a copy was cut short */
    if (file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0) {
        close(file);
        return dw_fail(err, DW_CONFLICT, c->path,
                       "a deltawire process uses it; stop it first");
    }
    /* rename it first: a process that starts now begins with an empty directory */
    char *aside = NULL;
    dw_status status = move_aside(&aside, c->path, err);
    if (status == DW_OK && nftw(aside, remove_one, MAX_FILES, FTW_DEPTH | FTW_PHYS) != 0)
        status = dw_fail_errno(err, aside, "remove");
    free(aside);
    if (file >= 0)
        close(file);
    return status;
}
