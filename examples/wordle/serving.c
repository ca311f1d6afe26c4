#include "serving.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fail.h"
#include "program.h"

enum { HOLD_MS = 200, LOOK_EVERY_MS = 1000 };

struct serving {
    const char *dir;
    char *control_path;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool stopped;
    bool paused;
    bool busy;          /* somebody has the snapshot */
    unsigned n_calling; /* who goes before the next step */
    char stream[64];
    dw_error trouble; /* of the last who wanted to read; code DW_OK: none */

    /* of who is busy */
    dw_snapshot *snapshot; /* NULL: not open */
    struct stat block;     /* of the control block, before it was opened */
    uint64_t t_looked_ms;
    qwen_weights *weights; /* bound to the files of `mark`; NULL: to none */
    dw_control_mark mark;
};

dw_status serving_new(serving **out, const char *dir, dw_error *err)
{
    static const char name[] = "/" DW_CONTROL_NAME;
    serving *s = calloc(1, sizeof *s);
    const size_t n = strlen(dir) + sizeof name;
    char *path = malloc(n);
    pthread_condattr_t attributes;
    if (!s || !path) {
        free(s);
        free(path);
        return wordle_fail(err, DW_NO_MEMORY, dir, "out of memory");
    }
    snprintf(path, n, "%s%s", dir, name);
    s->dir = dir;
    s->control_path = path;
    wordle_fail(&s->trouble, DW_NOT_FOUND, dir, "nothing was read yet");
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    *out = s;
    return DW_OK;
}

static void close_snapshot(serving *s)
{
    qwen_weights_free(s->weights);
    dw_snapshot_close(s->snapshot);
    s->weights = NULL;
    s->snapshot = NULL;
}

void serving_free(serving *s)
{
    if (!s)
        return;
    close_snapshot(s);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->control_path);
    free(s);
}

void serving_stop(serving *s)
{
    pthread_mutex_lock(&s->lock);
    s->stopped = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the snapshot: of who is busy ---- */

static void read_stream(serving *s)
{
    char stream[sizeof s->stream] = "";
    const int fd = open(s->control_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return;
    const ssize_t n = pread(fd, stream, sizeof stream, offsetof(dw_control, stream));
    close(fd);
    if (n != sizeof stream)
        return;
    stream[sizeof stream - 1] = '\0';
    pthread_mutex_lock(&s->lock);
    memcpy(s->stream, stream, sizeof stream);
    pthread_mutex_unlock(&s->lock);
}

/* A directory that was made anew has another control block: what is mapped is gone. */
static void look_at_block(serving *s, uint64_t now_ms)
{
    struct stat st;
    s->t_looked_ms = now_ms;
    if (stat(s->control_path, &st) != 0 || st.st_ino != s->block.st_ino ||
        st.st_dev != s->block.st_dev)
        close_snapshot(s);
}

static dw_status open_snapshot(serving *s, dw_error *err)
{
    const uint64_t now_ms = program_clock_ms();
    if (s->snapshot && now_ms - s->t_looked_ms >= LOOK_EVERY_MS)
        look_at_block(s, now_ms);
    if (s->snapshot)
        return DW_OK;
    if (stat(s->control_path, &s->block) != 0)
        return wordle_fail(err, DW_NOT_FOUND, s->dir,
                           "no follower keeps weights here yet");
    s->t_looked_ms = now_ms;
    return dw_snapshot_open(&s->snapshot, s->dir, err);
}

static dw_status hold(serving *s, dw_snapshot_view *view, dw_error *err)
{
    const bool was_open = s->snapshot != NULL;
    dw_status status = open_snapshot(s, err);
    if (status == DW_OK)
        status = dw_snapshot_hold(s->snapshot, HOLD_MS, view, err);
    if (status == DW_OK && !was_open)
        read_stream(s);
    if (status != DW_OK)
        s->t_looked_ms = 0; /* before the next try */
    return status;
}

static dw_status bind_weights(serving *s, const qwen_config *config,
                              const dw_snapshot_view *view, dw_error *err)
{
    if (s->weights && s->mark.copy == view->mark.copy &&
        s->mark.files == view->mark.files)
        return DW_OK;
    qwen_weights_free(s->weights);
    s->weights = NULL;
    s->mark = view->mark;
    return qwen_weights_bind(&s->weights, config, view->tensors, view->n_tensors, err);
}

static void note_trouble(serving *s, dw_status status, const dw_error *err)
{
    pthread_mutex_lock(&s->lock);
    if (status == DW_OK)
        s->trouble.code = DW_OK;
    else
        s->trouble = *err;
    pthread_mutex_unlock(&s->lock);
}

/* ---- taking turns ---- */

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

/* Before the next step; short, since a step is. PAUSED: also amid a pause. */
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
    dw_snapshot_view held;
    dw_status status = wait_for_turn(s, timeout_ms, err);
    if (status != DW_OK)
        return status;
    status = hold(s, &held, err);
    if (status == DW_OK) {
        status = bind_weights(s, config, &held, err);
        if (status != DW_OK)
            dw_snapshot_release(s->snapshot);
    }
    note_trouble(s, status, err);
    if (status == DW_OK)
        *view = (serving_view){s->weights, held.version};
    else
        set_free(s);
    return status;
}

void serving_end(serving *s)
{
    dw_snapshot_release(s->snapshot);
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
        dw_status status = hold(s, &view, &why);
        if (status == DW_OK)
            dw_snapshot_release(s->snapshot);
        note_trouble(s, status, &why);
        set_free(s);
    }
    pthread_mutex_lock(&s->lock);
    dw_status status = s->trouble.code;
    if (status != DW_OK)
        *err = s->trouble;
    pthread_mutex_unlock(&s->lock);
    return status;
}

static dw_status prove(serving *s, serving_proof *out, dw_error *err)
{
    dw_snapshot_view view;
    dw_status status = hold(s, &view, err);
    if (status != DW_OK)
        return status;
    dw_digest *each = calloc(view.n_tensors + 1, sizeof *each);
    if (!each)
        status = wordle_fail(err, DW_NO_MEMORY, s->dir, "out of memory");
    else
        status = dw_digest_tensors(each, &out->computed, view.tensors, view.n_tensors, 0,
                                   NULL, err);
    free(each);
    dw_snapshot_release(s->snapshot);
    out->version = view.version;
    out->told = view.state;
    read_stream(s);
    serving_stream(s, out->stream);
    return status;
}

dw_status serving_prove(serving *s, serving_proof *out, dw_error *err)
{
    dw_status status = call_in(s, false, err);
    if (status != DW_OK)
        return status;
    status = prove(s, out, err);
    set_free(s);
    return status;
}

dw_status serving_expect(serving *s, uint64_t version, dw_digest state, dw_error *err)
{
    dw_snapshot_view view;
    dw_status status = call_in(s, true, err);
    if (status != DW_OK)
        return status;
    s->t_looked_ms = 0;
    status = hold(s, &view, err);
    if (status == DW_OK) {
        dw_snapshot_release(s->snapshot);
        read_stream(s);
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
