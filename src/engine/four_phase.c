/* One step: fetch while the engines serve; pause; apply; resume.
 *
 *     1      fetch, stage, prepare; engines prepare, too
 *     2      pause
 *     3      apply: the stores; engines' update
 *     4      resume
 *     after  finish: sync, read back
 *
 * A failure before the stores leaves the weights as they are: the engines are resumed and
 * go on. After the preparation there is no way back, so the next call begins at phase 2.
 */
#include "engine/four_phase.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "engine/engine_int.h"
#include "engine/ready.h"
#include "follow/follower.h"
#include "inner.h"

/* ---- the update that engines get ---- */

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

/* The same for the prepared version. */
static dw_status update_of_staged(dw_engine_update *out, dw_update_paths *paths,
                                  const dw_rollout *r, dw_error *err)
{
    dw_follower *f = r->follower;
    const dw_update staged = dw_follower_update(f);
    *out = (dw_engine_update){.stream = dw_stream_id(dw_follower_stream(f)),
                              .from = r->from,
                              .version = staged.version,
                              .state = staged.digest};
    return find_paths(out, paths, dw_follower_dir(f), staged.patch, err);
}

void dw_update_paths_release(dw_update_paths *paths)
{
    dw_free(paths->dir);
    dw_free(paths->patch);
    *paths = (dw_update_paths){0};
}

/* ---- the step ---- */

typedef struct step {
    dw_rollout *rollout;
    dw_rollout_step report;
    dw_engine_update update; /* from the preparation on */
    dw_update_paths paths;
    dw_handover handover;
    uint64_t t_asked;   /* when the engines were asked to pause, dw_clock_us() */
    uint64_t t_applied; /* when the stores were done */
} step;

static void announce(const dw_rollout *r, dw_phase phase, uint64_t version)
{
    if (r->options.watch.phase)
        r->options.watch.phase(r->options.watch.context, phase, version);
}

/* Reports the step. Of several engines the longest time counts. */
static void report_step(step *s)
{
    const dw_rollout *r = s->rollout;
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
    if (t_paused > 0)
        dw_follower_mark_at(r->follower, DW_PAUSED, t_paused);
    if (t_resumed > 0)
        dw_follower_mark_at(r->follower, DW_RESUMED, t_resumed);
    if (t_paused > s->t_asked)
        s->report.pause_us = t_paused - s->t_asked;
    if (t_updated > s->t_applied)
        s->report.update_us = t_updated - s->t_applied;
    if (t_paused > 0 && t_resume > t_paused)
        s->report.stopped_us = t_resume - t_paused;
    if (t_resume > 0 && t_resumed > t_resume)
        s->report.resume_us = t_resumed - t_resume;
    if (r->options.watch.step)
        r->options.watch.step(r->options.watch.context, &s->report);
}

/* The follower's part of phase 3. */
static dw_status apply_stores(step *s, dw_error *err)
{
    const uint64_t start = dw_clock_us();
    dw_status status = dw_follower_apply(s->rollout->follower, err);
    s->report.scatter_us = dw_clock_us() - start;
    return status;
}

/* Engines that are paused, or may be, and may read the weights in place are not resumed:
 * what they read may be a mix. */
static void distrust_paused(dw_rollout *r, const dw_error *err)
{
    for (size_t i = 0; i < r->n_engines; i++) {
        dw_host_engine *e = &r->engines[i];
        if (e->state != DW_HOST_NEW && e->state != DW_HOST_RUNNING &&
            !e->engine->own_weights)
            dw_host_engine_distrust(e, err);
    }
}

/* ---- 1: fetch and stage ---- */

static dw_status fetch_and_stage(step *s, uint64_t goal, const dw_progress *progress,
                                 dw_error *err)
{
    dw_rollout *r = s->rollout;
    dw_follow_report before, done;
    /* the only stores outside phase 3: engines must not read that memory meanwhile */
    const bool writes = dw_follower_stage_fills(r->follower);
    dw_status status = r->follower->lost ? dw_rollout_start_over(r, err) : DW_OK;
    if (status == DW_OK && writes)
        status = dw_host_engines_pause(r, NULL, err);
    if (status != DW_OK)
        return status;
    dw_follower_totals(r->follower, &before);
    status = dw_follower_stage(r->follower, goal, &s->report.version, progress, err);
    dw_follower_since(r->follower, &before, &done);
    s->report.n_objects = done.n_objects;
    s->report.n_bytes = done.n_bytes;
    s->report.fetch_us = 1000 * done.fetch_ms;
    s->report.decode_us = 1000 * done.stage_ms;
    if (writes && status != DW_OK) { /* the memory may be half filled */
        distrust_paused(r, err);
        dw_host_engines_resume(r, NULL);
    }
    return status;
}

