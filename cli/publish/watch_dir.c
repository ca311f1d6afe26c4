#include "watch_dir.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "inner.h"

/* ---- scanning a directory ---- */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), n_end = strlen(end);
    return n > n_end && strcmp(name + n - n_end, end) == 0;
}

/* Names that writers use until a file is complete, such as deltawire's and Hugging
 * Face's. */
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
    char text[512];
    uint8_t hash[DW_SHA256_BYTES] = {0};
    snprintf(text, sizeof text, "%s %lld %lld.%09ld %llu", name, (long long)st->st_size,
             (long long)st->st_mtim.tv_sec, (long)st->st_mtim.tv_nsec,
             (unsigned long long)st->st_ino);
    dw_sha256_of(hash, text, strlen(text), NULL);
    return dw_load64(hash);
}

/* The result of scanning a directory once. */
typedef struct glance {
    const dw_companion_rules *rules;
    uint64_t sum;    /* covers the weights and their index, under their final names ... */
    bool with_files; /* ... and companion files */
    uint64_t file_sum; /* covers companion files */
    bool is_empty, has_weights, has_bin;
    struct timespec newest, newest_temporary, newest_weights;
} glance;

static void note_time(struct timespec *latest, const struct stat *st)
{
    if (is_newer(st->st_mtim, *latest))
        *latest = st->st_mtim;
}

static void glance_at_file(glance *g, const char *name, const struct stat *st)
{
    if (is_temporary(name)) {
        note_time(&g->newest_temporary, st);
        return;
    }
    note_time(&g->newest, st);
    g->has_bin |= strncmp(name, "pytorch_model", 13) == 0 && ends_with(name, ".bin");
    /* changes of logs, optimizers and results make no new checkpoint */
    const bool is_weights = ends_with(name, ".safetensors");
    const bool is_companion = dw_companion_takes(g->rules, name);
    if (is_weights || ends_with(name, ".safetensors.index.json") ||
        (g->with_files && is_companion))
        g->sum += print_of(name, st);
    if (is_companion)
        g->file_sum += print_of(name, st);
    if (is_weights) {
        g->has_weights = true;
        note_time(&g->newest_weights, st);
    }
}

/* False if PATH is no directory. */
static bool glance_at(glance *g, const char *path, const dw_companion_rules *rules,
                      bool with_files)
{
    DIR *dir = opendir(path);
    *g = (glance){.rules = rules, .is_empty = true, .with_files = with_files};
    if (!dir)
        return false;
    for (const struct dirent *entry; (entry = readdir(dir));) {
        struct stat st;
        char *file = dw_join_path(path, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            g->is_empty = false;
        if (file && stat(file, &st) == 0 && S_ISREG(st.st_mode))
            glance_at_file(g, entry->d_name, &st);
        dw_free(file);
    }
    closedir(dir);
    return true;
}

/* Whether something is still being written. */
static bool is_under_way(const glance *g)
{
    return is_newer(g->newest_temporary, g->newest);
}

static cli_watch_fault fault_of(const glance *g)
{
    if (g->has_weights)
        return CLI_WATCH_GOOD;
    return g->is_empty  ? CLI_WATCH_EMPTY
           : g->has_bin ? CLI_WATCH_ONLY_BIN
                        : CLI_WATCH_NO_WEIGHTS;
}

/* ---- the list ---- */

/* Takes PATH. */
static dw_status note_item(cli_watch *watch, char *path, bool has_step, uint64_t step,
                           const glance *g, cli_watch_fault fault, dw_error *err)
{
    size_t i = 0;
    while (i < watch->n_items && strcmp(watch->items[i].path, path) != 0)
        i++;
    if (i < watch->n_items) {
        dw_free(path);
    } else {
        cli_watched *grown =
            realloc(watch->items, (watch->n_items + 1) * sizeof *watch->items);
        if (!grown) {
            dw_free(path);
            return dw_fail_memory(err, watch->dir);
        }
        watch->items = grown;
        watch->items[watch->n_items++] = (cli_watched){
            .path = path, .has_step = has_step, .step = step, .version = DW_NO_VERSION};
    }
    cli_watched *item = &watch->items[i];
    const uint64_t print = fault == CLI_WATCH_GOOD && !is_under_way(g) ? g->sum : 0;
    item->is_stable =
        print != 0 && print == item->print && g->file_sum == item->file_print;
    item->print = print;
    if (item->file_print != g->file_sum)
        item->n_file_tries = 0;
    item->file_print = g->file_sum;
    item->written = g->newest_weights.tv_sec;
    item->fault = fault;
    item->n_useless =
        fault == CLI_WATCH_GOOD || is_under_way(g) ? 0 : item->n_useless + 1;
    item->seen = true;
    return DW_OK;
}

/* checkpoint-123, as Hugging Face's and most other trainers name them; step_000123;
 * global_step_123 of verl, global_step123 of DeepSpeed. */
static bool parse_step(const char *name, uint64_t *step)
{
    static const char *const prefixes[] = {"checkpoint-", "step_", "step-",
                                           "global_step_", "global_step"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        const size_t n = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], n) != 0)
            continue;
        char *end;
        errno = 0;
        *step = strtoull(name + n, &end, 10);
        if (name[n] >= '0' && name[n] <= '9' && !*end && errno == 0)
            return true;
    }
    return false;
}

