#include "publish/held_version.h"

#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/mem.h"

void dw_held_init(dw_held_version *h)
{
    *h = (dw_held_version){.baseline = dw_nowhere, .at = dw_nowhere};
    pthread_mutex_init(&h->lock, NULL);
}

dw_status dw_held_open(dw_held_version *h, const dw_pieces *pieces, const char *spool_dir,
                       dw_error *err)
{
    h->data = dw_alloc_zeroed(pieces->n_table, sizeof *h->data);
    if (!h->data)
        return dw_fail_memory(err, NULL);
    h->spool_dir = spool_dir;
    h->pieces = pieces;
    return DW_OK;
}

void dw_held_close(dw_held_version *h)
{
    dw_blob_release(&h->copy);
    dw_free(h->data);
    pthread_mutex_destroy(&h->lock);
}

/* ---- for the owner of the baseline; the lock is held ---- */

static void lose(dw_held_version *h, dw_status status, const dw_error *fault)
{
    if (h->at.version == DW_NO_VERSION || h->lost != DW_OK)
        return;
    h->lost = status;
    h->fault = *fault;
    dw_blob_release(&h->copy);
}

static void lose_unreliable(dw_held_version *h)
{
    dw_error fault = {0};
    dw_fail(&fault, DW_CANCELLED, NULL,
            "the baseline was damaged or replaced while folds and anchors were made "
            "from it. A later version makes them");
    lose(h, DW_CANCELLED, &fault);
}

/* Where byte FIRST of tensor T is. */
static dw_place place_of(const dw_held_version *h, size_t t, uint64_t first)
{
    return (dw_place){h->devices ? h->devices[t] : NULL, (uint8_t *)h->data[t] + first};
}

/* Copies the held weights out of the baseline. */
static dw_status make_copy(dw_held_version *h, dw_error *err)
{
    const dw_pieces *pieces = h->pieces;
    dw_status status = dw_blob_map(&h->copy, dw_pieces_room(pieces), h->spool_dir, err);
    if (status == DW_OK) /* a forked child would keep its room on the disk */
        (void)madvise(h->copy.bytes, h->copy.n_bytes, MADV_DONTFORK);
    uint8_t *to = h->copy.bytes;
    for (size_t t = 0; status == DW_OK && t < pieces->n_table; t++) {
        status = dw_place_copy((dw_place){NULL, to}, place_of(h, t, 0),
                               pieces->table[t].n_bytes, err);
        to += dw_padded(pieces->table[t].n_bytes);
    }
    to = h->copy.bytes;
    for (size_t t = 0; status == DW_OK && t < pieces->n_table; t++) {
        h->data[t] = to;
        to += dw_padded(pieces->table[t].n_bytes);
    }
    if (status == DW_OK)
        h->devices = NULL;
    return status;
}

/* ---- for the owner of the baseline ---- */

void dw_held_set_baseline(dw_held_version *h, const dw_position *at, void *const *data,
                          dw_device *const *devices, const dw_checkpoint *files)
{
    if (!h->pieces)
        return;
    pthread_mutex_lock(&h->lock);
    h->baseline = *at;
    h->base_data = data;
    h->base_devices = devices;
    h->files = files;
    pthread_mutex_unlock(&h->lock);
}

void dw_held_before_move(dw_held_version *h)
{
    dw_error reason = {0}, fault = {0};
    if (!h->pieces)
        return;
    pthread_mutex_lock(&h->lock);
    h->baseline = dw_nowhere;
    if (h->at.version != DW_NO_VERSION && h->lost == DW_OK && !h->copy.bytes) {
        dw_status status = make_copy(h, &reason);
        if (status != DW_OK)
            lose(h,
                 dw_fail(&fault, status, reason.where,
                         "the folds and anchors of version %" PRIu64 " were given up, "
                         "because its weights could not be copied: %.300s. A later "
                         "version makes them",
                         h->at.version, reason.text),
                 &fault);
    }
    pthread_mutex_unlock(&h->lock);
}

void dw_held_lose(dw_held_version *h)
{
    if (!h->pieces)
        return;
    pthread_mutex_lock(&h->lock);
    h->baseline = dw_nowhere;
    if (!h->copy.bytes)
        lose_unreliable(h);
    pthread_mutex_unlock(&h->lock);
}

bool dw_held_give_up_copy(dw_held_version *h)
{
    dw_error fault = {0};
    if (!h->pieces)
        return false;
    pthread_mutex_lock(&h->lock);
    const bool is_there = h->copy.bytes != NULL;
    if (is_there) {
        dw_fail(&fault, DW_IO, h->spool_dir,
                "the folds and anchors that were being made were given up: there is too "
                "little room on the disk. Free some; a later version makes them");
        lose(h, DW_IO, &fault);
    }
    pthread_mutex_unlock(&h->lock);
    return is_there;
}

