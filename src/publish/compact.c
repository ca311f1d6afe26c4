#include "publish/compact.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "codec/digest.h"
#include "follow/follower.h"
#include "publish/delta_upload.h"
#include "publish/shortcut.h"
#include "store/store.h"
#include "inner.h"

#define GROUP_BYTES (32u << 20) /* of weights, diffed at a time */
#define MAX_TRIES   3

struct dw_compactor {
    dw_compact_options options; /* strings are copies */
    dw_stream *stream;
    dw_store *fork_store; /* borrowed, or NULL */
    dw_hint own_hint;
    dw_hint *hint;
    dw_due_rule rule;
    dw_pieces pieces; /* of the whole model */
    dw_scratch_model model;
    dw_follower *follower; /* of `model`; NULL: nothing was due yet, or it failed */
    dw_edge made[2];       /* the newest fold and the newest anchor that it made */
    uint64_t newest, seen; /* the newest anchor, and the head when it was first seen */
    bool removal_denied;
    dw_status fault; /* of the last removal, until it is taken */
    dw_error error;
};

/* ---- cancelling ---- */

/* Uploads run on other threads, but the caller's progress function is called only on the
 * caller's thread. There it sets `stop`, which the other threads read. */
typedef struct stopper {
    const dw_progress *outer;
    pthread_t thread;
    atomic_int stop;
} stopper;

static int ask(void *context, uint64_t n_done, uint64_t n_total)
{
    stopper *s = context;
    if (pthread_equal(s->thread, pthread_self()) && s->outer && s->outer->report &&
        s->outer->report(s->outer->context, n_done, n_total) != 0)
        atomic_store(&s->stop, 1);
    return atomic_load(&s->stop);
}

/* ---- the scratch model ---- */

static void drop_model(dw_compactor *c)
{
    dw_follower_close(c->follower);
    c->follower = NULL;
    dw_scratch_model_release(&c->model);
}

static dw_status make_model(const dw_compactor *c, dw_scratch_model *out, dw_error *err)
{
    const dw_stream_record *r = &c->stream->record;
    return dw_scratch_model_make(out, r->tensors, r->n_tensors, c->options.work_dir, err);
}

/* The scratch model holds version AT, or nothing. */
static dw_status open_follower(dw_compactor *c, uint64_t at, dw_error *err)
{
    const dw_stream_record *r = &c->stream->record;
    dw_follow_options follow;
    dw_follow_options_init(&follow);
    follow.tensors = c->model.tensors;
    follow.n_tensors = r->n_tensors;
    follow.tensors_empty = at == DW_NO_VERSION;
    follow.at = at;
    follow.base = c->options.base;
    follow.spool_dir = c->options.work_dir;
    follow.n_threads = c->options.n_threads;
    follow.trust = (dw_trust){(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])c->stream->trust,
                              c->stream->n_trust, r->stream};
    follow.no_files = true;
    dw_status status = dw_follower_open(&c->follower, c->stream->store, &follow, err);
    if (status == DW_OK)
        c->follower->fork_store = c->fork_store;
    return status;
}

static dw_status open_model(dw_compactor *c, dw_error *err)
{
    if (c->follower)
        return DW_OK;
    dw_status status = make_model(c, &c->model, err);
    return status == DW_OK ? open_follower(c, DW_NO_VERSION, err) : status;
}

dw_status dw_compactor_seed(dw_compactor *c, const dw_place *weights, uint64_t version,
                            dw_error *err)
{
    dw_status status = make_model(c, &c->model, err);
    for (size_t t = 0; status == DW_OK && t < c->pieces.n_table; t++)
        status = dw_place_copy((dw_place){NULL, c->model.tensors[t].data}, weights[t],
                               c->model.tensors[t].n_bytes, err);
    if (status == DW_OK)
        status = open_follower(c, version, err);
    if (status != DW_OK)
        drop_model(c);
    return status;
}

/* Brings the scratch model to VERSION. */
static dw_status follow_to(dw_compactor *c, uint64_t version, dw_position *at,
                           const dw_progress *stop, dw_error *err)
{
    /* to go back takes the whole model, and in an empty one it needs no other room */
    if (c->follower && dw_follower_version(c->follower) > version)
        drop_model(c);
    dw_status status = open_model(c, err);
    if (status == DW_OK)
        status = dw_follower_sync(c->follower, version, stop, NULL, err);
    if (status == DW_OK)
        *at = *dw_target_at(c->follower->weights);
    return status;
}

