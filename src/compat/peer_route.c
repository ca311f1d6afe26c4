#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "compat/peer_replica.h"

void dw_peer_route_release(dw_peer_route *route)
{
    dw_free(route->versions);
    *route = (dw_peer_route){0};
}

static dw_status add(dw_peer_route *route, const dw_peer_record *r, dw_error *err)
{
    if (!dw_grow_array((void **)&route->versions, &route->n_room, route->n,
                       sizeof *route->versions))
        return dw_fail_memory(err, NULL);
    route->versions[route->n++] = r->version;
    route->n_bytes += r->n_bytes;
    return DW_OK;
}

/* Ends the route at a version that is not listed: it is the base, or it is missing. */
static dw_status end_at(dw_peer_route *route, const dw_peer_replica *replica,
                        uint64_t version, uint64_t base, dw_error *err)
{
    const dw_peer *p = replica->peer;
    const char *url = dw_store_url(p->store);
    if (p->format == DW_PEER_TRL && (!replica->base || base == DW_NO_VERSION))
        return dw_fail(
            err, DW_NOT_FOUND, url,
            "version %" PRIu64 " has no whole anchor before it: nothing here is "
            "the whole model. Name the checkpoint that it starts from with `base`",
            version);
    if (base > p->versions[0])
        return dw_fail(err, DW_NOT_FOUND, url,
                       "version %" PRIu64 " starts from version %" PRIu64
                       ", which is not there: the chain is broken",
                       version, base);
    if (!replica->base)
        return dw_fail(err, DW_NOT_FOUND, url,
                       "version %" PRIu64 " starts from version %" PRIu64
                       ", which is the engine's own model and not here: name that "
                       "checkpoint with `base`",
                       version, base);
    route->start = base;
    route->from_base = true;
    return DW_OK;
}

/* The route may start from the weights only if the store still has their version
 * unchanged, or has removed it. */
static dw_status check_history(const dw_peer_replica *replica, dw_error *err)
{
    const dw_peer_record *r;
    dw_error fault = {0};
    if (!replica->weights ||
        !dw_peer_has(replica->peer, dw_target_at(replica->weights)->version, NULL))
        return DW_OK;
    const dw_position *at = dw_target_at(replica->weights);
    dw_status status = dw_peer_record_get(replica->peer, at->version, &r, &fault);
    if (status != DW_OK && !dw_stream_passes_over(status)) {
        if (err)
            *err = fault;
        return status;
    }
    /* a damaged record does not show that the weights are outdated */
    if (status != DW_OK || memcmp(r->sha256, at->commit_sha256, sizeof r->sha256) == 0)
        return DW_OK;
    return dw_fail(err, DW_STALE, replica->into,
                   "the weights are version %" PRIu64
                   ", but the store has another version "
                   "of that number now: a run was started again. Remove the directory "
                   "and pull again",
                   at->version);
}

static void reverse(dw_peer_route *route)
{
    for (size_t i = 0; i < route->n / 2; i++) {
        uint64_t v = route->versions[i];
        route->versions[i] = route->versions[route->n - 1 - i];
        route->versions[route->n - 1 - i] = v;
    }
}

static dw_status walk_back(dw_peer_route *route, dw_peer_replica *replica, uint64_t goal,
                           size_t n_full, dw_error *err)
{
    const dw_peer *p = replica->peer;
    const uint64_t at = dw_peer_replica_version(replica);
    dw_status status = DW_OK;
    for (uint64_t version = goal; status == DW_OK && version != at;) {
        const dw_peer_record *r;
        status = dw_peer_record_get(replica->peer, version, &r, err);
        if (status == DW_OK)
            status = add(route, r, err);
        if (status != DW_OK)
            return status;
        const uint64_t base = dw_peer_base(p, r, n_full);
        if (base == DW_NO_VERSION && r->is_whole)
            return DW_OK; /* whole: starts from nothing */
        /* TRL writes no file for a step without changes, so a lost file looks the same */
        if (base == DW_NO_VERSION || (base != at && !dw_peer_has(p, base, NULL)))
            return end_at(route, replica, version, base, err);
        version = base; /* lower than before, so the loop ends */
    }
    route->start = at;
    return status;
}

dw_status dw_peer_route_find(dw_peer_route *out, dw_peer_replica *replica, uint64_t goal,
                             dw_error *err)
{
    const dw_peer *p = replica->peer;
    size_t n_full;
    *out = (dw_peer_route){.start = DW_NO_VERSION};
    if (goal == DW_NO_VERSION)
        return dw_fail(err, DW_INVALID, NULL,
                       "the goal is DW_NO_VERSION: name a version, or DW_NEWEST");
    dw_status status = check_history(replica, err);
    if (status == DW_OK)
        status = dw_peer_full_count(replica->peer, &n_full, err);
    if (status != DW_OK)
        return status;
    size_t n_here = 0;
    if (replica->weights)
        dw_target_tensors(replica->weights, &n_here);
    if (n_here > n_full)
        n_full = n_here;
    if (p->n_versions == 0)
        return dw_fail(err, DW_NOT_FOUND, dw_store_url(p->store),
                       "there is no version yet");
    if (goal == DW_NEWEST)
        goal = p->versions[p->n_versions - 1];
    if (goal != dw_peer_replica_version(replica) && !dw_peer_has(p, goal, NULL))
        return dw_fail(err, DW_NOT_FOUND, dw_store_url(p->store),
                       "version %" PRIu64 " is not there; the newest is %" PRIu64 "%s",
                       goal, p->versions[p->n_versions - 1],
                       p->format == DW_PEER_TRL && goal < p->versions[p->n_versions - 1]
                           ? ". A step of TRL that changes nothing has no file"
                           : "");
    status = walk_back(out, replica, goal, n_full, err);
    reverse(out);
    return status;
}
