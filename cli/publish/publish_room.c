/* Room on disk for the copies of the model that `publish` keeps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "cmd_publish.h"
#include "print.h"
#include "stream_open.h"
#include "inner.h"

/* The bytes of a version of these weights, as they are published. */
static uint64_t model_bytes(const cli_publish *p, const cli_weights *weights)
{
    uint64_t n = 0;
    dw_error reported_later; /* by the publisher */
    if (p->options.quantize &&
        dw_quant_model_bytes(&n, weights->tensors, weights->n_tensors,
                             p->options.quantize, &reported_later) == DW_OK)
        return n;
    return weights->n_bytes;
}

static bool holds(const char *dir, const char *name)
{
    struct stat st;
    char *path = dw_join_path(dir, name);
    const bool found = path && lstat(path, &st) == 0;
    dw_free(path);
    return found;
}

/* The device of PATH or, if it does not exist, of the directory it would be made in. */
static bool find_device(dev_t *out, const char *path)
{
    struct stat found;
    char *at = dw_copy_string(path);
    while (at && stat(at, &found) != 0) {
        char *parent =
            strcmp(at, "/") == 0 || strcmp(at, ".") == 0 ? NULL : dw_parent_path(at);
        dw_free(at);
        at = parent;
    }
    *out = at ? found.st_dev : 0;
    dw_free(at);
    return *out != 0;
}

/* Whether the store is a directory on the disk of DIR. */
static bool is_same_disk(const dw_store *store, const char *dir)
{
    const char *path = cli_store_path(dw_store_url(store));
    dev_t a, b;
    return path && find_device(&a, path) && find_device(&b, dir) && a == b;
}

dw_status cli_publish_check_room(const cli_publish *p, const dw_store *store, bool is_new,
                                 const cli_weights *weights, const char *dir,
                                 dw_error *err)
{
    struct statvfs disk;
    char need[CLI_NUMBER_SIZE], have[CLI_NUMBER_SIZE];
    const bool has_copy =
        holds(dir, "model.safetensors") || holds(dir, ".deltawire/state.json");
    const bool writes_first =
        is_new && p->options.first == DW_FIRST_ANCHOR && is_same_disk(store, dir);
    const uint64_t n_model = model_bytes(p, weights);
    const uint64_t n_needed = n_model * ((has_copy ? 0u : 1u) + (writes_first ? 1u : 0u));
    if (statvfs(dir, &disk) != 0)
        return DW_OK;
    const uint64_t n_free = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (n_free >= n_needed)
        return DW_OK;
    cli_format_size(have, n_free);
    cli_format_size(need, n_needed);
    return dw_fail(err, DW_IO, dir,
                   "the disk has %s free, but %s needs %s: nothing was published. "
                   "Free some room, or put the copy elsewhere with --baseline DIR",
                   have,
                   writes_first ? "the copy of the model that publish compares "
                                  "with, and version 0 on the same disk,"
                                : "the copy of the model that publish compares with",
                   need);
}
