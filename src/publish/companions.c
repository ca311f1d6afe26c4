/* The companion files of a directory, read into memory.
 *
 * Others may write the directory meanwhile. A file is read only if it is a regular one or
 * a link to one, and only as many bytes as it had when it was opened; if it then has
 * another size or time, or is gone, nothing is taken.
 *
 * What matches and is no file is refused, because a version without it would make
 * followers remove theirs. A cache that was pruned has links that lead nowhere. Only a
 * directory is passed over: a pattern such as * means the files beside it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/options.h"
#include "stream/record_files.h"
#include "inner.h"

struct dw_companions {
    dw_file *files; /* ordered by name. Names and bytes are ours */
    size_t n, n_room;
    uint64_t n_bytes;
};

static const char *const defaults[] = {
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "*.tiktoken",
    "chat_template.jinja",
    "chat_template.json",
    "adapter_config.json",
};

static void release_file(dw_file *file)
{
    dw_free((void *)(uintptr_t)file->name);
    dw_free((void *)(uintptr_t)file->bytes);
}

void dw_companions_close(dw_companions *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n; i++)
        release_file(&c->files[i]);
    dw_free(c->files);
    dw_free(c);
}

const dw_file *dw_companions_files(const dw_companions *c, size_t *n_files)
{
    *n_files = c->n;
    return c->files;
}

/* ---- which files ---- */

static bool matches(const char *name, const char *const *globs, size_t n_globs)
{
    for (size_t i = 0; i < n_globs; i++)
        if (fnmatch(globs[i], name, FNM_PERIOD) == 0)
            return true;
    return false;
}

static bool is_wanted(const char *name, const dw_companion_rules *rules)
{
    return ((!rules->no_defaults &&
             matches(name, defaults, sizeof defaults / sizeof *defaults)) ||
            matches(name, rules->with, rules->n_with)) &&
           !matches(name, rules->without, rules->n_without);
}

bool dw_companion_takes(const dw_companion_rules *given, const char *name)
{
    dw_companion_rules rules;
    return DW_OPTIONS_TAKE(dw_companion_rules, &rules, given, NULL) == DW_OK &&
           is_wanted(name, &rules) && dw_file_name_valid(name, NULL);
}

static bool is_plain(const char *glob)
{
    return glob[strcspn(glob, "*?[\\")] == '\0';
}

/* Whether the rules name this very file, so that it must not be passed over. */
static bool is_named(const char *name, const dw_companion_rules *rules)
{
    for (size_t i = 0; i < rules->n_with; i++)
        if (is_plain(rules->with[i]) && strcmp(rules->with[i], name) == 0)
            return true;
    return false;
}

static dw_status check_rules(const dw_companion_rules *rules, dw_error *err)
{
    for (size_t i = 0; i < rules->n_with + rules->n_without; i++) {
        const bool is_with = i < rules->n_with;
        const char *glob = is_with ? rules->with[i] : rules->without[i - rules->n_with];
        const char *why = "contains a path; only plain names are allowed";
        if (!strchr(glob, '/') &&
            (!is_with || !is_plain(glob) || dw_file_name_valid(glob, &why)))
            continue;
        return dw_fail(err, DW_INVALID, glob,
                       "this cannot be the name of a companion file: it %s", why);
    }
    return DW_OK;
}

static dw_status add_name(dw_companions *c, const char *name, const char *dir,
                          dw_error *err)
{
    if (c->n == DW_MAX_FILES)
        return dw_fail(err, DW_INVALID, dir,
                       "there are more than %d companion files: take fewer of them",
                       DW_MAX_FILES);
    if (!dw_grow_array((void **)&c->files, &c->n_room, c->n, sizeof *c->files))
        return dw_fail_memory(err, dir);
    c->files[c->n] = (dw_file){.name = dw_copy_string(name)};
    return c->files[c->n++].name ? DW_OK : dw_fail_memory(err, dir);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const dw_file *)a)->name, ((const dw_file *)b)->name);
}

