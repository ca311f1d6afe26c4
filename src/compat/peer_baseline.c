/* The baseline of a publisher for peers: the weights that a reader of the store has.
 *
 * dw_peer_replica keeps it in a directory. So the same code reads the store at a start,
 * repairs what a killed process left, and proves each version that was written.
 */
#include <dirent.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "compat/peer_int.h"
#include "compat/peer_publish_int.h"
#include "tensor/tensor_list.h"
#include "weights/own_dir.h"

/* ---- the store ---- */

/* If the store has no versions of a peer, it must not hold a deltawire stream either. */
static dw_status check_no_stream(dw_peer_publisher *p, dw_error *err)
{
    dw_stream *stream = NULL;
    dw_status status = dw_stream_open(&stream, p->store, NULL, err);
    dw_stream_close(stream);
    if (status == DW_OK)
        return dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                       "a deltawire stream is here: publish into it as a stream, or "
                       "name another place");
    return status == DW_NOT_FOUND ? DW_OK : status;
}

static dw_status open_peer(dw_peer_publisher *p, dw_error *err)
{
    dw_status status = dw_peer_open(&p->peer, p->store, err);
    if (status == DW_NOT_FOUND)
        return check_no_stream(p, err);
    if (status == DW_OK && dw_peer_get_format(p->peer) != p->options.format) {
        status = dw_fail(err, DW_CONFLICT, dw_store_url(p->store),
                         "versions of %s are here, not of %s: name another place",
                         dw_peer_format_name(dw_peer_get_format(p->peer)),
                         dw_peer_format_name(p->options.format));
        dw_peer_close(p->peer);
        p->peer = NULL;
    }
    return status;
}

dw_status dw_peer_baseline_look(dw_peer_publisher *p, dw_error *err)
{
    const uint64_t *versions = NULL;
    size_t n = 0;
    dw_status status = p->peer ? DW_OK : open_peer(p, err);
    if (status == DW_OK && p->peer)
        status = dw_peer_list(p->peer, &versions, &n, err);
    if (status != DW_OK)
        return status;
    p->newest = n > 0 ? versions[n - 1] : DW_NO_VERSION;
    p->looked = true;
    return DW_OK;
}

/* ---- the directory ---- */

static dw_status make_directory(dw_peer_publisher *p, dw_error *err)
{
    if (p->options.baseline_dir)
        return DW_OK;
    const char *tmp = getenv("TMPDIR");
    char *path = dw_join_path(tmp && tmp[0] ? tmp : "/tmp", "deltawire-XXXXXX");
    if (!path)
        return dw_fail_memory(err, NULL);
    if (!mkdtemp(path)) {
        dw_status status = dw_fail_errno(err, path, "make a temporary directory");
        dw_free(path);
        return status;
    }
    p->options.baseline_dir = path;
    p->owns_dir = true;
    return DW_OK;
}