/* Adds DIR/NAME if it is a checkpoint of some step, or a directory with weights but no
 * step in its name. Ignores others. */
static dw_status look_at(cli_watch *watch, const char *name, dw_error *err)
{
    uint64_t step = 0;
    glance g;
    const bool has_step = parse_step(name, &step);
    if (!has_step && (name[0] == '.' || is_temporary(name)))
        return DW_OK;
    char *path = dw_join_path(watch->dir, name);
    if (!path)
        return dw_fail_memory(err, watch->dir);
    const bool is_dir = glance_at(&g, path, &watch->rules, false);
    if (!is_dir || !(has_step || g.has_weights || g.has_bin)) {
        dw_free(path);
        return DW_OK;
    }
    return note_item(watch, path, has_step, step, &g,
                     has_step ? fault_of(&g) : CLI_WATCH_UNKNOWN_NAME, err);
}

/* DIR itself may hold weights; if it does not, checkpoints may come. */
static dw_status look_at_dir(cli_watch *watch, dw_error *err)
{
    glance g;
    char *path = dw_copy_string(watch->dir);
    if (!path)
        return dw_fail_memory(err, watch->dir);
    /* a file that changes in a checkpoint with a step does not mean that the trainer went
     * back to it */
    (void)glance_at(&g, path, &watch->rules, true);
    const cli_watch_fault fault = fault_of(&g);
    return note_item(watch, path, false, 0, &g, fault, err);
}

static void forget_gone(cli_watch *watch)
{
    size_t n = 0;
    for (size_t i = 0; i < watch->n_items; i++) {
        if (watch->items[i].seen)
            watch->items[n++] = watch->items[i];
        else
            dw_free(watch->items[i].path);
    }
    watch->n_items = n;
}

dw_status cli_watch_look(cli_watch *watch, dw_error *err)
{
    DIR *dir = opendir(watch->dir);
    if (!dir)
        return dw_fail_errno(err, watch->dir, "look into the directory");
    for (size_t i = 0; i < watch->n_items; i++)
        watch->items[i].seen = false;
    dw_status status = look_at_dir(watch, err);
    for (const struct dirent *entry; status == DW_OK && (entry = readdir(dir));)
        status = look_at(watch, entry->d_name, err);
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
    item->version = DW_NO_VERSION;
}

/* A trainer may make a directory some time before its files. */
#define USELESS_LOOKS 5

cli_watched *cli_watch_useless(cli_watch *watch)
{
    for (size_t i = 0; i < watch->n_items; i++) {
        cli_watched *item = &watch->items[i];
        const bool is_dir_itself = strcmp(item->path, watch->dir) == 0;
        if (item->reported || item->n_useless < USELESS_LOOKS ||
            (is_dir_itself && item->fault != CLI_WATCH_ONLY_BIN))
            continue;
        item->reported = true;
        return item;
    }
    return NULL;
}

const char *cli_watch_fault_text(cli_watch_fault fault)
{
    switch (fault) {
    case CLI_WATCH_EMPTY:
        return "it is empty. It is published when there are .safetensors files in it";
    case CLI_WATCH_ONLY_BIN:
        return "its weights are not safetensors files (pytorch_model.bin, for instance), "
               "so it is not published. Save with safetensors: in transformers, "
               "save_safetensors=True";
    case CLI_WATCH_NO_WEIGHTS:
        return "there are no .safetensors files in it (directories inside it are not "
               "searched). It is published when there are";
    case CLI_WATCH_UNKNOWN_NAME:
        return "its name has no step, as checkpoint-N or step_N has, so it is not "
               "published. Rename it, or publish it with: deltawire publish URL DIR";
    case CLI_WATCH_GOOD:
        break;
    }
    return "";
}

void cli_watch_release(cli_watch *watch)
{
    for (size_t i = 0; i < watch->n_items; i++)
        dw_free(watch->items[i].path);
    free(watch->items);
    *watch = (cli_watch){0};
}
