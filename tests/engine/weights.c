#include "weights.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "codec/patch.h"
#include "deltawire/checkpoint.h"
#include "deltawire/follow.h"
#include "deltawire/stream.h"
#include "mishap.h"
#include "published.h"

enum { MAX_TENSORS = 256, HOLD_MS = 50, REST_US = 400 };

static struct {
    const char *dir;
    dw_checkpoint *map;
    const dw_tensor *tensors; /* of the map, or of the copy */
    size_t n_tensors;
    bool own_copy;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool paused;
    bool updating; /* an update of an engine that is not paused */
    unsigned n_reading;
    uint64_t n_sweeps; /* since the last update */
    uint64_t version;  /* of the last update; DW_NO_VERSION: none */
    bool dropped;      /* the version, since the last update */
    bool held;         /* in place: hold the snapshot while reading */
    bool updated;      /* since the last pause */
    dw_digest expected;
} w = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static dw_digest digest_of(const dw_tensor *tensors, size_t n_tensors)
{
    dw_digest each[MAX_TENSORS], state;
    dw_error err = {0};
    if (n_tensors > MAX_TENSORS ||
        dw_digest_tensors(each, &state, tensors, n_tensors, 1, NULL, &err) != DW_OK)
        engine_fault("no digest: %s", err.text);
    return state;
}

/* ---- serving ---- */

static void begin_reading(dw_digest *expected, uint64_t *version, bool *held)
{
    pthread_mutex_lock(&w.lock);
    while (w.paused || w.updating)
        pthread_cond_wait(&w.changed, &w.lock);
    w.n_reading++;
    *expected = w.expected;
    *version = w.version;
    *held = w.held;
    pthread_mutex_unlock(&w.lock);
}

static void end_reading(void)
{
    pthread_mutex_lock(&w.lock);
    w.n_reading--;
    w.n_sweeps++;
    pthread_cond_broadcast(&w.changed);
    pthread_mutex_unlock(&w.lock);
}

static void check_held(dw_snapshot *snapshot)
{
    dw_snapshot_view view;
    if (dw_snapshot_hold(snapshot, HOLD_MS, &view, NULL) != DW_OK)
        return; /* being written: nothing to serve */
    dw_digest digest = digest_of(view.tensors, view.n_tensors);
    dw_snapshot_release(snapshot);
    if (digest != view.state || digest != truth_of(view.version))
        engine_fault("the snapshot of version %" PRIu64 " has digest %016" PRIx64
                     ", which is not its own",
                     view.version, digest);
}

static void *serve(void *unused)
{
    (void)unused;
    dw_snapshot *snapshot = NULL;
    for (;; usleep(REST_US)) {
        dw_digest expected;
        uint64_t version;
        bool held;
        mishap_point(100);
        begin_reading(&expected, &version, &held);
        if (!held) {
            dw_digest digest = digest_of(w.tensors, w.n_tensors);
            if (digest != expected)
                engine_fault("served %016" PRIx64 ", but version %" PRIu64
                             " is %016" PRIx64,
                             digest, version, expected);
        } else if (snapshot || dw_snapshot_open(&snapshot, w.dir, NULL) == DW_OK) {
            check_held(snapshot);
        }
        end_reading();
        if (!held) {
            dw_snapshot_close(snapshot);
            snapshot = NULL;
        }
    }
    return NULL;
}

/* ---- opening ---- */

static void copy_weights(const dw_tensor *from)
{
    for (size_t i = 0; i < w.n_tensors; i++)
        if (w.tensors[i].n_bytes > 0)
            memcpy(w.tensors[i].data, from[i].data, (size_t)w.tensors[i].n_bytes);
}

/* Allocates a copy of the tensors in MAP, and borrows their names and shapes. */
static void make_copy(const dw_tensor *map)
{
    dw_tensor *own = calloc(w.n_tensors, sizeof *own);
    if (!own)
        abort();
    for (size_t i = 0; i < w.n_tensors; i++) {
        own[i] = map[i];
        own[i].data = calloc(1, (size_t)map[i].n_bytes + 1);
        if (!own[i].data)
            abort();
    }
    w.tensors = own;
}

