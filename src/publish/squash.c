/* Adds a shortcut to a version of a stream, without a publisher: a fold or an anchor. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "codec/digest.h"
#include "store/store.h"
#include "publish/publisher.h"

#define GROUP_BYTES (32u << 20) /* of weights, diffed at a time */

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
    if (pthread_equal(s->thread, pthread_self()) && s->outer->report &&
        s->outer->report(s->outer->context, n_done, n_total) != 0)
        atomic_store(&s->stop, 1);
    return atomic_load(&s->stop);
}

/* ---- the versions ---- */

static dw_status check_versions(dw_stream *s, const dw_squash_options *o, uint64_t *to,
                                dw_error *err)
{
    const char *url = dw_store_url(s->store);
    const bool anchor = o->from == DW_NO_VERSION;
    uint64_t head;
    dw_status status = dw_stream_find_head(s, s->head, &head, err);
    if (status != DW_OK)
        return status;
    *to = o->to == DW_NEWEST ? head : o->to;
    if (*to > head)
        return dw_fail(err, DW_NOT_FOUND, url,
                       "there is no version %" PRIu64 ": the newest is %" PRIu64, *to,
                       head);
    if (anchor && *to == 0)
        return dw_fail(err, DW_INVALID, url,
                       "version 0 cannot get an anchor: its commit names its weights. "
                       "Choose a later version");
    if (!anchor && o->from >= *to)
        return dw_fail(
            err, DW_INVALID, url,
            "a fold leads to a later version: there is none from version %" PRIu64
            " to %" PRIu64,
            o->from, *to);
    if (!anchor && o->from + 1 == *to)
        return dw_fail(err, DW_INVALID, url,
                       "from version %" PRIu64 " to %" PRIu64
                       " the commit itself leads. A fold spans two versions or more",
                       o->from, *to);
    char key[DW_KEY_TEXT];
    dw_key_shortcut(key, *to, o->from);
    status = dw_store_stat(s->store, key, NULL, NULL, err);
    if (status == DW_OK)
        return dw_fail(err, DW_CONFLICT, url, "%s already exists", key);
    return status == DW_NOT_FOUND ? DW_OK : status;
}

static dw_status read_position(dw_stream *s, uint64_t version, dw_position *out,
                               dw_error *err)
{
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(s, version, &c, err);
    if (status != DW_OK)
        return status;
    *out = dw_position_of(&c);
    dw_commit_record_release(&c);
    return DW_OK;
}

/* ---- the work ---- */

typedef struct squash {
    dw_stream *stream;
    const dw_squash_options *options;
    dw_position from; /* version DW_NO_VERSION: an anchor */
    dw_position to;
    dw_scratch_model old; /* the model at FROM; unused for an anchor */
    dw_scratch_model new; /* at TO */
    void **old_data;      /* [n_tensors] */
    void **new_data;
    char write_id[DW_ID_TEXT];
    stopper stopper;
    dw_progress stop;
} squash;

static dw_status make_room(squash *q, dw_error *err)
{
    const dw_stream_record *r = &q->stream->record;
    const char *dir = q->options->work_dir;
    q->old_data = dw_alloc_zeroed(r->n_tensors, sizeof *q->old_data);
    q->new_data = dw_alloc_zeroed(r->n_tensors, sizeof *q->new_data);
    if (!q->old_data || !q->new_data)
        return dw_fail_memory(err, NULL);
    dw_status status = dw_scratch_model_make(&q->new, r->tensors, r->n_tensors, dir, err);
    if (status == DW_OK && q->from.version != DW_NO_VERSION)
        status = dw_scratch_model_make(&q->old, r->tensors, r->n_tensors, dir, err);
    for (size_t t = 0; status == DW_OK && t < r->n_tensors; t++) {
        q->new_data[t] = q->new.tensors[t].data;
        q->old_data[t] = q->old.tensors ? q->old.tensors[t].data : NULL;
    }
    return status;
}

