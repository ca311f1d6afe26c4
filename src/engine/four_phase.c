/* One hop: fetch while the engines serve; pause; apply; resume.
 *
 *            one copy of the weights              two copies
 *     1      stage, commit                        stage; commit: the stores to the copy
 *                                                 that nobody reads; apply: the flip
 *     2      pause                                pause
 *     3      apply: the stores; engines' update   engines' update
 *     4      resume                               resume
 *     after  settle: sync, read back              settle: the other copy
 *
 * What fails before the stores leaves the weights as they are: the engines are resumed
 * and go on. From the commit on there is only forward, so the next call begins at
 * phase 2.
 */
#include "engine/four_phase.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "follow/follower.h"

/* ---- what the engines are told ---- */

static dw_status absolute(char **out, const char *path, dw_error *err)
{
    *out = NULL;
    if (!path)
        return DW_OK;
    char *real = realpath(path, NULL);
    if (!real)
        return dw_fail_errno(err, path, "resolve");
    *out = dw_copy_string(real);
    free(real);
    return *out ? DW_OK : dw_fail_memory(err, path);
}

static dw_status find_paths(dw_engine_update *u, dw_update_paths *paths, const char *dir,
                            const char *patch, dw_error *err)
{
    *paths = (dw_update_paths){0};
    dw_status status = absolute(&paths->dir, dir, err);
    if (status == DW_OK)
        status = absolute(&paths->patch, patch, err);
    u->dir = paths->dir;
    u->patch = paths->patch;
    return status;
}

dw_status dw_update_of_version(dw_engine_update *out, dw_update_paths *paths,
                               dw_follower *f, dw_error *err)
{
    *out = (dw_engine_update){.stream = dw_stream_id(dw_follower_stream(f)),
                              .from = DW_NO_VERSION,
                              .version = dw_follower_version(f),
                              .state = dw_follower_state(f)};
    return find_paths(out, paths, dw_follower_dir(f), NULL, err);
}

dw_status dw_update_of_position(dw_engine_update *out, dw_update_paths *paths,
                                const dw_position *at, const char *dir, dw_error *err)
{
    *out = (dw_engine_update){.stream = at->stream,
                              .from = DW_NO_VERSION,
                              .version = at->version,
                              .state = at->state};
    return find_paths(out, paths, dir, NULL, err);
}

/* The same for what is committed. With two copies the directory is the one that was
 * flipped to, so it is asked for after the apply. */
static dw_status update_of_staged(dw_engine_update *out, dw_update_paths *paths,
                                  const dw_rollout *r, dw_error *err)
{
    dw_follower *f = r->follower;
    *out = (dw_engine_update){.stream = dw_stream_id(dw_follower_stream(f)),
                              .from = r->from};
    dw_follower_staged(f, &out->version, &out->state);
    return find_paths(out, paths, dw_follower_dir(f), dw_follower_staged_path(f), err);
}

void dw_update_paths_release(dw_update_paths *paths)
{
    dw_free(paths->dir);
    dw_free(paths->patch);
    *paths = (dw_update_paths){0};
}

/* ---- telling ---- */

static void tell_phase(const dw_rollout *r, dw_phase phase, uint64_t version)
{
    if (r->options.watch.phase)
        r->options.watch.phase(r->options.watch.context, phase, version);
}

/* The times of the engines: of several, the stop is the longest of any. */
static void tell_hop(const dw_rollout *r, dw_rollout_hop *hop, uint64_t t_asked,
                     uint64_t t_applied)
{
    uint64_t t_paused = 0, t_updated = 0, t_resume = 0, t_resumed = 0;
    for (size_t i = 0; i < r->n_engines; i++) {
        const dw_host_engine *e = &r->engines[i];
        if (e->t_paused > t_paused)
            t_paused = e->t_paused;
        if (e->t_updated > t_updated)
            t_updated = e->t_updated;
        if (e->t_resume > 0 && (t_resume == 0 || e->t_resume < t_resume))
            t_resume = e->t_resume;
        if (e->t_resumed > t_resumed)
            t_resumed = e->t_resumed;
    }
    if (t_paused > t_asked)
        hop->pause_us = t_paused - t_asked;
    if (t_updated > t_applied)
        hop->update_us = t_updated - t_applied;
    if (t_paused > 0 && t_resume > t_paused)
        hop->stopped_us = t_resume - t_paused;
    if (t_resume > 0 && t_resumed > t_resume)
        hop->resume_us = t_resumed - t_resume;
    if (r->options.watch.hop)
        r->options.watch.hop(r->options.watch.context, hop);
}