/* Whether an earlier call of this step did its stores. */
static bool is_applied(const dw_rollout *r)
{
    const dw_update update = dw_follower_update(r->follower);
    return update.state == DW_UPDATE_APPLIED;
}

static void ask_version(dw_host_engine *e, void *context)
{
    const step *s = context;
    dw_host_engine_begin(e);
    dw_host_engine_probe(e);
    if (e->part == DW_PART_LEFT_OUT)
        return;
    /* an earlier call of this step updated it: it need not pause again */
    const bool runs = e->state == DW_HOST_NEW || e->state == DW_HOST_RUNNING;
    const bool done =
        is_applied(s->rollout) && runs && dw_host_engine_serves(e, s->update.version);
    e->part = done ? DW_PART_DONE : DW_PART_FULL;
}

/* The step does not go on: an engine whose last resume was lost does not wait for it. */
static void resume_if_there(dw_host_engine *e, void *context)
{
    (void)context;
    if (e->status.state != DW_ENGINE_AWAY)
        dw_host_engine_resume(e, NULL);
}

/* Fails if one is away: then no other engine needs to be paused. */
static dw_status check_engines(step *s, dw_error *err)
{
    dw_rollout *r = s->rollout;
    const dw_host_engine *missing = NULL;
    dw_host_engines_collect_retries(r);
    dw_host_engines_each(r, ask_version, s);
    for (size_t i = 0; i < r->n_engines; i++) {
        dw_host_engine *e = &r->engines[i];
        if (dw_host_engine_hangs(e)) {
            dw_host_engine_judge_absence(e);
            dw_host_engine_retry_pause(e);
        }
        if (e->part == DW_PART_FULL && e->status.state == DW_ENGINE_AWAY && !missing)
            missing = e;
    }
    if (!missing)
        return DW_OK;
    dw_host_engines_each(r, resume_if_there, NULL);
    return dw_host_engine_fail(missing, err);
}

/* Lets the engines that prepare by themselves do so. One that is left out may be frozen:
 * then nobody waits. */
static void await_engines(step *s)
{
    const dw_rollout *r = s->rollout;
    bool has_all = r->n_engines > 0 && s->update.dir && s->update.patch;
    for (size_t i = 0; i < r->n_engines; i++)
        has_all = has_all && r->engines[i].part != DW_PART_LEFT_OUT;
    if (!has_all)
        return;
    const uint64_t start = dw_clock_us();
    s->report.is_unready =
        !dw_engines_ready(s->update.dir, s->update.patch, DW_READY_LIMIT_MS);
    s->report.ready_us = dw_clock_us() - start;
}

/* The end of phase 1: makes the staged version durable, and checks that the engines are
 * there. */
static dw_status prepare(step *s, dw_error *err)
{
    dw_rollout *r = s->rollout;
    dw_status status = dw_follower_prepare(r->follower, err);
    if (status == DW_OK)
        status = update_of_staged(&s->update, &s->paths, r, err);
    if (status == DW_OK)
        status = check_engines(s, err);
    if (status == DW_OK)
        await_engines(s);
    return status;
}

/* ---- 2: pause ---- */

static dw_status pause_engines(step *s, dw_error *err)
{
    s->t_asked = dw_clock_us();
    return dw_host_engines_pause(s->rollout, &s->update, err);
}

/* ---- 3: apply ---- */

static dw_status apply(step *s, dw_error *err)
{
    dw_rollout *r = s->rollout;
    dw_host_engines_pass_by(r);
    dw_status status = apply_stores(s, err);
    s->t_applied = dw_clock_us();
    if (status != DW_OK) {
        /* DW_UNAVAILABLE: a reader holds the weights, and nothing was written */
        if (status != DW_UNAVAILABLE)
            distrust_paused(r, err);
        dw_host_engines_resume(r, NULL);
        return status;
    }
    dw_handover_apply(&s->handover, r, &s->update);
    return DW_OK;
}

