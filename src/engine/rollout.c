#include "engine/rollout_int.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "engine/engine_int.h"
#include "engine/four_phase.h"
#include "follow/follower.h"
#include "inner.h"

#define N_TRIES 3 /* of an update */

/* ---- opening ---- */

static dw_status make_engines(dw_rollout *r, dw_error *err)
{
    r->n_engines = r->options.n_engines;
    if (r->n_engines > DW_MAX_ENGINES)
        return dw_fail(err, DW_INVALID, NULL, "%zu engines: at most %d", r->n_engines,
                       DW_MAX_ENGINES);
    r->engines = dw_alloc_zeroed(r->n_engines, sizeof *r->engines);
    if (!r->engines)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < r->n_engines; i++)
        dw_host_engine_init(&r->engines[i], r, r->options.engines[i]);
    return DW_OK;
}

/* Two processes that keep one directory would pause and resume each other's engines. */
static dw_status check_lock(const char *into, dw_error *err)
{
    int fd = open(into, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return dw_fail_errno(err, into, "open the directory");
    dw_status status = dw_target_take_lock(fd, into, err);
    close(fd); /* this releases the lock */
    return status;
}

/* Whether STATUS means that the patch is not one for these weights. */
static bool is_damage(dw_status status)
{
    return status == DW_CORRUPT || status == DW_STALE || status == DW_MISMATCH ||
           status == DW_UNSUPPORTED;
}

/* A killed process left weights half written. The follower finishes them as soon as it
 * opens, so the engines, which may read them, must be paused before, and none that reads
 * them in place is resumed until it is done. An engine that is gone does not read. If the
 * patch is damaged, the follower does not store it, and no engine is paused for it. */
static dw_status pause_for_recovery(dw_rollout *r, const char *into, unsigned n_threads,
                                    dw_error *err)
{
    dw_status status = r->follower ? DW_OK : check_lock(into, err);
    if (status == DW_OK)
        status = dw_target_check_interrupted(into, n_threads, err);
    if (status != DW_OK)
        return is_damage(status) ? DW_OK : status;
    r->recovering = true;
    status = dw_host_engines_pause(r, NULL, err);
    for (size_t i = 0; status != DW_OK && i < r->n_engines; i++) {
        const dw_host_engine *e = &r->engines[i];
        if (e->t_paused == 0 && e->status.error.code != DW_NOT_FOUND)
            return dw_host_engine_fail(e, err);
    }
    r->all_stand = true;
    dw_host_engines_pass_by(r);
    return DW_OK;
}

static void ask_label(dw_host_engine *e, void *context)
{
    (void)context;
    dw_host_engine_probe(e);
}

/* The stream cannot be opened, but the half-written weights are finished. The engines
 * that were paused for this are resumed with these weights. */
static bool serve_recovered(dw_rollout *r, const dw_follow_options *follow)
{
    dw_position at;
    dw_update_paths paths = {0};
    dw_engine_update update;
    dw_handover handover;
    /* the follower may have failed at a later request to the store */
    const bool done =
        r->all_stand && dw_target_recover(follow, NULL) == DW_OK &&
        dw_target_recovered(&at, follow->into, NULL) == DW_OK &&
        dw_update_of_position(&update, &paths, &at, follow->into, NULL) == DW_OK;
    if (done) {
        r->recovering = false;
        dw_host_engines_each(r, ask_label, NULL);
        dw_handover_apply(&handover, r, &update);
        dw_handover_resume(&handover);
    }
    dw_update_paths_release(&paths);
    return done;
}

static void release_engine(dw_host_engine *e, void *context)
{
    const bool *is_whole = context;
    if (*is_whole || e->engine->own_weights)
        dw_host_engine_release(e);
}

static bool is_stuck(const dw_host_engine *e)
{
    return e->state == DW_HOST_PAUSED && e->status.state != DW_ENGINE_AWAY;
}

static void check_engine(dw_host_engine *e, void *context);

static void update_stuck(dw_host_engine *e, void *context)
{
    if (is_stuck(e))
        check_engine(e, context);
}

static bool any_is_stuck(const dw_rollout *r)
{
    for (size_t i = 0; i < r->n_engines; i++)
        if (is_stuck(&r->engines[i]))
            return true;
    return false;
}

/* The follower cannot be opened. An engine whose weights are whole serves them, also if
 * it was found paused. Another one gets those of the directory, if they are whole.
 * PENDING: they may be half written. */
static void serve_what_is_there(dw_rollout *r, const dw_follow_options *follow,
                                bool pending)
{
    dw_position at;
    dw_update_paths paths = {0};
    dw_engine_update update;
    if (check_lock(follow->into, NULL) != DW_OK)
        return; /* another process may have paused them */
    bool is_whole = pending && dw_target_check_whole(&at, follow->into, follow->n_threads,
                                                     NULL) == DW_OK;
    r->recovering = r->recovering && !is_whole;
    dw_host_engines_each(r, release_engine, &is_whole);
    if (!any_is_stuck(r))
        return;
    if (!pending)
        is_whole =
            dw_target_check_whole(&at, follow->into, follow->n_threads, NULL) == DW_OK;
    if (is_whole &&
        dw_update_of_position(&update, &paths, &at, follow->into, NULL) == DW_OK)
        dw_host_engines_each(r, update_stuck, &update);
    dw_update_paths_release(&paths);
}

dw_status dw_rollout_start_over(dw_rollout *r, dw_error *err)
{
    bool pending = false;
    const char *into = r->follower->options.into;
    dw_status status =
        r->n_engines > 0 ? dw_follower_pending(into, &pending, err) : DW_OK;
    if (status == DW_OK && pending)
        status = pause_for_recovery(r, into, r->follower->options.n_threads, err);
    if (status == DW_OK)
        status = dw_follower_start_over(r->follower, err);
    if (status == DW_OK)
        r->recovering = false;
    for (size_t i = 0; i < r->n_engines; i++)
        r->engines[i].must_reload = true;
    return status;
}

dw_status dw_rollout_open(dw_rollout **out, dw_store *store,
                          const dw_follow_options *given_follow,
                          const dw_rollout_options *given, dw_error *err)
{
    bool pending = false;
    *out = NULL;
    dw_rollout *r = dw_alloc_zeroed(1, sizeof *r);
    if (!r)
        return dw_fail_memory(err, NULL);
    dw_follow_options follow;
    dw_status status = DW_OPTIONS_TAKE(dw_follow_options, &follow, given_follow, err);
    if (status == DW_OK) {
        r->options = given ? *given : (dw_rollout_options){0};
        if (r->options.n_tries == 0)
            r->options.n_tries = N_TRIES;
        status = make_engines(r, err);
    }
    if (status == DW_OK && follow.into && r->n_engines > 0)
        status = dw_follower_pending(follow.into, &pending, err);
    if (status == DW_OK && pending)
        status = pause_for_recovery(r, follow.into, follow.n_threads, err);
    if (status == DW_OK) /* else an engine may be reading the weights */
        status = dw_follower_open(&r->follower, store, &follow, err);
    if (status == DW_OK)
        r->recovering = false;
    else if (follow.into && r->n_engines > 0 && !serve_recovered(r, &follow))
        serve_what_is_there(r, &follow, pending);
    if (status == DW_OK)
        *out = r;
    else
        dw_rollout_close(r);
    return status;
}

void dw_rollout_close(dw_rollout *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n_engines; i++)
        dw_host_engine_end_retry(&r->engines[i]);
    dw_host_engines_resume(r, NULL);
    dw_follower_close(r->follower);
    dw_free(r->engines);
    dw_free(r);
}