/* The data of MODEL, one pointer a tensor. Free it with dw_free. */
static void **data_of(const dw_compactor *c, const dw_scratch_model *model, dw_error *err)
{
    void **data = dw_alloc_array(c->pieces.n_table, sizeof *data);
    for (size_t t = 0; data && t < c->pieces.n_table; t++)
        data[t] = model->tensors[t].data;
    if (!data)
        (void)dw_fail_memory(err, NULL);
    return data;
}

/* ---- uploading ---- */

static dw_status upload_anchor(dw_compactor *c, const dw_position *to,
                               const char *write_id, dw_objects *out,
                               const dw_progress *stop, dw_error *err)
{
    void **data = data_of(c, &c->model, err);
    const dw_anchor_spec spec = {
        .store = c->stream->store,
        .table = c->pieces.table,
        .n_table = c->pieces.n_table,
        .slices = &c->pieces.owned,
        .data = data,
        .share = dw_whole_share(c->pieces.table, c->pieces.n_table, to->state),
        .version = to->version,
        .is_shortcut = true,
        .write_id = write_id,
        .max_object_bytes = c->options.max_anchor_bytes,
        .progress = stop,
    };
    dw_status status = data ? dw_anchor_upload(out, &spec, err) : DW_NO_MEMORY;
    dw_free(data);
    return status;
}

/* Both ends of a fold. */
typedef struct fold {
    dw_position from, to;
    dw_scratch_model old; /* the model at FROM; the compactor's own is at TO */
    dw_tensor *base, *next;
    dw_digest *digests; /* of BASE */
} fold;

static dw_status fail_changed(const dw_compactor *c, uint64_t version, dw_error *err)
{
    return dw_fail(err, DW_CORRUPT, c->options.work_dir,
                   "the scratch copy of version %" PRIu64
                   " changed before it was uploaded. It is fetched again",
                   version);
}

static dw_status open_ends(dw_compactor *c, fold *f, dw_error *err)
{
    const dw_pieces *pieces = &c->pieces;
    void **old = data_of(c, &f->old, err), **new = data_of(c, &c->model, err);
    f->base = dw_alloc_array(pieces->cut.n, sizeof *f->base);
    f->next = dw_alloc_array(pieces->cut.n, sizeof *f->next);
    f->digests = dw_alloc_array(pieces->cut.n, sizeof *f->digests);
    dw_status status = old && new && f->base && f->next && f->digests
                           ? DW_OK
                           : dw_fail_memory(err, NULL);
    if (status == DW_OK) {
        dw_pieces_view(pieces, f->base, old);
        dw_pieces_view(pieces, f->next, new);
        status = dw_digest_tensors(f->digests, NULL, f->base, pieces->cut.n,
                                   c->options.n_threads, NULL, err);
    }
    if (status == DW_OK && dw_pieces_state(pieces, f->digests) != f->from.state)
        status = fail_changed(c, f->from.version, err);
    dw_free(old);
    dw_free(new);
    return status;
}

static void close_ends(fold *f)
{
    dw_scratch_model_release(&f->old);
    dw_free(f->base);
    dw_free(f->next);
    dw_free(f->digests);
}

/* Diffs the models and uploads the deltas. */
static dw_status upload_fold(dw_compactor *c, const fold *f, const char *write_id,
                             dw_objects *out, const dw_progress *stop, dw_error *err)
{
    dw_uploaded uploaded = {0};
    const dw_delta_spec version = {
        .pieces = &c->pieces,
        .base = f->base,
        .next = f->next,
        .base_digests = f->digests,
        .from = f->from.version,
        .to = f->to.version,
        .store = c->stream->store,
        .purpose = "fold",
        .write_id = write_id,
        .max_object_bytes = c->options.max_object_bytes,
        .spool_dir = c->options.work_dir,
        .n_threads = c->options.n_threads,
        .stop = stop,
        .compared = stop,
    };
    dw_status status = dw_delta_upload(&uploaded, &version, err);
    /* the fold must lead to the state that the commit names */
    if (status == DW_OK && dw_pieces_state(&c->pieces, uploaded.digests) != f->to.state)
        status = fail_changed(c, f->to.version, err);
    if (status == DW_OK) {
        for (size_t i = 0; i < uploaded.objects.n; i++)
            dw_delta_close(uploaded.deltas[i]);
        *out = uploaded.objects;
        uploaded.objects = (dw_objects){0};
    }
    dw_uploaded_release(&uploaded);
    return status;
}

/* ---- the record ---- */

static bool same_objects(const dw_objects *a, const dw_objects *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++)
        same = strcmp(a->items[i].key, b->items[i].key) == 0;
    return same;
}