/* Fills the scratch models by following the stream. */
static dw_status fetch_models(squash *q, dw_error *err)
{
    const dw_squash_options *o = q->options;
    const dw_stream_record *r = &q->stream->record;
    dw_follow_options follow;
    dw_follow_options_init(&follow);
    follow.tensors = q->new.tensors;
    follow.n_tensors = r->n_tensors;
    follow.tensors_empty = true;
    follow.base = o->base;
    follow.spool_dir = o->work_dir;
    follow.n_threads = o->n_threads;
    follow.trust = (dw_trust){(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])q->stream->trust,
                              q->stream->n_trust, NULL};
    dw_follower *f;
    dw_status status = dw_follower_open(&f, q->stream->store, &follow, err);
    if (status != DW_OK)
        return status;
    if (q->from.version != DW_NO_VERSION) {
        status = dw_follower_sync(f, q->from.version, &q->stop, NULL, err);
        for (size_t t = 0; status == DW_OK && t < r->n_tensors; t++)
            if (r->tensors[t].n_bytes > 0)
                memcpy(q->old_data[t], q->new_data[t], (size_t)r->tensors[t].n_bytes);
    }
    if (status == DW_OK)
        status = dw_follower_sync(f, q->to.version, &q->stop, NULL, err);
    dw_follower_close(f);
    return status;
}

/* Diffs the models and uploads the deltas. */
static dw_status upload_fold(squash *q, const dw_pieces *pieces, dw_objects *out,
                             dw_error *err)
{
    dw_tensor *base = dw_alloc_array(pieces->cut.n, sizeof *base);
    dw_tensor *next = dw_alloc_array(pieces->cut.n, sizeof *next);
    dw_digest *digests = dw_alloc_array(pieces->cut.n, sizeof *digests); /* of BASE */
    dw_status status = base && next && digests ? DW_OK : dw_fail_memory(err, NULL);
    dw_uploaded uploaded = {0};
    if (status == DW_OK) {
        dw_pieces_view(pieces, base, q->old_data);
        dw_pieces_view(pieces, next, q->new_data);
        status = dw_digest_tensors(digests, NULL, base, pieces->cut.n,
                                   q->options->n_threads, NULL, err);
    }
    if (status == DW_OK && dw_pieces_state(pieces, digests) != q->from.state)
        status = dw_fail(err, DW_CORRUPT, q->options->work_dir,
                         "the weights of version %" PRIu64
                         " changed before they were diffed. Run it again",
                         q->from.version);
    if (status == DW_OK) {
        uint64_t max_bytes = q->options->max_object_bytes;
        const dw_delta_spec version = {
            .pieces = pieces,
            .base = base,
            .next = next,
            .base_digests = digests,
            .from = q->from.version,
            .to = q->to.version,
            .store = q->stream->store,
            .purpose = "fold",
            .write_id = q->write_id,
            .max_object_bytes = max_bytes > 0 ? max_bytes : DW_OBJECT_BYTES,
            .spool_dir = q->options->work_dir,
            .n_threads = q->options->n_threads,
            .stop = &q->stop,
        };
        status = dw_delta_upload(&uploaded, &version, err);
    }
    /* the fold must lead to the state that the commit names */
    if (status == DW_OK && dw_pieces_state(pieces, uploaded.digests) != q->to.state)
        status = dw_fail(err, DW_CORRUPT, q->options->work_dir,
                         "the weights of version %" PRIu64
                         " changed while they were diffed. Run it again",
                         q->to.version);
    if (status == DW_OK) {
        for (size_t i = 0; i < uploaded.objects.n; i++)
            dw_delta_close(uploaded.deltas[i]);
        *out = uploaded.objects;
        uploaded.objects = (dw_objects){0};
    }
    dw_uploaded_release(&uploaded);
    dw_free(digests);
    dw_free(base);
    dw_free(next);
    return status;
}

static dw_status upload(squash *q, dw_objects *out, dw_error *err)
{
    const dw_stream_record *r = &q->stream->record;
    dw_slices all = {0};
    dw_pieces pieces = {0};
    dw_status status = dw_random_id(q->write_id, err);
    if (status == DW_OK)
        status = dw_slices_of_covers(&all, NULL, 0, r->tensors, r->n_tensors, err);
    const dw_anchor_spec anchor = {
        .store = q->stream->store,
        .table = r->tensors,
        .n_table = r->n_tensors,
        .slices = &all,
        .data = q->new_data,
        .share = dw_whole_share(r->tensors, r->n_tensors, q->to.state),
        .version = q->to.version,
        .is_shortcut = true,
        .write_id = q->write_id,
        .max_object_bytes = q->options->max_object_bytes,
        .progress = &q->stop,
    };
    if (status == DW_OK && q->from.version == DW_NO_VERSION) {
        status = dw_anchor_upload(out, &anchor, err);
    } else if (status == DW_OK) {
        status = dw_pieces_open(&pieces, r->tensors, r->n_tensors, &all, NULL,
                                GROUP_BYTES, err);
        if (status == DW_OK)
            status = upload_fold(q, &pieces, out, err);
        dw_pieces_release(&pieces);
    }
    dw_slices_free(&all);
    return status;
}