/* ---- for upkeep ---- */

bool dw_held_take(dw_held_version *h, dw_position *at)
{
    if (!h->pieces)
        return false;
    pthread_mutex_lock(&h->lock);
    *at = h->at = h->baseline;
    h->lost = DW_OK;
    const bool is_there = h->at.version != DW_NO_VERSION;
    if (is_there && h->pieces->n_table > 0)
        memcpy(h->data, h->base_data, h->pieces->n_table * sizeof *h->data);
    h->devices = h->base_devices;
    pthread_mutex_unlock(&h->lock);
    return is_there;
}

void dw_held_release(dw_held_version *h)
{
    pthread_mutex_lock(&h->lock);
    h->at = dw_nowhere;
    dw_blob_release(&h->copy);
    pthread_mutex_unlock(&h->lock);
}

/* Takes the lock. If the held weights cannot be read, releases it and returns why. */
static dw_status lock_to_read(dw_held_version *h, dw_error *err)
{
    pthread_mutex_lock(&h->lock);
    const dw_status status = h->lost;
    if (status == DW_OK)
        return DW_OK;
    if (err)
        *err = h->fault;
    pthread_mutex_unlock(&h->lock);
    return status;
}

dw_status dw_held_read(dw_held_version *h, size_t t, void *into, dw_error *err)
{
    dw_status status = lock_to_read(h, err);
    if (status != DW_OK)
        return status;
    status = dw_place_copy((dw_place){NULL, into}, place_of(h, t, 0),
                           h->pieces->table[t].n_bytes, err);
    pthread_mutex_unlock(&h->lock);
    return status;
}

dw_status dw_held_clone_files(dw_held_version *h, const char *dir, dw_error *err)
{
    dw_status status = lock_to_read(h, err);
    if (status != DW_OK)
        return status;
    status = h->files && !h->copy.bytes
                 ? dw_files_clone(h->files, dir, err)
                 : dw_fail(err, DW_UNSUPPORTED, dir, "the baseline has moved on");
    pthread_mutex_unlock(&h->lock);
    return status;
}

/* ---- groups ---- */

dw_status dw_held_group_open(dw_held_group *out, dw_held_version *h, dw_error *err)
{
    const dw_pieces *pieces = h->pieces;
    *out = (dw_held_group){.held = h};
    out->views = dw_alloc_array(pieces->cut.n, sizeof *out->views);
    out->room = dw_alloc((size_t)dw_pieces_group_room(pieces));
    if (!out->views || !out->room)
        return dw_fail_memory(err, NULL);
    if (pieces->cut.n > 0)
        memcpy(out->views, pieces->shapes.tensors, pieces->cut.n * sizeof *out->views);
    return DW_OK;
}

void dw_held_group_close(dw_held_group *g)
{
    dw_free(g->views);
    dw_free(g->room);
}

dw_status dw_held_group_load(void *context, const dw_piece_group *group, dw_error *err)
{
    const dw_held_group *g = context;
    dw_held_version *h = g->held;
    dw_status status = lock_to_read(h, err);
    if (status != DW_OK)
        return status;
    uint8_t *to = g->room;
    for (size_t i = group->first; status == DW_OK && i < group->first + group->n; i++) {
        dw_tensor *piece = &g->views[i];
        const size_t t = h->pieces->cut.items[i].tensor;
        piece->data = to;
        if (piece->n_bytes > 0)
            status =
                dw_place_copy((dw_place){NULL, to}, place_of(h, t, piece->first_byte),
                              piece->n_bytes, err);
        to += dw_padded(piece->n_bytes);
    }
    pthread_mutex_unlock(&h->lock);
    return status;
}

/* ---- files ---- */

static dw_status read_file(void *context, uint64_t offset, void *into, size_t n_bytes,
                           dw_error *err)
{
    const dw_held_file *f = context;
    dw_held_version *h = f->held;
    dw_status status = lock_to_read(h, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; i < f->anchor->list.n; i++) {
        dw_tensor *t = &f->anchor->list.tensors[i];
        const dw_place at = place_of(h, f->tensors[i], t->first_byte);
        t->data = t->n_bytes > 0 ? at.data : NULL;
        t->device = at.device;
    }
    const dw_source source = dw_anchor_source(f->anchor);
    status = source.read(source.context, offset, into, n_bytes, err);
    pthread_mutex_unlock(&h->lock);
    return status;
}

dw_source dw_held_file_source(dw_held_file *f)
{
    return (dw_source){.n_bytes = f->anchor->n_bytes, .read = read_file, .context = f};
}