/* Looks for the shortcut that EDGE names, and takes its size. OURS may be NULL; *IS_OURS:
 * whether it consists of these objects. */
static bool find_made(dw_compactor *c, dw_edge *edge, const dw_objects *ours,
                      bool *is_ours)
{
    dw_shortcut_record found;
    if (dw_stream_read_shortcut(c->stream, edge->to, edge->from, &found, NULL) != DW_OK)
        return false;
    *is_ours = ours && same_objects(&found.objects, ours);
    edge->n_bytes = dw_objects_bytes(&found.objects);
    edge->n_objects = found.objects.n;
    dw_shortcut_record_release(&found);
    return true;
}

/* Creates the record; FROM is NULL for an anchor. If the reply is lost, reads it. If
 * another process made the shortcut first, removes the objects: that one is as good. */
static dw_status create(dw_compactor *c, const dw_position *from, const dw_position *to,
                        const dw_objects *objects, dw_edge *made, dw_error *err)
{
    bool is_ours;
    *made = (dw_edge){from ? from->version : DW_NO_VERSION, to->version,
                      dw_objects_bytes(objects), objects->n};
    dw_status status =
        dw_shortcut_create(c->stream, from, to, objects, c->options.sign_key, err);
    if ((status != DW_CONFLICT && status != DW_UNAVAILABLE) ||
        !find_made(c, made, objects, &is_ours))
        return status;
    for (size_t i = 0; !is_ours && i < objects->n; i++)
        dw_store_remove(c->stream->store, objects->items[i].key, NULL);
    return DW_OK;
}

/* The writer of the stream tells its hint of each version; what others added is in
 * latest.json. Another compactor reads the newest, so that it does not put an older one.
 */
static dw_status look(dw_compactor *c, dw_error *err)
{
    uint64_t head;
    if (c->hint != &c->own_hint) {
        dw_hint_refresh(c->hint, c->stream);
        return DW_OK;
    }
    dw_status status = dw_stream_find_head(c->stream, c->stream->head, &head, err);
    if (status == DW_OK)
        status = dw_hint_load(c->hint, c->stream, head, err);
    /* the writer may have put its hint just after this one did */
    for (unsigned i = 0; i < 2 && status == DW_OK; i++)
        if (c->made[i].to <= head)
            status = dw_hint_add(c->hint, c->stream, c->made[i], err);
    return status;
}

/* ---- one shortcut ---- */

static dw_status make_anchor(dw_compactor *c, uint64_t version, dw_edge *made,
                             const dw_progress *stop, dw_error *err)
{
    char write_id[DW_ID_TEXT];
    dw_position to;
    dw_objects objects = {0};
    dw_status status = dw_random_id(write_id, err);
    if (status == DW_OK)
        status = follow_to(c, version, &to, stop, err);
    if (status == DW_OK)
        status = upload_anchor(c, &to, write_id, &objects, stop, err);
    if (status == DW_OK)
        status = create(c, NULL, &to, &objects, made, err);
    dw_objects_release(&objects);
    return status;
}

static dw_status make_fold(dw_compactor *c, const dw_edge *due, dw_edge *made,
                           const dw_progress *stop, dw_error *err)
{
    char write_id[DW_ID_TEXT];
    const dw_stream_record *r = &c->stream->record;
    fold f = {0};
    dw_objects objects = {0};
    dw_status status = dw_random_id(write_id, err);
    if (status == DW_OK)
        status = follow_to(c, due->from, &f.from, stop, err);
    if (status == DW_OK)
        status = make_model(c, &f.old, err);
    for (size_t t = 0; status == DW_OK && t < r->n_tensors; t++)
        if (r->tensors[t].n_bytes > 0)
            memcpy(f.old.tensors[t].data, c->model.tensors[t].data,
                   (size_t)r->tensors[t].n_bytes);
    if (status == DW_OK)
        status = follow_to(c, due->to, &f.to, stop, err);
    if (status == DW_OK)
        status = open_ends(c, &f, err);
    if (status == DW_OK)
        status = upload_fold(c, &f, write_id, &objects, stop, err);
    if (status == DW_OK)
        status = create(c, &f.from, &f.to, &objects, made, err);
    dw_objects_release(&objects);
    close_ends(&f);
    return status;
}

/* Whether the scratch model is good after this error. If it is not, it is dropped, which
 * also makes room on the disk. */
static bool keeps_model(const dw_compactor *c, dw_status status)
{
    return (status == DW_OK || status == DW_CANCELLED || status == DW_UNAVAILABLE ||
            status == DW_DENIED) &&
           c->follower && dw_follower_version(c->follower) != DW_NO_VERSION;
}

