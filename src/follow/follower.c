#include "follow/follower.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"
#include "inner.h"

#define T_PRESENCE_MS 10000 /* between two checks that the stream is still there */

uint64_t dw_follower_version(const dw_follower *f)
{
    const dw_position *at = dw_target_at(f->weights);
    return !f->lost && strcmp(at->stream, f->stream->record.stream) == 0 ? at->version
                                                                         : DW_NO_VERSION;
}

dw_stream *dw_follower_stream(dw_follower *f)
{
    return f->stream;
}

const dw_tensor *dw_follower_tensors(const dw_follower *f, size_t *n_tensors)
{
    return dw_target_tensors(f->weights, n_tensors);
}

dw_digest dw_follower_state(const dw_follower *f)
{
    return dw_follower_version(f) != DW_NO_VERSION ? dw_target_at(f->weights)->state : 0;
}

const char *dw_follower_dir(const dw_follower *f)
{
    return dw_target_dir(f->weights);
}

/* ---- polling ---- */

void dw_follower_found(dw_follower *f, uint64_t newest)
{
    if (f->t_found_us != 0 && newest == f->found)
        return; /* since then, and maybe in several steps */
    f->t_found_us = dw_clock_us();
    f->found = newest;
}

/* A store that was rolled back, or a stream that was removed, looks as if nothing were
 * new. So this looks for the version that was used last: if there is a hint that it is
 * missing, and every T_PRESENCE_MS. */
static dw_status check_past(dw_follower *f, uint64_t newest, dw_error *err)
{
    const uint64_t now = dw_clock_ms(), used = dw_follower_highest(f)->version;
    const uint64_t evidence = f->stream->evidence;
    const bool is_due = f->seen_ms == 0 || now - f->seen_ms >= T_PRESENCE_MS;
    const bool is_behind =
        used != DW_NO_VERSION && (newest == DW_NO_VERSION || newest < used ||
                                  (evidence != DW_NO_VERSION && evidence < used));
    if (!is_due && !is_behind)
        return DW_OK;
    dw_status status = used == DW_NO_VERSION ? dw_stream_check_presence(f->stream, err)
                                             : dw_follower_check_history(f, err);
    if (status == DW_OK)
        f->seen_ms = now;
    return status;
}

dw_status dw_follower_poll(dw_follower *f, uint64_t *newest, dw_error *err)
{
    dw_status status = dw_follower_attend(f, err);
    if (status != DW_OK)
        return status;
    uint64_t known = f->stream->head, at = dw_follower_version(f);
    if (at != DW_NO_VERSION && (known == DW_NO_VERSION || at > known))
        known = at;
    dw_error found = {0};
    status = dw_stream_find_head(f->stream, known, newest, &found);
    if (status == DW_OK && (known == DW_NO_VERSION || *newest > known))
        f->seen_ms = dw_clock_ms();
    if (status == DW_OK || status == DW_NOT_FOUND) {
        dw_status past = check_past(f, status == DW_OK ? *newest : DW_NO_VERSION, err);
        if (past != DW_OK)
            return past;
    }
    if (status == DW_OK && (at == DW_NO_VERSION || *newest > at))
        dw_follower_found(f, *newest);
    if (status != DW_OK && err)
        *err = found;
    return status;
}

dw_status dw_follower_wait(dw_follower *f, uint64_t *newest, unsigned timeout_ms,
                           unsigned max_wait_ms, const dw_progress *progress,
                           dw_error *err)
{
    const uint64_t end = dw_clock_ms() + timeout_ms;
    uint64_t pause = 100;
    for (;;) {
        dw_status status = dw_follower_poll(f, newest, err);
        if (status != DW_OK && status != DW_NOT_FOUND)
            return status;
        uint64_t at = dw_follower_version(f), now = dw_clock_ms();
        if (status == DW_OK && (at == DW_NO_VERSION || *newest > at))
            return DW_OK;
        if (now >= end)
            return status;
        uint64_t until = now + pause < end ? now + pause : end;
        while ((now = dw_clock_ms()) < until) {
            dw_sleep_ms(until - now < 50 ? until - now : 50);
            status =
                dw_store_progress(progress, 0, 0, dw_store_url(f->stream->store), err);
            if (status != DW_OK)
                return status;
        }
        pause = pause * 2 < max_wait_ms ? pause * 2 : max_wait_ms;
        pause = pause > 0 ? pause : 1;
    }
}

static dw_update_state state_of(const dw_follower *f)
{
    return f->lost ? DW_UPDATE_NONE : dw_target_update(f->weights);
}

