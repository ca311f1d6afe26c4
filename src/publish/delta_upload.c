#include "publish/delta_upload.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/progress.h"
#include "codec/delta.h"
#include "codec/delta_merge.h"
#include "store/store.h"
#include "weights/proven.h"

/* Encoded bytes that are kept in memory. The rest goes to files. */
#define IN_MEMORY_BYTES (16u << 20)

void dw_uploaded_release(dw_uploaded *e)
{
    for (size_t i = 0; i < e->objects.n; i++)
        dw_delta_close(e->deltas[i]);
    dw_objects_release(&e->objects);
    for (size_t i = 0; i < e->n_spilled; i++)
        dw_blob_release(&e->spilled[i]);
    dw_free(e->digests);
    dw_free(e->deltas);
    dw_free(e->spilled);
    *e = (dw_uploaded){0};
}

/* ---- the thread that uploads ---- */

typedef struct uploader {
    const dw_delta_spec *version;
    dw_uploaded *out;
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* guarded by the lock */
    size_t n_ready; /* objects that may be uploaded */
    bool closed;    /* no more will come */
    dw_status status;
    dw_error error;
    dw_times times; /* HASHED and UPLOADED */
} uploader;

static uint64_t since_start(const dw_delta_spec *v)
{
    return dw_clock_us() - v->t_start_us;
}

static dw_status upload_one(uploader *u, dw_object *object, dw_delta *delta,
                            uint64_t *hashed_us, dw_error *err)
{
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    const dw_source source = {
        .n_bytes = info.n_bytes, .read = dw_delta_read_at, .context = delta};
    return dw_object_put(u->version->store, object, &source, hashed_us, u->version->stop,
                         err);
}

static void *run_uploads(void *context)
{
    uploader *u = context;
    pthread_mutex_lock(&u->lock);
    for (size_t i = 0;; i++) {
        while (i >= u->n_ready && !u->closed)
            pthread_cond_wait(&u->changed, &u->lock);
        if (i >= u->n_ready || u->status != DW_OK)
            break;
        /* uploads a copy, because the arrays may move when they grow */
        dw_object object = u->out->objects.items[i];
        dw_delta *delta = u->out->deltas[i];
        pthread_mutex_unlock(&u->lock);
        dw_error error = {0};
        uint64_t hashed_us = 0;
        dw_status status = upload_one(u, &object, delta, &hashed_us, &error);
        pthread_mutex_lock(&u->lock);
        u->out->objects.items[i] = object;
        u->times.us[DW_HASHED] = hashed_us - u->version->t_start_us;
        u->times.us[DW_UPLOADED] = since_start(u->version);
        if (status != DW_OK) {
            u->status = status;
            u->error = error;
        }
    }
    pthread_mutex_unlock(&u->lock);
    return NULL;
}

/* ---- making objects ---- */

/* Groups that are encoded and wait to become one object. */
typedef struct pending {
    dw_delta **deltas;
    size_t n;
    size_t n_room;
    dw_slices slices;
    uint64_t n_bytes;
} pending;

typedef struct spill_target {
    dw_blob blob;
    size_t n_done;
} spill_target;

static dw_status spill_sink(void *context, const void *bytes, size_t n_bytes,
                            dw_error *err)
{
    (void)err;
    spill_target *t = context;
    memcpy(t->blob.bytes + t->n_done, bytes, n_bytes);
    t->n_done += n_bytes;
    return DW_OK;
}

/* Moves the bytes of a delta to a file. */
static dw_status spill(dw_uploaded *out, dw_delta **delta, uint64_t n_bytes,
                       const char *spool_dir, dw_error *err)
{
    if (!dw_grow_array((void **)&out->spilled, &out->n_spill_room, out->n_spilled,
                       sizeof *out->spilled))
        return dw_fail_memory(err, NULL);
    spill_target target = {0};
    dw_status status = dw_blob_map(&target.blob, n_bytes, spool_dir, err);
    if (status == DW_OK)
        status = dw_delta_write(*delta, spill_sink, &target, err);
    dw_delta *moved = NULL;
    if (status == DW_OK)
        status = dw_delta_open_bytes(&moved, target.blob.bytes, target.blob.n_bytes,
                                     "spool", err);
    if (status != DW_OK) {
        dw_blob_release(&target.blob);
        return status;
    }
    out->spilled[out->n_spilled++] = target.blob;
    dw_delta_close(*delta);
    *delta = moved;
    return DW_OK;
}