/* Makes DUE. */
static dw_status make(dw_compactor *c, const dw_edge *due, dw_edge *made,
                      const dw_progress *stop, dw_error *err)
{
    const bool is_anchor = due->from == DW_NO_VERSION;
    bool unused;
    dw_status status = DW_OK;
    *made = *due;
    if (!find_made(c, made, NULL, &unused)) { /* else only the hint lacks it */
        status = is_anchor ? make_anchor(c, due->to, made, stop, err)
                           : make_fold(c, due, made, stop, err);
        if (!keeps_model(c, status))
            drop_model(c);
    }
    if (status != DW_OK)
        return status;
    c->made[is_anchor] = *made;
    status = look(c, err); /* it may have taken long */
    return status == DW_OK ? dw_hint_add(c->hint, c->stream, *made, err) : status;
}

/* ---- what is superseded ---- */

/* Keeps what went wrong: it harms no anchor, and the next one tries again. */
static void note(dw_compactor *c, dw_status status, const dw_error *error)
{
    if (status == DW_OK || status == DW_CANCELLED)
        return;
    c->removal_denied = c->removal_denied || status == DW_DENIED;
    c->fault = status;
    c->error = *error;
}

dw_status dw_compactor_make_floor(dw_compactor *c, uint64_t n_keep,
                                  const dw_progress *progress, dw_error *err)
{
    stopper state = {.outer = progress, .thread = pthread_self()};
    const dw_progress stop = {ask, &state};
    uint64_t floor = 0, wanted = 0;
    dw_edge made;
    dw_status status = dw_collect_floor(c->stream, n_keep, &floor, &wanted, err);
    if (status == DW_OK && wanted > floor && wanted - floor >= n_keep)
        status =
            make(c, &(dw_edge){.from = DW_NO_VERSION, .to = wanted}, &made, &stop, err);
    return status;
}

/* Removes what the newest N_ANCHORS supersede, and with the last one the versions that
 * are not to be kept. */
static void retain(dw_compactor *c, unsigned n_anchors, const dw_progress *stop)
{
    const uint64_t n_keep = n_anchors > 1 ? c->options.n_keep : 0;
    const dw_collect_options options = {
        .struct_bytes = sizeof options,
        .n_keep = n_keep > 0 ? n_keep : UINT64_MAX,
        .n_anchors = c->options.keep_shortcuts ? 0 : n_anchors,
        .shortcuts_only = n_keep == 0,
        .progress = *stop,
    };
    dw_error error = {0};
    dw_status status = DW_OK;
    if (c->removal_denied || (n_keep == 0 && options.n_anchors == 0))
        return;
    if (n_keep > 0)
        status = dw_compactor_make_floor(c, n_keep, stop, &error);
    if (status == DW_OK)
        status = dw_stream_collect(c->stream, &options, NULL, &error);
    note(c, status, &error);
}

/* Whether an anchor is known that was superseded long enough ago to make room for the one
 * that is due: after the newest was there, half as many versions came as it is old. A
 * follower that fetches the older one had that time. Else both stay for now. */
static bool may_make_room(dw_compactor *c, uint64_t due)
{
    uint64_t head;
    const uint64_t newest = dw_hint_newest(c->hint, &head);
    if (newest == DW_NO_VERSION || newest > due)
        return false;
    if (c->newest != newest) {
        c->newest = newest;
        c->seen = head;
    }
    return head - c->seen > (due - newest) / 2;
}

/* Makes an anchor or a fold that is due. */
static dw_status make_due(dw_compactor *c, const dw_edge *due, dw_edge *made,
                          const dw_progress *stop, dw_error *err)
{
    const bool is_anchor = due->from == DW_NO_VERSION;
    if (is_anchor && may_make_room(c, due->to))
        retain(c, 1, stop);
    dw_status status = make(c, due, made, stop, err);
    if (status != DW_OK || !is_anchor)
        return status;
    (void)may_make_room(c, due->to); /* takes a note of the newest */
    retain(c, 2, stop);
    return DW_OK;
}

dw_status dw_compactor_take_fault(dw_compactor *c, dw_error *err)
{
    const dw_status status = c->fault;
    c->fault = DW_OK;
    if (status == DW_DENIED)
        return dw_fail(err, DW_DENIED, c->error.where,
                       "anchors that newer ones supersede, and old versions, stay and "
                       "are paid for: this process may not remove them. Allow it "
                       "(docs/STORES.md, section 4), or run `deltawire gc` elsewhere");
    if (status != DW_OK && err)
        *err = c->error;
    return status;
}

