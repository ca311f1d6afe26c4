#include "watch_dir.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "error.h"
#include "hash.h"
#include "path.h"

/* ---- what a directory looks like ---- */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), n_end = strlen(end);
    return n > n_end && strcmp(name + n - n_end, end) == 0;
}

/* Names that writers use until a file is whole: ours and Hugging Face's among them. */
static bool is_temporary(const char *name)
{
    return strstr(name, ".tmp") || strncmp(name, "tmp", 3) == 0 ||
           ends_with(name, ".incomplete") || ends_with(name, ".part");
}

static bool is_newer(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

/* A number for a file's name, size and time. */
static uint64_t print_of(const char *name, const struct stat *st)
{
    char text[512], digits[17];
    snprintf(text, sizeof text, "%s %lld %lld.%09ld %llu", name, (long long)st->st_size,
             (long long)st->st_mtim.tv_sec, (long)st->st_mtim.tv_nsec,
             (unsigned long long)st->st_ino);
    cli_hash_text(digits, 16, text);
    return strtoull(digits, NULL, 16);
}

/* The sum over all regular files; 0 where there are no weights, or something is still
 * being written. */
static uint64_t print_of_directory(const char *path)
{
    DIR *dir = opendir(path);
    uint64_t sum = 0;
    bool has_weights = false;
    struct timespec newest = {0}, newest_temporary = {0};
    if (!dir)
        return 0;
    for (const struct dirent *entry; (entry = readdir(dir));) {
        struct stat st;
        char *file = cli_path_join(path, entry->d_name);
        if (file && stat(file, &st) == 0 && S_ISREG(st.st_mode)) {
            struct timespec *latest = &newest;
            if (is_temporary(entry->d_name)) {
                latest = &newest_temporary;
            } else {
                sum += print_of(entry->d_name, &st);
                has_weights |= ends_with(entry->d_name, ".safetensors");
            }
            if (is_newer(st.st_mtim, *latest))
                *latest = st.st_mtim;
        }
        free(file);
    }
    closedir(dir);
    return has_weights && !is_newer(newest_temporary, newest) ? sum : 0;
}

/* ---- the list ---- */

/* Takes PATH. */
static dw_status note_item(cli_watch *watch, char *path, bool has_step, uint64_t step,
                           dw_error *err)
{
    if (!path)
        return cli_error_set(err, DW_NO_MEMORY, watch->dir, "out of memory");
    size_t i = 0;
    while (i < watch->n_items && strcmp(watch->items[i].path, path) != 0)
        i++;
    if (i < watch->n_items) {
        free(path);
    } else {
        cli_watched *grown =
            realloc(watch->items, (watch->n_items + 1) * sizeof *watch->items);
        if (!grown) {
            free(path);
            return cli_error_set(err, DW_NO_MEMORY, watch->dir, "out of memory");
        }
        watch->items = grown;
        watch->items[watch->n_items++] =
            (cli_watched){.path = path, .has_step = has_step, .step = step};
    }
    cli_watched *item = &watch->items[i];
    uint64_t print = print_of_directory(item->path);
    item->is_stable = print != 0 && print == item->print;
    item->print = print;
    item->seen = true;
    return DW_OK;
}

/* checkpoint-123, as Hugging Face's and most other trainers name them; step_000123. */
static bool parse_step(const char *name, uint64_t *step)
{
    static const char *const prefixes[] = {"checkpoint-", "step_", "step-"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        const size_t n = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], n) != 0)
            continue;
        char *end;
        errno = 0;
        *step = strtoull(name + n, &end, 10);
        return name[n] >= '0' && name[n] <= '9' && !*end && errno == 0;
    }
    return false;
}

static void forget_gone(cli_watch *watch)
{
    size_t n = 0;
    for (size_t i = 0; i < watch->n_items; i++) {
        if (watch->items[i].seen)
            watch->items[n++] = watch->items[i];
        else
            free(watch->items[i].path);
    }
    watch->n_items = n;
}

dw_status cli_watch_look(cli_watch *watch, dw_error *err)
{
    DIR *dir = opendir(watch->dir);
    if (!dir)
        return cli_error_errno(err, watch->dir, "look into the directory");
    for (size_t i = 0; i < watch->n_items; i++)
        watch->items[i].seen = false;
    dw_status status = note_item(watch, strdup(watch->dir), false, 0, err);
    for (const struct dirent *entry; status == DW_OK && (entry = readdir(dir));) {
        uint64_t step;
        if (parse_step(entry->d_name, &step))
            status = note_item(watch, cli_path_join(watch->dir, entry->d_name), true,
                               step, err);
    }
    closedir(dir);
    if (status == DW_OK)
        forget_gone(watch);
    return status;
}

cli_watched *cli_watch_next(cli_watch *watch)
{
    cli_watched *next = NULL;
    for (size_t i = 0; i < watch->n_items; i++) {
        cli_watched *item = &watch->items[i];
        if (!item->is_stable || item->print == item->done)
            continue;
        if (!next || (item->has_step && (!next->has_step || item->step < next->step)))
            next = item;
    }
    return next;
}

void cli_watch_done(cli_watched *item)
{
    item->done = item->print;
}

void cli_watch_skip(cli_watch *watch, uint64_t step)
{
    for (size_t i = 0; i < watch->n_items; i++)
        if (watch->items[i].has_step && watch->items[i].step <= step)
            cli_watch_done(&watch->items[i]);
}

void cli_watch_release(cli_watch *watch)
{
    for (size_t i = 0; i < watch->n_items; i++)
        free(watch->items[i].path);
    free(watch->items);
    *watch = (cli_watch){0};
}