/* Whether a replica makes files with this name. */
static bool is_replica_file(const char *name)
{
    static const char *const patterns[] = {"*.safetensors", "*.safetensors.index.json"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (fnmatch(patterns[i], name, 0) == 0)
            return true;
    return false;
}

/* Removes a replica's files. If the caller named the directory, other files in it stay.
 */
static void empty_directory(const char *path, bool is_own)
{
    DIR *dir = opendir(path);
    dw_own_dir_remove(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char *file = dw_join_path(path, e->d_name);
        const bool is_dir = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
        if (file && !is_dir && (is_own || is_replica_file(e->d_name)))
            unlink(file);
        dw_free(file);
    }
    if (dir)
        closedir(dir);
}

static dw_status open_replica(dw_peer_publisher *p, dw_peer *peer, dw_error *err)
{
    dw_peer_replica_options options;
    dw_status status = make_directory(p, err);
    if (status != DW_OK)
        return status;
    dw_peer_replica_options_init(&options);
    options.into = p->options.baseline_dir;
    options.n_threads = p->options.n_threads;
    return dw_peer_replica_open(&p->replica, peer, &options, err);
}

/* Checks that the versions in the store are of the model that is published. */
static dw_status check_model(const dw_peer_publisher *p, const char *where, dw_error *err)
{
    size_t n;
    const dw_tensor *there = dw_peer_publisher_baseline(p, &n);
    if (!there)
        return DW_OK;
    for (size_t i = 0; i < n && i < p->n_tensors; i++) {
        const int order = strcmp(there[i].name, p->next[i].name);
        if (order != 0)
            return dw_fail_tensor(err, DW_MISMATCH, where,
                                  order < 0 ? there[i].name : p->next[i].name,
                                  order < 0 ? "the versions there have it, the model "
                                              "that is published does not"
                                            : "the model that is published has it, the "
                                              "versions there do not");
        dw_status status = dw_tensor_same_shape(&there[i], &p->next[i], where, err);
        if (status != DW_OK)
            return status;
    }
    if (n != p->n_tensors)
        return dw_fail(err, DW_MISMATCH, where,
                       "the versions there have %zu tensors, the model that is published "
                       "has %zu",
                       n, p->n_tensors);
    return DW_OK;
}

dw_status dw_peer_baseline_check(dw_peer_publisher *p, dw_error *err)
{
    dw_peer none = {.store = p->store, .format = p->options.format};
    if (!p->options.baseline_dir)
        return DW_OK;
    dw_status status = open_replica(p, &none, err);
    if (status == DW_OK)
        status = check_model(p, p->options.baseline_dir, err);
    dw_peer_replica_close(p->replica);
    p->replica = NULL;
    return status;
}

static dw_status bring_replica(dw_peer_publisher *p, dw_error *err)
{
    dw_status status = p->replica ? DW_OK : open_replica(p, p->peer, err);
    return status == DW_OK ? dw_peer_replica_sync(p->replica, p->newest,
                                                  &p->options.progress, NULL, err)
                           : status;
}

dw_status dw_peer_baseline_follow(dw_peer_publisher *p, dw_error *err)
{
    dw_status status = DW_OK;
    if (p->newest == DW_NO_VERSION)
        return DW_OK;
    if (!p->peer)
        status = dw_peer_baseline_look(p, err);
    if (status == DW_OK)
        status = bring_replica(p, err);
    /* its record does not agree with the store: a run was started again, or a record was
     * damaged in transit */
    if (status == DW_STALE) {
        dw_peer_baseline_reset(p);
        status = bring_replica(p, err);
    }
    return status == DW_OK ? check_model(p, dw_store_url(p->store), err) : status;
}

const dw_tensor *dw_peer_publisher_baseline(const dw_peer_publisher *p, size_t *n_tensors)
{
    *n_tensors = 0;
    return p->replica ? dw_peer_replica_tensors(p->replica, n_tensors) : NULL;
}

bool dw_peer_baseline_blames_newest(dw_peer_publisher *p)
{
    const uint64_t *versions;
    size_t n;
    dw_error unread;
    if (!p->replica || dw_peer_list(p->peer, &versions, &n, &unread) != DW_OK || n == 0 ||
        versions[n - 1] != p->newest)
        return false;
    return n == 1 || dw_peer_replica_sync(p->replica, versions[n - 2],
                                          &p->options.progress, NULL, &unread) == DW_OK;
}

void dw_peer_baseline_reset(dw_peer_publisher *p)
{
    if (!p->replica)
        return;
    dw_peer_replica_close(p->replica);
    p->replica = NULL;
    empty_directory(p->options.baseline_dir, p->owns_dir);
}

void dw_peer_baseline_release(dw_peer_publisher *p)
{
    dw_peer_replica_close(p->replica);
    dw_peer_close(p->peer);
    if (p->owns_dir) {
        empty_directory(p->options.baseline_dir, true);
        rmdir(p->options.baseline_dir);
    }
}