dw_update dw_follower_update(const dw_follower *f)
{
    if (state_of(f) == DW_UPDATE_NONE)
        return (dw_update){.version = DW_NO_VERSION,
                           .will_fill = !f->lost && dw_follower_stage_fills(f)};
    const dw_position *next = dw_target_next(f->weights);
    return (dw_update){.state = dw_target_update(f->weights),
                       .version = next->version,
                       .digest = next->state,
                       .patch = dw_target_staged_path(f->weights)};
}

dw_status dw_follower_move(dw_follower *f, const dw_tensor *tensors, size_t n_tensors,
                           dw_error *err)
{
    if (f->options.into)
        return dw_fail(err, DW_INVALID, f->options.into,
                       "it follows into a directory, which has no memory to move");
    dw_status status = dw_target_relocate(f->weights, tensors, n_tensors, err);
    if (status == DW_OK) {
        f->options.tensors = tensors;
        f->options.n_tensors = n_tensors;
    }
    return status;
}

/* Before a verb: something must be staged, and the files must be those that are open. */
static dw_status check_before(dw_follower *f, dw_error *err)
{
    return state_of(f) != DW_UPDATE_NONE
               ? dw_follower_check_files(f, err)
               : dw_fail(err, DW_INVALID, dw_target_dir(f->weights), "nothing is staged");
}

/* After a verb: if the files were replaced meanwhile, that is the result instead of
 * STATUS. If a prepared update met damaged weights or is damaged itself, it does not go
 * on: the next stage opens the files again, and judges them. */
static dw_status check_after(dw_follower *f, dw_status status, dw_error *err)
{
    dw_error fault;
    if (dw_follower_check_files(f, &fault) == DW_OK) {
        if ((status == DW_CORRUPT || status == DW_STALE) &&
            dw_target_update(f->weights) > DW_UPDATE_STAGED)
            dw_follower_lose(f);
        return status;
    }
    if (err)
        *err = fault;
    return fault.code;
}

/* Before the weights become the version that is staged: so do the companion files. */
static dw_status install_files(dw_follower *f, dw_error *err)
{
    const bool is_staged = dw_target_update(f->weights) == DW_UPDATE_STAGED;
    return is_staged && dw_target_next(f->weights)->version == f->files.version
               ? dw_follower_install_files(f, err)
               : DW_OK;
}

dw_status dw_follower_prepare(dw_follower *f, dw_error *err)
{
    if (state_of(f) == DW_UPDATE_FILLED)
        return DW_OK;
    dw_status status = check_before(f, err);
    if (status == DW_OK)
        status = install_files(f, err);
    if (status != DW_OK)
        return status;
    status = dw_target_prepare(f->weights, err);
    dw_follower_mark(f, DW_PREPARED);
    return check_after(f, status, err);
}

dw_status dw_follower_apply(dw_follower *f, dw_error *err)
{
    if (state_of(f) == DW_UPDATE_FILLED)
        return DW_OK;
    dw_status status = check_before(f, err);
    if (status != DW_OK)
        return status;
    status = install_files(f, err);
    if (status != DW_OK)
        return status;
    if (dw_target_update(f->weights) == DW_UPDATE_STAGED) {
        status = dw_target_prepare(f->weights, err);
        dw_follower_mark(f, DW_PREPARED);
    }
    uint64_t start = dw_clock_ms();
    if (status == DW_OK)
        status = dw_target_apply(f->weights, err);
    f->tally.apply_ms += dw_clock_ms() - start;
    dw_follower_mark(f, DW_STORED);
    return check_after(f, status, err);
}

dw_status dw_follower_finish(dw_follower *f, dw_error *err)
{
    if (state_of(f) == DW_UPDATE_FILLED) {
        f->tally.n_steps++;
        return dw_target_finish(f->weights, false, err);
    }
    if (state_of(f) < DW_UPDATE_APPLIED)
        return dw_fail(err, DW_INVALID, dw_target_dir(f->weights), "nothing is applied");
    const uint64_t n_changed = dw_target_n_changed(f->weights);
    dw_status status = check_after(f, dw_target_finish(f->weights, false, err), err);
    if (status != DW_OK)
        return status;
    f->epoch = f->next_epoch;
    if (dw_follower_version(f) == f->found)
        f->found = DW_NO_VERSION; /* if it comes again, its time line does too */
    f->tally.n_steps++;
    f->tally.n_changed += n_changed;
    const dw_position was = *dw_target_at(f->weights);
    status = dw_target_sweep(f->weights, f->options.sweep_every, err);
    if (status == DW_CORRUPT && f->options.into)
        (void)dw_follower_note_damage(f, &was, NULL);
    return status;
}

