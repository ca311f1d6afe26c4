/* A version of packed tensors. They are unpacked in groups of bounded size and proven by
 * their checksums. Each group is diffed against the weights. The result is a deltawire
 * delta, which the replica stages and applies as any other. Applying a XOR twice would
 * undo it; applying such a delta twice does no harm.
 *
 *     file ─ payloads ─ group of new tensors ─ checksums ─ delta
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "compat/step.h"
#include "deltawire/delta.h"
#include "store/store.h"
#include "stream/cut.h"
#include "tensor/tensor_list.h"

#define GROUP_BYTES                                                                      \
    (256u << 20) /* new tensors in a group; a larger tensor is a group by itself */

/* A tensor that waits for its group. */
typedef struct waiting {
    size_t tensor; /* index in the weights */
    dw_payload payload;
} waiting;

typedef struct builder {
    dw_peer_step *step;
    const dw_peer_settings *settings;
    const dw_peer_record *record;
    const dw_peer_start *now;
    dw_digest *digests; /* [now->n_tensors] of the new weights */
    size_t n_room;      /* objects and deltas */

    waiting *group; /* [record->n_entries] */
    size_t n_group;
    uint64_t group_bytes;
} builder;

/* ---- a group ---- */

typedef struct group_arrays {
    dw_tensor *base;
    dw_tensor *next;
    dw_digest *base_digests;
    dw_digest *next_digests;
    dw_cover *covers;
    dw_blob room;
} group_arrays;

static int compare_waiting(const void *left, const void *right)
{
    const waiting *a = left, *b = right;
    return a->tensor < b->tensor ? -1 : a->tensor > b->tensor;
}

/* A group is kept in memory, except for a tensor that is larger than the bound. */
static dw_status make_room(dw_blob *out, const builder *b, dw_error *err)
{
    if (b->group_bytes > GROUP_BYTES)
        return dw_blob_make(out, b->group_bytes, b->settings->spool_dir, err);
    *out = (dw_blob){dw_alloc((size_t)b->group_bytes), (size_t)b->group_bytes, false};
    return out->bytes ? DW_OK : dw_fail_memory(err, NULL);
}

static dw_status make_arrays(group_arrays *a, const builder *b, dw_error *err)
{
    const size_t n = b->n_group;
    *a = (group_arrays){.base = dw_alloc_array(n, sizeof *a->base),
                        .next = dw_alloc_array(n, sizeof *a->next),
                        .base_digests = dw_alloc_array(n, sizeof *a->base_digests),
                        .next_digests = dw_alloc_array(n, sizeof *a->next_digests),
                        .covers = dw_alloc_array(n, sizeof *a->covers)};
    if (!a->base || !a->next || !a->base_digests || !a->next_digests || !a->covers)
        return dw_fail_memory(err, NULL);
    dw_status status = make_room(&a->room, b, err);
    if (status != DW_OK)
        return status;
    uint8_t *at = a->room.bytes;
    for (size_t i = 0; i < n; i++) {
        const size_t t = b->group[i].tensor;
        a->base[i] = a->next[i] = b->now->tensors[t];
        a->next[i].data = at;
        a->base_digests[i] = b->now->digests[t];
        a->covers[i] = (dw_cover){SIZE_MAX, t, t + 1};
        at += dw_padded(a->next[i].n_bytes);
    }
    return DW_OK;
}

static void release_arrays(group_arrays *a)
{
    dw_free(a->base);
    dw_free(a->next);
    dw_free(a->base_digests);
    dw_free(a->next_digests);
    dw_free(a->covers);
    dw_blob_release(&a->room);
}

typedef struct decoding {
    const builder *builder;
    const group_arrays *arrays;
} decoding;

static dw_status decode_one(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const decoding *d = context;
    return dw_payload_decode(d->arrays->next[i].data, &d->arrays->base[i],
                             &d->builder->group[i].payload, err);
}

/* ---- its delta ---- */

typedef struct delta_copy {
    uint8_t *at;
} delta_copy;

static dw_status copy_delta(void *context, const void *bytes, size_t n_bytes,
                            dw_error *err)
{
    (void)err;
    delta_copy *c = context;
    memcpy(c->at, bytes, n_bytes);
    c->at += n_bytes;
    return DW_OK;
}

/* Makes room for one more object of the step. */
static dw_status grow(builder *b, dw_error *err)
{
    dw_peer_step *s = b->step;
    size_t n_room = b->n_room;
    if (!dw_grow_array((void **)&s->objects.items, &n_room, s->objects.n,
                       sizeof *s->objects.items))
        return dw_fail_memory(err, NULL);
    if (n_room != b->n_room || !s->deltas) {
        dw_blob *deltas = dw_realloc_array(s->deltas, n_room, sizeof *deltas);
        if (!deltas)
            return dw_fail_memory(err, NULL);
        s->deltas = deltas;
        b->n_room = n_room;
    }
    return DW_OK;
}

static dw_status keep_delta(builder *b, const dw_delta *delta, group_arrays *a,
                            dw_error *err)
{
    dw_peer_step *s = b->step;
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    s->n_changed += info.n_changed;
    dw_status status = info.n_changed > 0 ? grow(b, err) : DW_OK;
    if (status != DW_OK || info.n_changed == 0)
        return status;
    dw_blob blob;
    status = dw_peer_room(&blob, info.n_bytes, b->settings->spool_dir, &s->n_heap, err);
    if (status != DW_OK)
        return status;
    delta_copy copy = {blob.bytes};
    status = dw_delta_write(delta, copy_delta, &copy, err);
    if (status != DW_OK) {
        dw_blob_release(&blob);
        return status;
    }
    dw_object *o = &s->objects.items[s->objects.n];
    *o =
        (dw_object){.n_bytes = info.n_bytes, .covers = a->covers, .n_covers = b->n_group};
    memcpy(o->key, b->record->listed.key, sizeof o->key);
    a->covers = NULL; /* the object owns it now */
    s->deltas[s->objects.n++] = blob;
    return DW_OK;
}