/* False if there is no version yet, or it is being written. */
static bool load(void)
{
    dw_snapshot *snapshot;
    dw_snapshot_view view;
    if (dw_snapshot_open(&snapshot, w.dir, NULL) != DW_OK)
        return false;
    bool good = dw_snapshot_hold(snapshot, HOLD_MS, &view, NULL) == DW_OK &&
                dw_checkpoint_open(&w.map, w.dir, DW_CHECKPOINT_READ, NULL) == DW_OK;
    if (good) {
        w.tensors = dw_checkpoint_tensors(w.map, &w.n_tensors);
        if (w.own_copy) {
            const dw_tensor *map = w.tensors;
            make_copy(map);
            copy_weights(map);
        }
        w.expected = truth_of(view.version);
        if (digest_of(w.tensors, w.n_tensors) != w.expected)
            engine_fault("started from version %" PRIu64 ", which is a mix",
                         view.version);
        dw_snapshot_release(snapshot);
    }
    dw_snapshot_close(snapshot);
    return good;
}

void weights_open(const char *dir, bool own_copy, unsigned n_threads)
{
    w.dir = dir;
    w.own_copy = own_copy;
    w.held = !own_copy;
    w.version = DW_NO_VERSION;
    while (!load())
        dw_sleep_ms(5);
    for (unsigned i = 0; i < n_threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, NULL) != 0)
            abort();
        pthread_detach(thread);
    }
}

/* ---- pause and resume ---- */

static void wait_for_readers(void)
{
    while (w.n_reading > 0)
        pthread_cond_wait(&w.changed, &w.lock);
}

void weights_pause(void)
{
    pthread_mutex_lock(&w.lock);
    if (!w.paused)
        w.updated = false;
    w.paused = true;
    wait_for_readers();
    pthread_mutex_unlock(&w.lock);
}

void weights_resume(void)
{
    pthread_mutex_lock(&w.lock);
    if (w.paused && w.dropped)
        engine_fault("it is to serve, but its answers would name no version");
    if (w.paused && !w.own_copy)
        w.held = !w.updated;
    w.paused = false;
    pthread_cond_broadcast(&w.changed);
    pthread_mutex_unlock(&w.lock);
}

bool weights_paused(void)
{
    pthread_mutex_lock(&w.lock);
    bool paused = w.paused;
    pthread_mutex_unlock(&w.lock);
    return paused;
}

uint64_t weights_version(void)
{
    pthread_mutex_lock(&w.lock);
    uint64_t version = w.version;
    pthread_mutex_unlock(&w.lock);
    return version;
}

uint64_t weights_sweeps(void)
{
    pthread_mutex_lock(&w.lock);
    uint64_t n_sweeps = w.n_sweeps;
    pthread_mutex_unlock(&w.lock);
    return n_sweeps;
}

/* ---- updates ---- */

/* Runs between two sweeps, like an engine between two steps. */
static void begin_update(void)
{
    pthread_mutex_lock(&w.lock);
    w.updating = true;
    wait_for_readers();
    pthread_mutex_unlock(&w.lock);
}

static void end_update(void)
{
    pthread_mutex_lock(&w.lock);
    w.updating = false;
    pthread_cond_broadcast(&w.changed);
    pthread_mutex_unlock(&w.lock);
}

static bool refuse(char *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, WHY_SIZE, format, args);
    va_end(args);
    return false;
}

static bool check_state(uint64_t version, dw_digest state, char *why)
{
    dw_digest digest = digest_of(w.tensors, w.n_tensors);
    if (state != truth_of(version))
        engine_fault("an update to version %" PRIu64 " has another version's digest",
                     version);
    return digest == state ||
           refuse(why,
                  "the weights have digest %016" PRIx64 ", not that of version %" PRIu64,
                  digest, version);
}