static bool has_name(const dw_companions *c, const char *name)
{
    const dw_file key = {.name = name};
    return c->n > 0 && bsearch(&key, c->files, c->n, sizeof *c->files, compare_names);
}

static dw_status list_names(dw_companions *c, const char *dir,
                            const dw_companion_rules *rules, dw_error *err)
{
    DIR *handle = opendir(dir);
    if (!handle)
        return dw_fail_errno(err, dir, "open");
    dw_status status = DW_OK;
    errno = 0;
    for (struct dirent *entry; status == DW_OK && (entry = readdir(handle)); errno = 0) {
        /* a pattern matches weights and deltawire's own, too */
        if (is_wanted(entry->d_name, rules) && !dw_file_name_reserved(entry->d_name))
            status = add_name(c, entry->d_name, dir, err);
    }
    if (status == DW_OK && errno != 0)
        status = dw_fail_errno(err, dir, "list");
    closedir(handle);
    if (status == DW_OK && c->n > 0)
        qsort(c->files, c->n, sizeof *c->files, compare_names);
    for (size_t i = 0; status == DW_OK && i < rules->n_with; i++)
        if (is_plain(rules->with[i]) && is_wanted(rules->with[i], rules) &&
            !has_name(c, rules->with[i]))
            status = dw_fail(err, DW_NOT_FOUND, dir, "there is no file '%s' in it",
                             rules->with[i]);
    return status;
}

/* ---- reading ---- */

static dw_status fail_changed(const char *path, const char *what, dw_error *err)
{
    return dw_fail(err, DW_STALE, path,
                   "the file %s while it was read: nothing was published. Publish again "
                   "when no process writes it",
                   what);
}

