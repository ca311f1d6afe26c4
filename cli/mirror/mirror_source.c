#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "checkpoint_read.h"
#include "mirror.h"
#include "path.h"
#include "progress_bar.h"
#include "stream_info.h"

static dw_status open_follower(cli_source *s, dw_error *err)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = s->into;
    options.base = s->base;
    options.trust = s->trust;
    options.n_threads = s->session->n_threads;
    options.open_store = cli_store_open_fork;
    options.open_context = &s->fork_opener;
    options.no_files = true;
    return dw_follower_open(&s->follower, s->store, &options, err);
}

static dw_status open_peer(cli_source *s, dw_error *err)
{
    dw_status status = dw_peer_open(&s->peer, s->store, err);
    if (status == DW_NOT_FOUND)
        return dw_fail(err, DW_NOT_FOUND, s->url,
                       "neither a deltawire stream nor versions of trl or slime are "
                       "here");
    if (status == DW_OK && (s->trust.n_keys > 0 || s->trust.stream))
        status = dw_fail(err, DW_UNTRUSTED, s->url,
                         "versions of %s carry no signature and no stream id: "
                         "leave --trust and --stream out",
                         dw_peer_format_name(dw_peer_get_format(s->peer)));
    if (status != DW_OK)
        return status;
    dw_peer_replica_options options;
    dw_peer_replica_options_init(&options);
    options.into = s->into;
    options.base = s->base;
    options.n_threads = s->session->n_threads;
    return dw_peer_replica_open(&s->replica, s->peer, &options, err);
}

dw_status cli_source_open(cli_source *s, dw_error *err)
{
    s->fork_opener = (cli_fork_opener){s->url, s->options};
    s->base_version = DW_NO_VERSION;
    dw_status status = cli_path_make_directories(s->into, err);
    if (status == DW_OK)
        status = cli_store_open_at(&s->store, s->url, s->options, err);
    if (status == DW_OK)
        status = open_follower(s, err);
    if (status == DW_NOT_FOUND && s->store)
        status = open_peer(s, err);
    if (status != DW_OK)
        cli_source_close(s);
    return status;
}

void cli_source_close(cli_source *s)
{
    dw_checkpoint_close(s->base_ckpt);
    dw_peer_replica_close(s->replica);
    dw_peer_close(s->peer);
    dw_follower_close(s->follower);
    dw_store_close(s->store);
    s->base_ckpt = NULL;
    s->replica = NULL;
    s->peer = NULL;
    s->follower = NULL;
    s->store = NULL;
}

bool cli_source_is_peer(const cli_source *s)
{
    return s->peer != NULL;
}

/* ---- which versions there are ---- */

static dw_status next_of_stream(cli_source *s, uint64_t after, uint64_t *version,
                                dw_error *err)
{
    uint64_t newest, floor = 0;
    dw_status status = dw_follower_poll(s->follower, &newest, err);
    if (status == DW_NOT_FOUND)
        return DW_OK;
    if (status != DW_OK || (after != DW_NO_VERSION && newest <= after))
        return status;
    status = dw_stream_floor(dw_follower_stream(s->follower), &floor, err);
    if (status != DW_OK)
        return status;
    const uint64_t wanted = after == DW_NO_VERSION ? 0 : after + 1;
    *version = wanted < floor ? floor : wanted;
    return DW_OK;
}

/* The version to begin with: the first whole one or, if the user named the base, the base
 * that the first version starts from. */
static dw_status first_of_peer(cli_source *s, const uint64_t *versions, size_t n,
                               uint64_t *version, dw_error *err)
{
    uint64_t base;
    for (size_t i = 0; i < n; i++) {
        dw_status status = dw_peer_version_base(s->peer, versions[i], &base, err);
        if (status != DW_OK)
            return status;
        if (base == DW_NO_VERSION) {
            *version = versions[i];
            return DW_OK;
        }
        if (s->base && i == 0) {
            s->base_version = *version = base;
            return DW_OK;
        }
    }
    return n == 0 ? DW_OK
                  : dw_fail(err, DW_NOT_FOUND, s->url,
                            "none of its %zu versions is whole: name the checkpoint "
                            "that the first one starts from with --base",
                            n);
}

