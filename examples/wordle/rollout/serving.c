#include "serving.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fail.h"
#include "mapped.h"

struct serving {
    const char *dir;
    /* of the thread that is busy */
    mapped *mapped;
    serving_proof proof; /* of the weights of `proven`, in the files of `n_opened` */
    dw_control_mark proven;
    uint64_t n_opened; /* 0: there is no proof */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool stopped;
    bool paused;
    bool busy;          /* somebody has the snapshot */
    unsigned n_calling; /* threads that go before the next step */
    char stream[64];
    dw_error trouble; /* the last reader's error; DW_OK if there was none */
};

dw_status serving_new(serving **out, const char *dir, dw_error *err)
{
    pthread_condattr_t attributes;
    serving *s = calloc(1, sizeof *s);
    if (!s)
        return wordle_fail(err, DW_NO_MEMORY, dir, "out of memory");
    dw_status status = mapped_new(&s->mapped, dir, err);
    if (status != DW_OK) {
        free(s);
        return status;
    }
    s->dir = dir;
    wordle_fail(&s->trouble, DW_NOT_FOUND, dir, "nothing was read yet");
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    *out = s;
    return DW_OK;
}

void serving_free(serving *s)
{
    if (!s)
        return;
    mapped_free(s->mapped);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void serving_stop(serving *s)
{
    pthread_mutex_lock(&s->lock);
    s->stopped = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- taking turns ---- */

/* Notes the result of reading; called by the thread that is busy. */
static void note(serving *s, dw_status status, const dw_error *err)
{
    /* while they are written, others wait as in a pause */
    const bool good =
        status == DW_OK || (status == DW_UNAVAILABLE && mapped_has_writer(s->mapped));
    pthread_mutex_lock(&s->lock);
    if (good) {
        s->trouble.code = DW_OK;
        memcpy(s->stream, mapped_stream(s->mapped), sizeof s->stream);
    } else {
        s->trouble = *err;
    }
    pthread_mutex_unlock(&s->lock);
}

static void set_free(serving *s)
{
    pthread_mutex_lock(&s->lock);
    s->busy = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static dw_status wait_for_turn(serving *s, unsigned timeout_ms, dw_error *err)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += timeout_ms / 1000;
    end.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    int late = 0;
    pthread_mutex_lock(&s->lock);
    while ((s->paused || s->busy || s->n_calling > 0) && !s->stopped && late == 0)
        late = pthread_cond_timedwait(&s->changed, &s->lock, &end);
    const bool free = !s->paused && !s->busy && s->n_calling == 0 && !s->stopped;
    const bool stopped = s->stopped;
    if (free)
        s->busy = true;
    pthread_mutex_unlock(&s->lock);
    if (free)
        return DW_OK;
    return stopped ? wordle_fail(err, DW_CANCELLED, s->dir, "the server ends")
                   : wordle_fail(err, DW_UNAVAILABLE, s->dir, "the server is paused");
}

/* Waits for the current step, and goes before the next one. */
static dw_status call_in(serving *s, bool even_paused, dw_error *err)
{
    pthread_mutex_lock(&s->lock);
    s->n_calling++;
    while (s->busy)
        pthread_cond_wait(&s->changed, &s->lock);
    s->n_calling--;
    const bool good = even_paused || !s->paused;
    if (good)
        s->busy = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return good ? DW_OK
                : wordle_fail(err, DW_UNAVAILABLE, s->dir,
                              "the server is paused: weights are not read now");
}

/* ---- steps ---- */

dw_status serving_begin(serving *s, const qwen_config *config, unsigned timeout_ms,
                        serving_view *view, dw_error *err)
{
    dw_snapshot_view held = {0};
    dw_status status = wait_for_turn(s, timeout_ms, err);
    if (status != DW_OK)
        return status;
    status = mapped_hold(s->mapped, &held, err);
    if (status == DW_OK) {
        status = mapped_bind(s->mapped, config, &held, &view->weights, err);
        if (status != DW_OK)
            mapped_release(s->mapped);
    }
    note(s, status, err);
    view->version = held.version;
    view->state = held.state;
    if (status != DW_OK)
        set_free(s);
    return status;
}

void serving_end(serving *s)
{
    mapped_release(s->mapped);
    set_free(s);
}

/* ---- the rest ---- */

void serving_pause(serving *s)
{
    pthread_mutex_lock(&s->lock);
    s->paused = true;
    while (s->busy)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void serving_resume(serving *s)
{
    pthread_mutex_lock(&s->lock);
    s->paused = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

bool serving_is_paused(serving *s)
{
    pthread_mutex_lock(&s->lock);
    const bool paused = s->paused;
    pthread_mutex_unlock(&s->lock);
    return paused;
}

dw_status serving_check(serving *s, dw_error *err)
{
    dw_snapshot_view view;
    if (!serving_is_paused(s) && call_in(s, false, err) == DW_OK) {
        dw_error why;
        dw_status status = mapped_hold(s->mapped, &view, &why);
        if (status == DW_OK)
            mapped_release(s->mapped);
        note(s, status, &why);
        set_free(s);
    }
    pthread_mutex_lock(&s->lock);
    dw_status status = s->trouble.code;
    if (status != DW_OK)
        *err = s->trouble;
    pthread_mutex_unlock(&s->lock);
    return status;
}

static dw_status compute_proof(serving *s, const dw_snapshot_view *view,
                               serving_proof *out, dw_error *err)
{
    dw_digest *each = calloc(view->n_tensors + 1, sizeof *each);
    if (!each)
        return wordle_fail(err, DW_NO_MEMORY, s->dir, "out of memory");
    out->version = view->version;
    out->told = view->state;
    memcpy(out->stream, mapped_stream(s->mapped), sizeof out->stream);
    dw_status status = dw_digest_tensors(each, &out->computed, view->tensors,
                                         view->n_tensors, 0, NULL, err);
    free(each);
    return status;
}

/* Once for each write of the weights, so that repeated requests do not block steps. */
static dw_status prove(serving *s, dw_error *err)
{
    dw_snapshot_view view = {0};
    dw_status status = mapped_hold(s->mapped, &view, err);
    if (status != DW_OK)
        return status;
    const dw_control_mark *mark = &view.mark;
    if (s->n_opened != mapped_n_opened(s->mapped) ||
        mark->sequence != s->proven.sequence || mark->version != s->proven.version ||
        mark->state != s->proven.state || mark->files != s->proven.files) {
        status = compute_proof(s, &view, &s->proof, err);
        s->n_opened = status == DW_OK ? mapped_n_opened(s->mapped) : 0;
        s->proven = view.mark;
    }
    mapped_release(s->mapped);
    return status;
}

dw_status serving_prove(serving *s, serving_proof *out, dw_error *err)
{
    dw_status status = call_in(s, false, err);
    if (status != DW_OK)
        return status;
    status = prove(s, err);
    if (status == DW_OK)
        *out = s->proof;
    set_free(s);
    return status;
}

dw_status serving_expect(serving *s, uint64_t version, dw_digest state, dw_error *err)
{
    dw_snapshot_view view;
    dw_status status = call_in(s, true, err);
    if (status != DW_OK)
        return status;
    mapped_look(s->mapped);
    status = mapped_hold(s->mapped, &view, err);
    if (status == DW_OK) {
        mapped_release(s->mapped);
        if (view.version != version || view.state != state)
            status = wordle_fail(err, DW_STALE, s->dir,
                                 "the weights here are version %" PRIu64
                                 " with digest %016" PRIx64 ", not %" PRIu64
                                 " with %016" PRIx64
                                 ": the agent follows into another directory",
                                 view.version, view.state, version, state);
    }
    set_free(s);
    return status;
}

void serving_stream(serving *s, char out[64])
{
    pthread_mutex_lock(&s->lock);
    memcpy(out, s->stream, sizeof s->stream);
    pthread_mutex_unlock(&s->lock);
}