/* ---- the phases ---- */

static dw_status stage(dw_rollout *r, uint64_t goal, dw_rollout_hop *hop,
                       const dw_progress *progress, dw_error *err)
{
    dw_follow_report before, done;
    /* the only stores outside phase 3: engines must not read that memory meanwhile */
    const bool writes = dw_follower_stage_fills(r->follower);
    dw_status status = r->follower->lost ? dw_rollout_start_over(r, err) : DW_OK;
    if (status == DW_OK && writes)
        status = dw_host_engines_pause(r, NULL, err);
    if (status != DW_OK)
        return status;
    dw_follower_totals(r->follower, &before);
    status = dw_follower_stage(r->follower, goal, &hop->version, progress, err);
    dw_follower_since(r->follower, &before, &done);
    hop->n_objects = done.n_objects;
    hop->n_bytes = done.n_bytes;
    hop->fetch_us = 1000 * done.fetch_ms;
    hop->decode_us = 1000 * done.stage_ms;
    /* the memory may be filled half way */
    for (size_t i = 0; status != DW_OK && i < r->n_engines; i++)
        if (writes && r->engines[i].paused)
            dw_host_engine_mistrust(&r->engines[i], err);
    if (writes && status != DW_OK)
        dw_host_engines_resume(r, NULL);
    return status;
}

/* Phase 3, our part of it. */
static dw_status scatter(dw_rollout *r, dw_rollout_hop *hop, dw_error *err)
{
    const uint64_t start = dw_clock_us();
    dw_status status = dw_follower_apply(r->follower, err);
    hop->scatter_us = dw_clock_us() - start;
    return status;
}

static dw_status settle(dw_rollout *r, dw_rollout_hop *hop, dw_error *err)
{
    dw_follow_report before, done;
    tell_phase(r, DW_PHASE_SETTLE, hop->version);
    dw_follower_totals(r->follower, &before);
    const uint64_t start = dw_clock_us();
    dw_status status = dw_follower_settle(r->follower, err);
    hop->settle_us = dw_clock_us() - start;
    dw_follower_since(r->follower, &before, &done);
    hop->n_changed = done.n_changed;
    return status;
}

/* Readers that hold the weights keep them from being written: all is as before. After any
 * other failure nobody knows, and engines that read them in place stay where they are. */
static void stop_after_scatter(dw_rollout *r, dw_status status, const dw_error *err)
{
    for (size_t i = 0; i < r->n_engines; i++)
        if (r->engines[i].paused && status != DW_UNAVAILABLE)
            dw_host_engine_mistrust(&r->engines[i], err);
    dw_host_engines_resume(r, NULL);
}

/* The weights are not what they were to be: no engine goes on with them. */
static void stop_after_settle(dw_rollout *r, const dw_engine_update *update,
                              dw_error *err)
{
    for (size_t i = 0; i < r->n_engines; i++) {
        r->engines[i].skipped = false;
        dw_host_engine_mistrust(&r->engines[i], err); /* so that nothing resumes it */
    }
    dw_host_engines_pause(r, update, NULL);
}

/* Of two copies the one that was read is written next: an engine that runs, and did not
 * take the new one over, may be reading it still. */
static dw_status leave_old_copy(const dw_rollout *r, dw_error *err)
{
    for (size_t i = 0; r->n_copies == 2 && i < r->n_engines; i++) {
        const dw_host_engine *e = &r->engines[i];
        /* a resume whose answer did not come may have been done */
        const bool stands = e->paused && e->t_paused > 0 && e->t_resume == 0;
        if (stands || e->left_out || e->status.state == DW_ENGINE_SERVING ||
            e->status.error.code == DW_NOT_FOUND)
            continue;
        return dw_host_engine_fail(e, err);
    }
    return DW_OK;
}

/* The stores go past an engine that is left out. If it reads them in place, it may have
 * read a part of them. */
static void mistrust_left_out(dw_rollout *r)
{
    for (size_t i = 0; i < r->n_engines; i++) {
        dw_host_engine *e = &r->engines[i];
        if (e->left_out && !dw_engine_has_own_weights(e->engine))
            e->mixed = true;
    }
}