static dw_status next_of_peer(cli_source *s, uint64_t after, uint64_t *version,
                              dw_error *err)
{
    const uint64_t *versions;
    size_t n;
    dw_status status = dw_peer_list(s->peer, &versions, &n, err);
    if (status != DW_OK)
        return status;
    if (after == DW_NO_VERSION)
        return first_of_peer(s, versions, n, version, err);
    for (size_t i = 0; i < n && *version == DW_NO_VERSION; i++)
        if (versions[i] > after)
            *version = versions[i];
    return DW_OK;
}

dw_status cli_source_next(cli_source *s, uint64_t after, uint64_t *version, dw_error *err)
{
    *version = DW_NO_VERSION;
    return s->follower ? next_of_stream(s, after, version, err)
                       : next_of_peer(s, after, version, err);
}

/* ---- going there ---- */

/* The base of a peer is no version of it: its weights are the checkpoint's own. */
static dw_status go_to_base(cli_source *s, dw_error *err)
{
    if (s->base_ckpt)
        return DW_OK;
    dw_status status = cli_weights_check_whole(s->base, err);
    return status == DW_OK
               ? dw_checkpoint_open(&s->base_ckpt, s->base, DW_CHECKPOINT_READ, err)
               : status;
}

/* Skips a version that does not decode, if a later restart made it unneeded. */
static dw_status go_in_stream(cli_source *s, uint64_t version,
                              const dw_progress *progress, dw_error *err)
{
    if (dw_follower_version(s->follower) == version)
        return DW_OK;
    dw_status status = dw_follower_sync(s->follower, version, progress, NULL, err);
    if (status != DW_CORRUPT && status != DW_NOT_FOUND)
        return status;
    dw_error unread;
    uint64_t restart;
    return cli_restart_after(&restart, dw_follower_stream(s->follower), version,
                             &unread) == DW_OK &&
                   restart != DW_NO_VERSION
               ? dw_follower_sync(s->follower, restart, progress, NULL, err)
               : status;
}

dw_status cli_source_go(cli_source *s, uint64_t version, const dw_progress *progress,
                        dw_error *err)
{
    if (s->follower)
        return go_in_stream(s, version, progress, err);
    if (s->base && version == s->base_version)
        return go_to_base(s, err);
    dw_status status =
        dw_peer_replica_version(s->replica) == version
            ? DW_OK
            : dw_peer_replica_sync(s->replica, version, progress, NULL, err);
    if (status == DW_OK) {
        dw_checkpoint_close(s->base_ckpt);
        s->base_ckpt = NULL;
    }
    return status;
}

/* ---- the weights ---- */

const dw_tensor *cli_source_tensors(const cli_source *s, size_t *n_tensors)
{
    if (s->base_ckpt)
        return dw_checkpoint_tensors(s->base_ckpt, n_tensors);
    return s->follower ? dw_follower_tensors(s->follower, n_tensors)
                       : dw_peer_replica_tensors(s->replica, n_tensors);
}

uint64_t cli_source_version(const cli_source *s)
{
    if (s->base_ckpt)
        return s->base_version;
    return s->follower ? dw_follower_version(s->follower)
                       : dw_peer_replica_version(s->replica);
}

dw_status cli_source_commit(const cli_source *s, dw_version_info *out, dw_error *err)
{
    return dw_stream_version(dw_follower_stream(s->follower), cli_source_version(s), out,
                             err);
}

dw_status cli_source_state(const cli_source *s, dw_digest *state, dw_error *err)
{
    if (!s->base_ckpt) {
        *state = s->follower ? dw_follower_state(s->follower)
                             : dw_peer_replica_state(s->replica);
        return DW_OK;
    }
    size_t n;
    const dw_tensor *tensors = dw_checkpoint_tensors(s->base_ckpt, &n);
    dw_digest *digests = calloc(n + 1, sizeof *digests);
    dw_status status = digests ? dw_digest_tensors(digests, state, tensors, n,
                                                   s->session->n_threads, NULL, err)
                               : dw_fail_memory(err, s->base);
    free(digests);
    return status;
}