static uint64_t group_bytes(const dw_delta_spec *v, const dw_piece_group *g)
{
    uint64_t n = 0;
    for (size_t i = g->first; i < g->first + g->n; i++)
        n += v->base[i].n_bytes;
    return n;
}

/* DIGESTS takes those of the new weights, BAR the progress. */
static dw_status encode_group(dw_delta **out, dw_digest *digests, const dw_delta_spec *v,
                              const dw_piece_group *g, dw_share *bar, dw_error *err)
{
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.n_threads = v->n_threads;
    options.base_version = v->from;
    options.new_version = v->to;
    options.round_next = true;
    options.base_digests = v->base_digests + g->first;
    options.new_digests = digests + g->first;
    options.progress = dw_share_hook(bar);
    if (!v->captures)
        return dw_delta_diff(out, v->base + g->first, v->next + g->first, g->n, &options,
                             err);
    const dw_encode_capture capture = dw_captures_of_group(v->captures, g->first);
    return dw_delta_diff_captured(out, v->base + g->first, v->next + g->first, g->n,
                                  &options, &capture, err);
}

static dw_status fail_proof(const dw_delta_spec *v, const dw_error *fault, dw_error *err)
{
    return dw_fail(err, DW_CORRUPT, dw_store_url(v->store),
                   "version %" PRIu64 " was not committed: its delta does not lead "
                   "to the weights that it was made from (%s). The memory or the "
                   "baseline may be damaged. Publish again",
                   v->to, fault->text);
}

/* Merges the pending deltas to one object, and adds it to those that may be uploaded. */
static dw_status close_object(dw_uploaded *out, pending *p, const dw_delta_spec *v,
                              uploader *u, dw_error *err)
{
    if (p->n == 0)
        return DW_OK;
    dw_delta *merged = NULL;
    dw_object object = {0};
    dw_status status = dw_covers_of_slices(&object.covers, &object.n_covers, &p->slices,
                                           v->pieces->table, v->pieces->n_table, err);
    if (status == DW_OK)
        status = dw_delta_merge(&merged, p->deltas, p->n, err);
    pthread_mutex_lock(&u->lock);
    if (status == DW_OK && (!dw_grow_array((void **)&out->objects.items, &out->n_room,
                                           out->objects.n, sizeof object) ||
                            !dw_grow_array((void **)&out->deltas, &out->n_delta_room,
                                           out->objects.n, sizeof *out->deltas)))
        status = dw_fail_memory(err, NULL);
    if (status == DW_OK) {
        dw_key_object(object.key, v->to, v->write_id, v->purpose,
                      (unsigned)out->objects.n);
        out->deltas[out->objects.n] = merged;
        out->objects.items[out->objects.n++] = object;
        u->n_ready = out->objects.n;
        pthread_cond_broadcast(&u->changed);
        p->n = 0;
        p->n_bytes = 0;
        p->slices.n = 0;
    } else {
        dw_free(object.covers);
        dw_delta_close(merged);
    }
    pthread_mutex_unlock(&u->lock);
    return status;
}

/* Encodes a group and adds it to the pending ones. If the object would become too large,
 * closes it first. */
static dw_status add_group(dw_uploaded *out, pending *p, const dw_delta_spec *v,
                           const dw_piece_group *g, dw_share *bar, uploader *u,
                           dw_error *err)
{
    dw_delta *delta;
    dw_status status = v->load ? v->load(v->load_context, g, err) : DW_OK;
    if (status == DW_OK)
        status = encode_group(&delta, out->digests, v, g, bar, err);
    if (status != DW_OK)
        return status;
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    if (info.n_changed == 0) {
        dw_delta_close(delta);
        return DW_OK;
    }
    if (p->n_bytes > 0 && p->n_bytes + info.n_bytes > v->max_object_bytes)
        status = close_object(out, p, v, u, err);
    if (status == DW_OK && out->n_in_memory + info.n_bytes > IN_MEMORY_BYTES)
        status = spill(out, &delta, info.n_bytes, v->spool_dir, err);
    else
        out->n_in_memory += info.n_bytes;
    if (status == DW_OK &&
        !dw_grow_array((void **)&p->deltas, &p->n_room, p->n, sizeof *p->deltas))
        status = dw_fail_memory(err, NULL);
    if (status != DW_OK) {
        dw_delta_close(delta);
        return status;
    }
    p->deltas[p->n++] = delta;
    p->n_bytes += info.n_bytes;
    out->n_changed += info.n_changed;
    for (size_t i = 0; status == DW_OK && i < g->n; i++)
        status = dw_slices_append(&p->slices, v->pieces->cut.items[g->first + i], err);
    return status;
}