/* Reads N_BYTES, which is what the file had. It must end there. */
static dw_status read_exactly(int fd, uint8_t *into, size_t n_bytes, const char *path,
                              dw_error *err)
{
    size_t n = 0;
    for (;;) {
        uint8_t more;
        ssize_t got = n < n_bytes ? read(fd, into + n, n_bytes - n) : read(fd, &more, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return dw_fail_errno(err, path, "read");
        if (got == 0)
            return n == n_bytes ? DW_OK : fail_changed(path, "got shorter", err);
        if (n == n_bytes)
            return fail_changed(path, "grew", err);
        n += (size_t)got;
    }
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* A file that is just being written is empty, or ends too early: its size and time do not
 * show that. */
static dw_status check_json(const char *path, const uint8_t *bytes, size_t n_bytes,
                            dw_error *err)
{
    switch (dw_file_json_look(path, bytes, n_bytes)) {
    case DW_JSON_TORN:
        return dw_fail(
            err, DW_STALE, path,
            "it is not JSON: it is empty or ends too early, perhaps because it "
            "is being written. Nothing was published. Publish again when it is "
            "complete, or leave it out");
    case DW_JSON_NEVER:
        return dw_fail(err, DW_INVALID, path,
                       "it is not JSON: it begins neither with { nor with [. Nothing was "
                       "published. Correct it, or leave it out");
    case DW_JSON_WHOLE:
        break;
    }
    return DW_OK;
}

static dw_status read_open(dw_companions *c, dw_file *file, int fd,
                           const struct stat *before, const char *path, dw_error *err)
{
    struct stat after;
    if (before->st_size < 0 ||
        (uint64_t)before->st_size > DW_MAX_FILES_BYTES - c->n_bytes)
        return dw_fail(err, DW_INVALID, path,
                       "with its %" PRIu64 " bytes the companion files have more than %u "
                       "together, which is the limit: leave it out",
                       (uint64_t)before->st_size, DW_MAX_FILES_BYTES);
    const size_t n_bytes = (size_t)before->st_size;
    uint8_t *bytes = dw_alloc(n_bytes);
    file->bytes = bytes;
    file->n_bytes = n_bytes;
    c->n_bytes += n_bytes;
    if (!bytes)
        return dw_fail_memory(err, path);
    dw_status status = read_exactly(fd, bytes, n_bytes, path, err);
    if (status == DW_OK && fstat(fd, &after) != 0)
        return dw_fail_errno(err, path, "examine");
    if (status == DW_OK && after.st_nlink == 0)
        return fail_changed(path, "vanished", err);
    if (status == DW_OK && (after.st_size != before->st_size ||
                            !same_time(&after.st_mtim, &before->st_mtim)))
        return fail_changed(path, "changed", err);
    return status == DW_OK ? check_json(path, bytes, n_bytes, err) : status;
}

static dw_status check_name(const char *path, dw_error *err)
{
    const char *why;
    const char *slash = strrchr(path, '/');
    return dw_file_name_valid(slash ? slash + 1 : path, &why)
               ? DW_OK
               : dw_fail(
                     err, DW_INVALID, path,
                     "this cannot be the name of a companion file: it %s. Nothing was "
                     "published. Rename it, or leave it out",
                     why);
}

static bool is_directory(const char *path)
{
    struct stat s;
    return lstat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static dw_status fail_no_file(const char *path, bool is_required, dw_error *err)
{
    if (!is_required && is_directory(path))
        return DW_OK;
    return dw_fail(err, DW_INVALID, path,
                   "this is not a regular file, so it cannot be published. Nothing was "
                   "published. Remove it, or leave it out");
}

/* *TAKEN is false if it is a directory, which is passed over unless IS_REQUIRED. */
static dw_status read_one(dw_companions *c, dw_file *file, const char *path,
                          bool is_required, bool *taken, dw_error *err)
{
    struct stat s;
    *taken = false;
    /* a pipe must not block */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && (errno == ENOENT || errno == ELOOP)) {
        if (lstat(path, &s) != 0)
            return fail_changed(path, "vanished", err);
        return dw_fail(err, DW_NOT_FOUND, path,
                       "the link leads nowhere. Nothing was published. Restore what it "
                       "names, remove the link, or leave it out");
    }
    if (fd < 0 && errno != ENXIO) /* ENXIO: a socket or a device */
        return dw_fail_errno(err, path, "open");
    dw_status status = DW_OK;
    if (fd < 0 || fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
        status = fail_no_file(path, is_required, err);
    } else {
        *taken = true;
        status = check_name(path, err);
        if (status == DW_OK)
            status = read_open(c, file, fd, &s, path, err);
    }
    if (fd >= 0)
        close(fd);
    return status;
}

static dw_status read_all(dw_companions *c, const char *dir,
                          const dw_companion_rules *rules, dw_error *err)
{
    dw_status status = DW_OK;
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        bool taken = false;
        dw_file file = c->files[i];
        char *path = status == DW_OK ? dw_join_path(dir, file.name) : NULL;
        if (status == DW_OK)
            status =
                path ? read_one(c, &file, path, is_named(file.name, rules), &taken, err)
                     : dw_fail_memory(err, dir);
        dw_free(path);
        if (taken)
            c->files[n++] = file;
        else
            release_file(&file);
    }
    c->n = n;
    return status;
}

dw_status dw_companions_load(dw_companions **out, const char *dir,
                             const dw_companion_rules *given, dw_error *err)
{
    dw_companion_rules rules;
    *out = NULL;
    dw_status status = DW_OPTIONS_TAKE(dw_companion_rules, &rules, given, err);
    if (status == DW_OK)
        status = check_rules(&rules, err);
    if (status != DW_OK)
        return status;
    dw_companions *c = dw_alloc_zeroed(1, sizeof *c);
    if (!c)
        return dw_fail_memory(err, dir);
    status = list_names(c, dir, &rules, err);
    if (status == DW_OK)
        status = read_all(c, dir, &rules, err);
    if (status == DW_OK)
        *out = c;
    else
        dw_companions_close(c);
    return status;
}