static dw_status diff_group(builder *b, group_arrays *a, dw_error *err)
{
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.n_threads = b->settings->n_threads;
    options.new_version = b->record->version;
    options.base_version = b->record->named_base;
    options.base_digests = a->base_digests;
    options.new_digests = a->next_digests;
    dw_delta *delta;
    dw_status status = dw_delta_diff(&delta, a->base, a->next, b->n_group, &options, err);
    if (status != DW_OK)
        return status;
    status = keep_delta(b, delta, a, err);
    for (size_t i = 0; i < b->n_group; i++)
        b->digests[b->group[i].tensor] = a->next_digests[i];
    dw_delta_close(delta);
    return status;
}

/* Unpacks, proves and diffs the tensors of the group. */
static dw_status finish_group(builder *b, dw_error *err)
{
    if (b->n_group == 0)
        return DW_OK;
    qsort(b->group, b->n_group, sizeof *b->group, compare_waiting);
    group_arrays a;
    dw_status status = make_arrays(&a, b, err);
    const decoding d = {b, &a};
    if (status == DW_OK)
        status = dw_parallel(dw_worker_count(b->settings->n_threads, b->n_group),
                             b->n_group, decode_one, (void *)&d, NULL, err);
    if (status == DW_OK)
        status = diff_group(b, &a, err);
    release_arrays(&a);
    if (status == DW_OK && b->record->checksum != DW_CHECKSUM_NONE)
        b->step->n_checked += b->n_group;
    b->n_group = 0;
    b->group_bytes = 0;
    return status;
}

/* ---- files ---- */

static dw_status add_tensor(builder *b, const dw_peer_entry *e, const dw_payload *payload,
                            const char *where, dw_error *err)
{
    const dw_tensor key = {.name = e->name};
    const dw_tensor *t = b->now->n_tensors > 0
                             ? bsearch(&key, b->now->tensors, b->now->n_tensors,
                                       sizeof *t, dw_tensor_compare_names)
                             : NULL;
    if (!t)
        return dw_fail_tensor(err, DW_MISMATCH, where, e->name,
                              "the version has it, but the weights here do not");
    dw_status status = DW_OK;
    if (b->group_bytes > 0 && b->group_bytes + t->n_bytes > GROUP_BYTES)
        status = finish_group(b, err);
    if (status != DW_OK)
        return status;
    b->group[b->n_group++] = (waiting){(size_t)(t - b->now->tensors), *payload};
    b->group_bytes += dw_padded(t->n_bytes);
    return DW_OK;
}

static dw_status take_file(builder *b, const dw_peer_file *file,
                           const dw_progress *progress, dw_error *err)
{
    char where[DW_STORE_WHERE];
    dw_store_where(b->settings->peer->store, file->key, where, sizeof where);
    dw_peer_blob blob;
    dw_name_index names = {0};
    uint64_t n_heap = 0; /* freed before the next file */
    dw_status status = dw_peer_fetch(&blob, b->settings->peer, file,
                                     b->settings->spool_dir, &n_heap, progress, err);
    if (status != DW_OK)
        return status;
    status = dw_name_index_init(&names, blob.file.tensors, blob.file.n_tensors, err);
    for (size_t i = file->first; status == DW_OK && i < file->end; i++) {
        const dw_peer_entry *e = &b->record->entries[i];
        size_t found = dw_name_index_find(&names, e->name);
        dw_payload p = {0};
        status = dw_peer_payload(&p, b->record, e, &blob.file,
                                 found == SIZE_MAX ? NULL : &blob.file.tensors[found],
                                 where, err);
        p.spool_dir = b->settings->spool_dir;
        if (status == DW_OK)
            status = add_tensor(b, e, &p, where, err);
    }
    if (status == DW_OK && blob.file.n_tensors != file->end - file->first)
        status = dw_fail(err, DW_CORRUPT, where,
                         "it holds %zu tensors, but the version names %zu of them",
                         blob.file.n_tensors, file->end - file->first);
    if (status == DW_OK) /* payloads point into the file, so finish the group first */
        status = finish_group(b, err);
    dw_name_index_release(&names);
    dw_peer_blob_release(&blob);
    return status;
}

dw_status dw_peer_step_packed(dw_peer_step *step, const dw_peer_settings *settings,
                              const dw_peer_record *r, const dw_peer_start *now,
                              dw_error *err)
{
    builder b = {.step = step, .settings = settings, .record = r, .now = now};
    dw_share share = {settings->progress, 0, r->n_bytes};
    const dw_progress hook = dw_share_hook(&share);
    b.digests = dw_alloc_array(now->n_tensors, sizeof *b.digests);
    b.group = dw_alloc_array(r->n_entries, sizeof *b.group);
    dw_status status = b.digests && b.group ? DW_OK : dw_fail_memory(err, NULL);
    if (status == DW_OK && now->n_tensors > 0)
        memcpy(b.digests, now->digests, now->n_tensors * sizeof *b.digests);
    for (size_t i = 0; status == DW_OK && i < r->n_files; i++) {
        status = take_file(&b, &r->files[i], &hook, err);
        share.before += r->files[i].n_bytes;
    }
    if (status == DW_OK)
        step->position.state = dw_digest_state(now->tensors, b.digests, now->n_tensors);
    step->n_tensors = r->n_entries;
    dw_free(b.digests);
    dw_free(b.group);
    return status;
}