/* Whether a collection has passed what is due: another writer took over and went on. */
static bool is_collected(dw_compactor *c, const dw_edge *due)
{
    uint64_t floor;
    return dw_stream_floor(c->stream, &floor, NULL) == DW_OK && due->to < floor;
}

dw_status dw_compactor_step(dw_compactor *c, const dw_progress *progress, dw_edge *out,
                            dw_error *err)
{
    stopper state = {.outer = progress, .thread = pthread_self()};
    const dw_progress stop = {ask, &state};
    dw_edge due, made = {.to = DW_NO_VERSION};
    dw_status status = look(c, err);
    bool is_due = status == DW_OK && dw_hint_due(c->hint, &c->rule, &due);
    for (unsigned tries = 0; is_due && tries < MAX_TRIES; tries++) {
        const dw_edge before = due;
        status = make_due(c, &due, &made, &stop, err);
        /* another compactor may have made a later anchor, and a collection may have taken
         * what is below it: then something else is due */
        is_due = dw_stream_passes_over(status) && look(c, NULL) == DW_OK &&
                 dw_hint_due(c->hint, &c->rule, &due) &&
                 (due.from != before.from || due.to != before.to);
        if (dw_stream_passes_over(status) && !is_due && is_collected(c, &before))
            status = DW_OK;
    }
    if (out)
        *out = status == DW_OK ? made : (dw_edge){.to = DW_NO_VERSION};
    return status;
}

/* ---- opening ---- */

static dw_status take_options(dw_compactor *c, const dw_compact_options *given,
                              dw_error *err)
{
    dw_compact_options taken, *o = &c->options;
    dw_status status = DW_OPTIONS_TAKE(dw_compact_options, &taken, given, err);
    if (status != DW_OK)
        return status;
    *o = taken;
    o->work_dir = o->work_dir ? dw_copy_string(o->work_dir) : NULL;
    o->base = o->base ? dw_copy_string(o->base) : NULL;
    if ((taken.work_dir && !o->work_dir) || (taken.base && !o->base))
        return dw_fail_memory(err, NULL);
    if (o->fold_every == 1)
        return dw_fail(err, DW_INVALID, NULL, "a fold must span 2 versions or more");
    if (o->max_object_bytes == 0)
        o->max_object_bytes = DW_OBJECT_BYTES;
    return DW_OK;
}

static dw_status open_pieces(dw_compactor *c, dw_error *err)
{
    const dw_stream_record *r = &c->stream->record;
    dw_slices all = {0};
    dw_status status = dw_slices_of_covers(&all, NULL, 0, r->tensors, r->n_tensors, err);
    if (status == DW_OK)
        status = dw_pieces_open(&c->pieces, r->tensors, r->n_tensors, &all, NULL,
                                GROUP_BYTES, err);
    dw_slices_free(&all);
    c->rule = (dw_due_rule){c->options.fold_every, c->options.anchor_every,
                            c->options.anchor_factor, 0};
    for (size_t t = 0; t < r->n_tensors; t++)
        c->rule.model_bytes += r->tensors[t].n_bytes;
    return status;
}

dw_status dw_compactor_open_with(dw_compactor **out, dw_store *store,
                                 const dw_compact_options *options, dw_hint *hint,
                                 dw_store *fork_store, dw_error *err)
{
    *out = NULL;
    dw_compactor *c = dw_alloc_zeroed(1, sizeof *c);
    if (!c)
        return dw_fail_memory(err, NULL);
    dw_hint_init(&c->own_hint);
    c->hint = hint ? hint : &c->own_hint;
    c->made[0].to = c->made[1].to = c->newest = DW_NO_VERSION;
    c->fork_store = fork_store;
    dw_status status = take_options(c, options, err);
    if (status == DW_OK)
        status = dw_stream_open(&c->stream, store, &c->options.trust, err);
    if (status == DW_OK)
        status = open_pieces(c, err);
    if (status == DW_OK)
        *out = c;
    else
        dw_compactor_close(c);
    return status;
}

dw_status dw_compactor_open(dw_compactor **out, dw_store *store,
                            const dw_compact_options *options, dw_error *err)
{
    return dw_compactor_open_with(out, store, options, NULL, NULL, err);
}

void dw_compactor_close(dw_compactor *c)
{
    if (!c)
        return;
    drop_model(c);
    dw_pieces_release(&c->pieces);
    dw_stream_close(c->stream);
    dw_hint_release(&c->own_hint);
    dw_free((char *)c->options.work_dir);
    dw_free((char *)c->options.base);
    dw_free(c);
}