dw_follower *dw_rollout_follower(dw_rollout *r)
{
    return r->follower;
}

/* ---- the engines ---- */

const dw_engine_status *dw_rollout_engine(const dw_rollout *r, size_t i)
{
    return &r->engines[i].status;
}

bool dw_rollout_is_serving(const dw_rollout *r)
{
    for (size_t i = 0; i < r->n_engines; i++)
        if (r->engines[i].status.state != DW_ENGINE_SERVING)
            return false;
    return true;
}

/* UPDATE is the version of the weights. NULL: a step is prepared, or there is no version
 * yet, so the engine gets none. */
static void check_engine(dw_host_engine *e, void *context)
{
    const dw_engine_update *update = context;
    dw_host_engine_probe(e);
    dw_host_engine_retry_pause(e); /* if it hangs */
    if (dw_host_engine_hangs(e) || e->status.state == DW_ENGINE_AWAY)
        return;
    if (!update) {
        dw_host_engine_resume(e, NULL); /* its last resume may have been lost */
        return;
    }
    if (dw_host_engine_serves(e, update->version)) {
        dw_host_engine_confirm(e, update);
        return;
    }
    /* until the next try it goes on with its version */
    if (dw_clock_ms() >= e->try_at && dw_host_engine_pause(e, update))
        dw_host_engine_apply(e, update);
    dw_host_engine_resume(e, update);
}

dw_status dw_rollout_check(dw_rollout *r, dw_error *err)
{
    dw_update_paths paths = {0};
    dw_engine_update update;
    dw_status status = DW_OK;
    dw_host_engines_collect_retries(r);
    /* weights with stores outstanding must not be loaded: the next sync goes on */
    bool whole = dw_follower_version(r->follower) != DW_NO_VERSION &&
                 dw_follower_update(r->follower).state == DW_UPDATE_NONE;
    if (whole)
        status = dw_update_of_version(&update, &paths, r->follower, err);
    if (status == DW_OK)
        dw_host_engines_each(r, check_engine, whole ? &update : NULL);
    dw_update_paths_release(&paths);
    return status;
}

/* ---- sync ---- */

dw_status dw_rollout_sync(dw_rollout *r, uint64_t goal, const dw_progress *progress,
                          dw_error *err)
{
    dw_follower *f = r->follower;
    dw_update staged;
    dw_status status = dw_follower_refuse_none(goal, err);
    /* first the step that an earlier call did not finish, whatever the goal is now, and
     * even if the store is away */
    while (status == DW_OK && (staged = dw_follower_update(f)).state != DW_UPDATE_NONE)
        status = dw_four_phases(r, staged.version, progress, err);
    if (status == DW_OK && goal == DW_NEWEST)
        status = dw_follower_poll(f, &goal, err);
    while (status == DW_OK && (dw_follower_update(f).state != DW_UPDATE_NONE ||
                               dw_follower_version(f) != goal))
        status = dw_four_phases(r, goal, progress, err);
    return status == DW_OK ? dw_follower_complete_files(f, progress, err) : status;
}