dw_status dw_follower_refuse_none(uint64_t goal, dw_error *err)
{
    return goal != DW_NO_VERSION
               ? DW_OK
               : dw_fail(err, DW_INVALID, NULL,
                         "the goal is DW_NO_VERSION: name a version, or DW_NEWEST");
}

dw_status dw_follower_sync(dw_follower *f, uint64_t goal, const dw_progress *progress,
                           dw_follow_report *report, dw_error *err)
{
    dw_follow_report before;
    dw_follower_totals(f, &before);
    dw_status status = dw_follower_refuse_none(goal, err);
    if (status == DW_OK)
        status = dw_follower_attend(f, err);
    if (status == DW_OK && goal == DW_NEWEST)
        status = dw_follower_poll(f, &goal, err);
    /* finish an update that an earlier call, or the caller, left prepared or applied */
    if (status == DW_OK && state_of(f) > DW_UPDATE_STAGED)
        status = dw_follower_apply(f, err);
    if (status == DW_OK && state_of(f) >= DW_UPDATE_APPLIED)
        status = dw_follower_finish(f, err);
    if (status == DW_OK && !f->lost)
        status = dw_target_forget_next(f->weights, err);
    for (dw_heal_tries tries = {before.n_healed, false};
         dw_follower_heals(f, status, &tries) ||
         (status == DW_OK && dw_follower_version(f) != goal);) {
        uint64_t staged;
        status = dw_follower_stage(f, goal, &staged, progress, err);
        if (status == DW_OK && state_of(f) == DW_UPDATE_NONE)
            break; /* the weights turned out to be that version */
        if (status == DW_OK)
            status = dw_follower_apply(f, err);
        if (status == DW_OK)
            status = dw_follower_finish(f, err);
    }
    if (status == DW_OK)
        status = dw_follower_complete_files(f, progress, err);
    if (report)
        dw_follower_since(f, &before, report);
    return status;
}

void dw_follower_totals(const dw_follower *f, dw_follow_report *out)
{
    *out = f->tally;
    out->version = dw_follower_version(f);
    out->times = f->times;
    out->n_private = f->n_private + dw_target_n_private(f->weights);
    out->n_files_kept = f->files.n_kept;
}

void dw_follower_since(const dw_follower *f, const dw_follow_report *before,
                       dw_follow_report *out)
{
    dw_follow_report now;
    dw_follower_totals(f, &now);
    *out = (dw_follow_report){
        .from = before->version,
        .version = now.version,
        .n_steps = now.n_steps - before->n_steps,
        .n_objects = now.n_objects - before->n_objects,
        .n_bytes = now.n_bytes - before->n_bytes,
        .n_changed = now.n_changed - before->n_changed,
        .fetch_ms = now.fetch_ms - before->fetch_ms,
        .stage_ms = now.stage_ms - before->stage_ms,
        .apply_ms = now.apply_ms - before->apply_ms,
        .n_private = now.n_private - before->n_private,
        .n_files_installed = now.n_files_installed - before->n_files_installed,
        .n_files_removed = now.n_files_removed - before->n_files_removed,
        .n_files_kept = now.n_files_kept,
        .n_healed = now.n_healed - before->n_healed,
        .n_stray = now.n_stray - before->n_stray,
        .times = now.times,
    };
}

/* ---- the report to the stream ---- */

dw_status dw_follower_report(dw_follower *f, const char *status_word, const char *message,
                             dw_error *err)
{
    if (!f->options.id)
        return DW_OK;
    char host[DW_HOST_NAME_TEXT], key[DW_KEY_TEXT];
    const bool is_over = !f->options.into && strcmp(status_word, "stopped") == 0;
    dw_host_name(host);
    dw_follower_record record = {.version =
                                     is_over ? DW_NO_VERSION : dw_follower_version(f),
                                 .host = host,
                                 .status = (char *)status_word,
                                 .message = (char *)(message ? message : ""),
                                 .times = f->times};
    memcpy(record.stream, f->stream->record.stream, sizeof record.stream);
    memcpy(record.id, f->options.id, strlen(f->options.id) + 1);
    dw_time_format(record.time, dw_wall_clock_ms());
    dw_key_follower(key, f->options.id);
    dw_writer bytes = {0};
    dw_status status = dw_follower_record_write(&bytes, &record, err);
    if (status == DW_OK)
        status = dw_store_put_bytes(f->stream->store, key, bytes.bytes, bytes.n_bytes,
                                    DW_PUT_REPLACE, err);
    dw_writer_release(&bytes);
    return status;
}