static bool same_objects(const dw_objects *a, const dw_objects *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++)
        same = strcmp(a->items[i].key, b->items[i].key) == 0;
    return same;
}

/* Creates the record. If the reply is lost, reads it. If another process made the
 * shortcut first, removes the objects. */
static dw_status create(squash *q, const dw_objects *objects, dw_error *err)
{
    const bool anchor = q->from.version == DW_NO_VERSION;
    dw_status status = dw_shortcut_create(q->stream, anchor ? NULL : &q->from, &q->to,
                                          objects, q->options->sign_key, err);
    if (status != DW_CONFLICT && status != DW_UNAVAILABLE)
        return status;
    dw_shortcut_record found;
    if (dw_stream_read_shortcut(q->stream, q->to.version, q->from.version, &found,
                                NULL) != DW_OK)
        return status;
    /* a shortcut without objects is the same, whoever made it */
    bool ours = same_objects(&found.objects, objects);
    dw_shortcut_record_release(&found);
    for (size_t i = 0; !ours && i < objects->n; i++)
        dw_store_remove(q->stream->store, objects->items[i].key, NULL);
    return ours ? DW_OK
                : dw_fail(err, DW_CONFLICT, dw_store_url(q->stream->store),
                          "another process made this shortcut to version %" PRIu64
                          " first",
                          q->to.version);
}

/* Adds the shortcut to the hint, if the hint still names the head. A hint without it only
 * costs followers a longer route. */
static void refresh_latest(dw_stream *s, dw_edge made)
{
    dw_latest_record latest;
    if (dw_stream_read_latest(s, &latest, NULL) != DW_OK)
        return;
    uint64_t head;
    dw_graph graph = {latest.edges, latest.n_edges, latest.n_edges};
    dw_writer bytes = {0};
    if (latest.version != DW_NO_VERSION && made.to <= latest.version &&
        graph.n < DW_MAX_EDGES && !dw_graph_has(&graph, made.from, made.to) &&
        dw_graph_add(&graph, made, NULL) == DW_OK) {
        latest.edges = graph.edges;
        latest.n_edges = graph.n;
        if (dw_latest_record_write(&bytes, &latest, NULL) == DW_OK &&
            dw_stream_find_head(s, latest.version, &head, NULL) == DW_OK &&
            head == latest.version)
            dw_store_put_bytes(s->store, DW_KEY_LATEST, bytes.bytes, bytes.n_bytes,
                               DW_PUT_REPLACE, NULL);
    }
    dw_writer_release(&bytes);
    dw_latest_record_release(&latest);
}

dw_status dw_stream_squash(dw_stream *stream, const dw_squash_options *given,
                           dw_edge *out, dw_error *err)
{
    dw_squash_options options;
    squash q = {.stream = stream,
                .options = &options,
                .from = {.version = DW_NO_VERSION},
                .stopper = {.outer = &options.progress, .thread = pthread_self()}};
    q.stop = (dw_progress){ask, &q.stopper};
    dw_objects objects = {0};
    uint64_t to = 0;
    dw_status status = DW_OPTIONS_TAKE(dw_squash_options, &options, given, err);
    if (status == DW_OK)
        status = check_versions(stream, &options, &to, err);
    if (status == DW_OK)
        status = read_position(stream, to, &q.to, err);
    if (status == DW_OK && options.from != DW_NO_VERSION)
        status = read_position(stream, options.from, &q.from, err);
    if (status == DW_OK)
        status = make_room(&q, err);
    if (status == DW_OK)
        status = fetch_models(&q, err);
    if (status == DW_OK)
        status = upload(&q, &objects, err);
    if (status == DW_OK)
        status = create(&q, &objects, err);
    if (status == DW_OK) {
        const dw_edge made = {.from = options.from,
                              .to = to,
                              .n_bytes = dw_objects_bytes(&objects),
                              .n_objects = objects.n};
        refresh_latest(stream, made);
        if (out)
            *out = made;
    }
    dw_objects_release(&objects);
    dw_scratch_model_release(&q.old);
    dw_scratch_model_release(&q.new);
    dw_free(q.old_data);
    dw_free(q.new_data);
    return status;
}