/* Phases 2 to 4, with what is staged and committed. */
static dw_status move_engines(dw_rollout *r, dw_rollout_hop *hop,
                              const dw_engine_update *update, dw_error *err)
{
    tell_phase(r, DW_PHASE_PAUSE, update->version);
    const uint64_t t_asked = dw_clock_us();
    dw_status status = dw_host_engines_pause(r, update, err);
    if (status != DW_OK)
        return status;
    mistrust_left_out(r);
    tell_phase(r, DW_PHASE_APPLY, update->version);
    if (r->n_copies < 2)
        status = scatter(r, hop, err);
    const uint64_t t_applied = dw_clock_us();
    if (status != DW_OK) {
        stop_after_scatter(r, status, err);
        return status;
    }
    r->applied = true;
    dw_host_engines_take_over(r, update);
    status = leave_old_copy(r, err);
    if (status != DW_OK)
        return status;
    tell_phase(r, DW_PHASE_RESUME, update->version);
    status = settle(r, hop, err);
    if (status == DW_OK)
        tell_hop(r, hop, t_asked, t_applied);
    /* a conflict: the directory was replaced, maybe while an engine loaded it */
    if (status == DW_CORRUPT || status == DW_MISMATCH || status == DW_CONFLICT)
        stop_after_settle(r, update, err);
    return status;
}

typedef struct question {
    const dw_rollout *rollout;
    uint64_t version;
} question;

/* One that was restarted since says another version, and is told to load all. Where the
 * stores were done by an earlier call, those that took them over need not stop again. */
static void ask_version(dw_host_engine *e, void *context)
{
    const question *q = context;
    dw_host_engine_begin(e);
    dw_host_engine_probe(e, q->rollout->options.patience_ms);
    e->skipped =
        q->rollout->applied && !e->paused && dw_host_engine_serves(e, q->version);
}

/* No engine is stopped where it is known that another one cannot be. */
static dw_status check_all_there(dw_rollout *r, dw_error *err)
{
    for (size_t i = 0; i < r->n_engines; i++) {
        dw_host_engine *e = &r->engines[i];
        if (e->hung) {
            dw_host_engine_judge_absence(e, r->options.patience_ms);
            dw_host_engine_retry_pause(e);
        }
        if (dw_host_engine_counts(e) && e->status.state == DW_ENGINE_AWAY)
            return dw_host_engine_fail(e, err);
    }
    return DW_OK;
}

/* A whole model was put where nothing was: there is nothing to scatter, and no engine can
 * have been reading it. They are told by dw_rollout_check. */
static dw_status arrive(dw_rollout *r, dw_rollout_hop *hop, dw_error *err)
{
    dw_status status = dw_follower_apply(r->follower, err);
    if (status == DW_OK)
        status = settle(r, hop, err);
    /* what they name may be a version of another stream */
    for (size_t i = 0; i < r->n_engines; i++)
        r->engines[i].reload = true;
    if (status == DW_OK)
        tell_hop(r, hop, 0, 0);
    return status == DW_OK ? dw_rollout_check(r, err) : status;
}

dw_status dw_four_phase_hop(dw_rollout *r, uint64_t goal, const dw_progress *progress,
                            dw_error *err)
{
    dw_follower *f = r->follower;
    dw_update_paths paths = {0};
    dw_engine_update update;
    dw_rollout_hop hop = {0};
    dw_status status = DW_OK;
    if (!dw_follower_staged(f, &hop.version, NULL)) {
        r->from = dw_follower_version(f);
        r->applied = false;
        tell_phase(r, DW_PHASE_FETCH, goal);
        status = stage(r, goal, &hop, progress, err);
        if (status == DW_OK && hop.version == dw_follower_version(f)) {
            hop.from = r->from;
            status = arrive(r, &hop, err);
            goto out;
        }
    }
    hop.from = r->from;
    if (status == DW_OK)
        status = dw_follower_commit(f, err);
    if (status == DW_OK && r->n_copies == 2) {
        status = scatter(r, &hop, err);
        r->applied = status == DW_OK;
    }
    if (status == DW_OK)
        status = update_of_staged(&update, &paths, r, err);
    if (status == DW_OK) {
        question q = {r, update.version};
        dw_host_engines_collect_retries(r);
        dw_host_engines_each(r, ask_version, &q);
        status = check_all_there(r, err);
    }
    if (status == DW_OK)
        status = move_engines(r, &hop, &update, err);
    if (status == DW_OK)
        r->applied = false;
out:
    tell_phase(r, DW_PHASE_IDLE, dw_follower_version(f));
    dw_update_paths_release(&paths);
    return status;
}