static bool do_patch(const char *path, uint64_t version, dw_digest state, char *why)
{
    dw_patch *patch = NULL;
    dw_patch_goal goal;
    dw_patch_binding binding;
    dw_error err = {0};
    if (dw_patch_open(&patch, &goal, path, &err) != DW_OK)
        return refuse(why, "%s: %s", err.where, err.text);
    bool good = goal.version == version && goal.state == state;
    if (!good)
        refuse(why, "the patch leads to version %" PRIu64, goal.version);
    else if (dw_patch_check(patch, w.tensors, w.n_tensors, 1, path, &err) != DW_OK)
        good = refuse(why, "%s: %s", err.where, err.text);
    if (good && w.own_copy) {
        mishap_point(1);
        good =
            dw_patch_bind(&binding, patch, w.tensors, w.n_tensors, path, &err) == DW_OK;
        if (good) {
            dw_patch_scatter(&binding, 1, &err);
            dw_patch_unbind(&binding);
        } else {
            refuse(why, "%s: %s", err.where, err.text);
        }
    }
    dw_patch_free(patch);
    return good;
}

bool weights_take_patch(const char *path, uint64_t version, dw_digest state, char *why)
{
    begin_update();
    bool good = do_patch(path, version, state, why) && check_state(version, state, why);
    end_update();
    return good;
}

/* Copies DIR, or maps it again: its files may have been replaced. */
static bool do_load(const char *dir, char *why)
{
    dw_checkpoint *map;
    dw_error err = {0};
    if (dw_checkpoint_open(&map, dir, DW_CHECKPOINT_READ, &err) != DW_OK)
        return refuse(why, "%s: %s", err.where, err.text);
    size_t n;
    const dw_tensor *tensors = dw_checkpoint_tensors(map, &n);
    if (n != w.n_tensors) {
        dw_checkpoint_close(map);
        return refuse(why, "%s: another model", dir);
    }
    mishap_point(1);
    if (w.own_copy) {
        copy_weights(tensors);
        dw_checkpoint_close(map);
    } else {
        dw_checkpoint_close(w.map);
        w.map = map;
        w.tensors = tensors;
    }
    return true;
}

void weights_set_version(uint64_t version)
{
    dw_digest expected = truth_of(version);
    pthread_mutex_lock(&w.lock);
    w.version = version;
    w.dropped = false;
    w.expected = expected;
    w.updated = true;
    w.held = false;
    w.n_sweeps = 0;
    pthread_mutex_unlock(&w.lock);
}

void weights_drop_version(void)
{
    pthread_mutex_lock(&w.lock);
    w.version = DW_NO_VERSION;
    w.dropped = true;
    pthread_mutex_unlock(&w.lock);
}

void weights_restore_version(uint64_t version)
{
    begin_update();
    dw_digest digest = digest_of(w.tensors, w.n_tensors);
    if (digest != w.expected ||
        (version != DW_NO_VERSION && truth_of(version) != w.expected))
        engine_fault("it was named version %" PRIi64 ", but it is not", (int64_t)version);
    pthread_mutex_lock(&w.lock);
    w.version = version;
    w.dropped = false;
    pthread_mutex_unlock(&w.lock);
    end_update();
}

uint64_t weights_label(bool *is_dropped)
{
    pthread_mutex_lock(&w.lock);
    uint64_t version = w.version;
    *is_dropped = w.dropped;
    pthread_mutex_unlock(&w.lock);
    return version;
}

bool weights_are_own(void)
{
    return w.own_copy;
}

bool weights_take_dir(const char *dir, uint64_t version, dw_digest state, char *why)
{
    begin_update();
    bool good = do_load(dir, why) && check_state(version, state, why);
    end_update();
    return good;
}

static void spoil(void)
{
    uint8_t *bytes = w.tensors[0].data;
    if (w.own_copy) /* else it must not write the directory */
        bytes[0] ^= 1;
}

bool weights_reload(const char *dir, uint64_t version, mishap fate, char *why)
{
    begin_update();
    bool good = fate != MISHAP_FAIL_BEFORE && do_load(dir, why) &&
                check_state(version, truth_of(version), why);
    if (fate == MISHAP_FAIL_AFTER) {
        spoil();
        good = false;
    }
    if (good)
        weights_set_version(version);
    else if (!weights_paused())
        _exit(DEATH_BY_PLAN);
    end_update();
    return good;
}

void weights_spoil(void)
{
    begin_update();
    spoil();
    end_update();
}

bool weights_dump(const char *path)
{
    dw_error err = {0};
    if (dw_checkpoint_write(path, w.tensors, w.n_tensors, NULL, &err) == DW_OK)
        return true;
    fprintf(stderr, "%s: %s\n", err.where, err.text);
    return false;
}