static bool failed(uploader *u)
{
    pthread_mutex_lock(&u->lock);
    bool result = u->status != DW_OK;
    pthread_mutex_unlock(&u->lock);
    return result;
}

static dw_status encode_all(dw_uploaded *out, const dw_delta_spec *v, uploader *u,
                            dw_error *err)
{
    pending p = {0};
    dw_status status = DW_OK;
    dw_share bar = {.whole = v->compared};
    for (size_t g = 0; g < v->pieces->n_groups; g++)
        bar.total += group_bytes(v, &v->pieces->groups[g]);
    for (size_t g = 0; status == DW_OK && g < v->pieces->n_groups && !failed(u); g++) {
        const dw_piece_group *group = &v->pieces->groups[g];
        status = add_group(out, &p, v, group, &bar, u, err);
        bar.before += group_bytes(v, group);
    }
    if (status == DW_OK)
        status = close_object(out, &p, v, u, err);
    out->times.us[DW_ENCODED] = since_start(v);
    for (size_t i = 0; i < p.n; i++)
        dw_delta_close(p.deltas[i]);
    dw_free(p.deltas);
    dw_slices_free(&p.slices);
    return status;
}

/* ---- proving ---- */

/* Decodes all objects against their base, and compares the result with the digests of the
 * new weights. */
static dw_status prove_all(dw_uploaded *out, const dw_delta_spec *v, uploader *u,
                           dw_error *err)
{
    const size_t n = v->pieces->cut.n;
    dw_digest *proven = dw_alloc_array(n, sizeof *proven);
    if (!proven)
        return dw_fail_memory(err, NULL);
    if (n > 0)
        memcpy(proven, v->base_digests, n * sizeof *proven);
    const dw_proven pieces = {.cut = &v->pieces->cut,
                              .views = v->base,
                              .before = v->base_digests,
                              .after = proven};
    dw_error fault = {.text = "a tensor without changes has another digest"};
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < out->objects.n && !failed(u); i++) {
        pthread_mutex_lock(&u->lock); /* the uploader may just be setting its hash */
        const dw_object object = out->objects.items[i];
        pthread_mutex_unlock(&u->lock);
        status = dw_delta_prove(&pieces, &object, out->deltas[i], v->pieces->table,
                                v->pieces->n_table, v->n_threads, &out->n_wild, &fault);
    }
    if (status == DW_OK && !failed(u) && n > 0 &&
        memcmp(proven, out->digests, n * sizeof *proven) != 0)
        status = DW_CORRUPT;
    if (status == DW_NO_MEMORY)
        dw_fail_memory(err, NULL);
    else if (status != DW_OK)
        status = fail_proof(v, &fault, err);
    dw_free(proven);
    return status;
}

dw_status dw_delta_upload(dw_uploaded *out, const dw_delta_spec *v, dw_error *err)
{
    *out =
        (dw_uploaded){.digests = dw_alloc_zeroed(v->pieces->cut.n, sizeof *out->digests)};
    if (!out->digests)
        return dw_fail_memory(err, NULL);
    uploader u = {.version = v,
                  .out = out,
                  .lock = PTHREAD_MUTEX_INITIALIZER,
                  .changed = PTHREAD_COND_INITIALIZER};
    bool threaded = pthread_create(&u.thread, NULL, run_uploads, &u) == 0;
    dw_status status = encode_all(out, v, &u, err);
    if (v->captured)
        v->captured(v->captured_context);
    if (status == DW_OK) /* while the objects are uploaded */
        status = prove_all(out, v, &u, err);
    out->times.us[DW_PROVEN] = since_start(v);
    pthread_mutex_lock(&u.lock);
    u.closed = true;
    if (status != DW_OK && u.status == DW_OK)
        u.status = status; /* the uploader stops */
    pthread_cond_broadcast(&u.changed);
    pthread_mutex_unlock(&u.lock);
    if (threaded)
        pthread_join(u.thread, NULL);
    else
        run_uploads(&u);
    if (status == DW_OK && u.status != DW_OK) {
        status = u.status;
        if (err)
            *err = u.error;
    }
    out->times.us[DW_HASHED] = u.times.us[DW_HASHED];
    out->times.us[DW_UPLOADED] = u.times.us[DW_UPLOADED];
    pthread_mutex_destroy(&u.lock);
    pthread_cond_destroy(&u.changed);
    return status;
}