/* ---- after: finish ---- */

static dw_status finish_weights(step *s, dw_error *err)
{
    dw_follower *f = s->rollout->follower;
    dw_follow_report before, done;
    dw_follower_totals(f, &before);
    const uint64_t start = dw_clock_us();
    dw_status status = dw_follower_finish(f, err);
    s->report.finish_us = dw_clock_us() - start;
    dw_follower_since(f, &before, &done);
    s->report.n_changed = done.n_changed;
    return status;
}

/* Whether the engine cannot have loaded the weights of this step: it took the patch over
 * into memory of its own, or was left out. */
static bool is_apart(const step *s, const dw_host_engine *e)
{
    const bool has_patch = e->by_patch && dw_host_engine_serves(e, s->update.version);
    return e->engine->own_weights && (has_patch || e->part == DW_PART_LEFT_OUT);
}

/* The weights are damaged: no engine may use them. */
static void stop_engines(step *s, const dw_error *err)
{
    dw_rollout *r = s->rollout;
    for (size_t i = 0; i < r->n_engines; i++) {
        dw_host_engine *e = &r->engines[i];
        const bool goes_on = is_apart(s, e);
        if (e->part != DW_PART_LEFT_OUT)
            e->part = goes_on ? DW_PART_DONE : DW_PART_FULL;
        if (!goes_on)
            dw_host_engine_distrust(e, err); /* so that nothing resumes it */
    }
    dw_host_engines_pause(r, &s->update, NULL);
}

static dw_status finish(step *s, dw_error *err)
{
    dw_status status = finish_weights(s, err);
    if (status == DW_OK)
        report_step(s);
    /* a conflict: the directory was replaced, maybe while an engine loaded it */
    if (status == DW_CORRUPT || status == DW_MISMATCH || status == DW_CONFLICT)
        stop_engines(s, err);
    return status;
}

/* ---- all of it ---- */

/* The first version filled an empty directory. No engine can have been reading it, so
 * none is paused. dw_rollout_check brings the engines to it. */
static dw_status arrive(step *s, dw_error *err)
{
    dw_rollout *r = s->rollout;
    dw_status status = dw_follower_apply(r->follower, err);
    if (status == DW_OK) {
        announce(r, DW_PHASE_FINISH, s->report.version);
        status = finish_weights(s, err);
    }
    /* the version that an engine names may be another stream's */
    for (size_t i = 0; i < r->n_engines; i++)
        r->engines[i].must_reload = true;
    if (status == DW_OK)
        report_step(s);
    return status == DW_OK ? dw_rollout_check(r, err) : status;
}

dw_status dw_four_phases(dw_rollout *r, uint64_t goal, const dw_progress *progress,
                         dw_error *err)
{
    dw_follower *f = r->follower;
    const dw_update before = dw_follower_update(f);
    step s = {.rollout = r, .report.version = before.version};
    dw_status status = DW_OK;
    if (before.state == DW_UPDATE_NONE) { /* else by an earlier call */
        r->from = dw_follower_version(f);
        announce(r, DW_PHASE_FETCH, goal);
        status = fetch_and_stage(&s, goal, progress, err);
        if (status == DW_OK && s.report.version == dw_follower_version(f)) {
            s.report.from = r->from;
            status = arrive(&s, err);
            goto out;
        }
        r->from = dw_follower_version(f); /* none, if they turned out to be damaged */
    }
    s.report.from = r->from;
    if (status == DW_OK)
        status = prepare(&s, err);
    if (status != DW_OK)
        goto out;
    announce(r, DW_PHASE_PAUSE, s.update.version);
    status = pause_engines(&s, err);
    if (status != DW_OK)
        goto out;
    announce(r, DW_PHASE_APPLY, s.update.version);
    status = apply(&s, err);
    if (status != DW_OK)
        goto out;
    announce(r, DW_PHASE_RESUME, s.update.version);
    dw_handover_resume(&s.handover);
    announce(r, DW_PHASE_FINISH, s.update.version);
    status = finish(&s, err);
out:
    for (size_t i = 0; i < r->n_engines; i++)
        if (r->engines[i].part == DW_PART_DONE)
            r->engines[i].part = DW_PART_FULL;
    announce(r, DW_PHASE_IDLE, dw_follower_version(f));
    dw_update_paths_release(&s.paths);
    return status;
}
