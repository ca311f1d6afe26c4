#include "publish/shortcut.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/progress.h"
#include "codec/digest.h"
#include "store/store.h"
#include "tensor/tensor_list.h"

/* ---- anchors ---- */

/* Points the anchor's tensors, which are those of the group, at the data of VIEWS. SLICE
 * takes the number of the view of each. */
static dw_status connect(dw_anchor *anchor, size_t *slice, const dw_tensor *views,
                         size_t n_views, dw_error *err)
{
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, views, n_views, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; i < anchor->list.n; i++) {
        dw_tensor *t = &anchor->list.tensors[i];
        slice[i] = dw_name_index_find(&names, t->name);
        t->data = views[slice[i]].data;
        t->device = views[slice[i]].device;
    }
    dw_name_index_release(&names);
    return DW_OK;
}

/* Uploads one object. Adds to *SHARE what the uploaded bytes add to the state. */
static dw_status upload_group(dw_object *object, dw_digest *share, dw_store *store,
                              const dw_pieces *pieces, const dw_piece_group *group,
                              const dw_tensor *views, const dw_progress *progress,
                              dw_error *err)
{
    const dw_slices slices = {pieces->cut.items + group->first, group->n, group->n};
    dw_anchor anchor;
    dw_status status = dw_anchor_open(&anchor, pieces->table, pieces->n_table, &slices,
                                      object->key, err);
    if (status != DW_OK)
        return status;
    size_t *slice = dw_alloc_array(anchor.list.n, sizeof *slice);
    const dw_source source = dw_anchor_source(&anchor);
    dw_anchor_check check;
    status = dw_anchor_check_open(&check, &anchor, err);
    if (status == DW_OK && !slice)
        status = dw_fail_memory(err, object->key);
    if (status == DW_OK)
        status = connect(&anchor, slice, views + group->first, group->n, err);
    if (status == DW_OK)
        status = dw_object_put_watched(store, object, &source, dw_anchor_check_take,
                                       &check, progress, err);
    for (size_t i = 0; status == DW_OK && i < anchor.list.n; i++)
        *share =
            dw_digest_plus(*share, dw_slices_share(pieces->table, &slices.items[slice[i]],
                                                   &check.shares[i], 1));
    if (status == DW_OK)
        status = dw_covers_of_slices(&object->covers, &object->n_covers, &slices,
                                     pieces->table, pieces->n_table, err);
    dw_anchor_check_release(&check);
    dw_free(slice);
    dw_anchor_release(&anchor);
    return status;
}

/* No record names them yet. */
static void remove_objects(dw_store *store, const dw_objects *objects)
{
    for (size_t i = 0; i < objects->n; i++)
        (void)dw_store_remove(store, objects->items[i].key, NULL);
}

dw_digest dw_whole_share(const dw_tensor *table, size_t n_tensors, dw_digest state)
{
    const dw_digest floor = dw_state_floor(table, n_tensors);
    return dw_digest_plus(state, floor > 0 ? DW_DIGEST_PRIME - floor : 0);
}

static dw_status cut_pieces(dw_pieces *out, const dw_anchor_spec *spec, dw_error *err)
{
    const uint64_t max_bytes =
        spec->max_object_bytes > 0 ? spec->max_object_bytes : DW_ANCHOR_BYTES;
    dw_slices owned = {0};
    dw_status status = DW_OK;
    *out = (dw_pieces){0};
    for (size_t i = 0; status == DW_OK && i < spec->slices->n; i++)
        status = dw_slices_append(&owned, spec->slices->items[i], err);
    if (status == DW_OK)
        status =
            dw_pieces_open(out, spec->table, spec->n_table, &owned, NULL, max_bytes, err);
    dw_slices_free(&owned);
    return status;
}

dw_status dw_anchor_upload(dw_objects *out, const dw_anchor_spec *spec, dw_error *err)
{
    dw_digest found = 0;
    dw_pieces pieces;
    *out = (dw_objects){0};
    dw_status status = cut_pieces(&pieces, spec, err);
    if (status != DW_OK)
        return status;
    dw_tensor *views = dw_alloc_array(pieces.cut.n, sizeof *views);
    out->items = dw_alloc_zeroed(pieces.n_groups, sizeof *out->items);
    if (!views || !out->items)
        status = dw_fail_memory(err, NULL);
    dw_share bar = {.whole = spec->progress};
    for (size_t i = 0; status == DW_OK && i < spec->slices->n; i++)
        bar.total += dw_slice_bytes(spec->table, &spec->slices->items[i]);
    const dw_progress hook = dw_share_hook(&bar);
    if (status == DW_OK)
        dw_pieces_view(&pieces, views, spec->data);
    if (status == DW_OK && spec->devices)
        dw_pieces_place(&pieces, views, spec->devices);
    for (size_t g = 0; status == DW_OK && g < pieces.n_groups; g++) {
        dw_object *object = &out->items[out->n++];
        dw_key_object(object->key, spec->version, spec->write_id,
                      spec->is_shortcut ? "anchor" : NULL, (unsigned)g);
        status = upload_group(object, &found, spec->store, &pieces, &pieces.groups[g],
                              views, &hook, err);
        bar.before += object->n_bytes;
    }
    if (status == DW_OK && found != spec->share) {
        remove_objects(spec->store, out);
        status = dw_fail(err, DW_CORRUPT, dw_store_url(spec->store),
                         "no anchor was made of version %" PRIu64
                         ": the weights that were read are not that version. The memory "
                         "or the baseline is damaged",
                         spec->version);
    }
    dw_free(views);
    dw_pieces_release(&pieces);
    return status;
}

/* ---- records ---- */

dw_status dw_shortcut_create(dw_stream *stream, const dw_position *from,
                             const dw_position *to, const dw_objects *objects,
                             const dw_sign_key *key, dw_error *err)
{
    dw_shortcut_record record = {.version = to->version,
                                 .from = from ? from->version : DW_NO_VERSION,
                                 .state = to->state,
                                 .objects = *objects};
    memcpy(record.stream, stream->record.stream, sizeof record.stream);
    memcpy(record.commit_sha256, to->commit_sha256, sizeof record.commit_sha256);
    if (from)
        memcpy(record.from_sha256, from->commit_sha256, sizeof record.from_sha256);
    char name[DW_KEY_TEXT];
    dw_key_shortcut(name, record.version, record.from);
    dw_writer bytes = {0};
    dw_status status = dw_shortcut_record_write(&bytes, &record, key, err);
    if (status == DW_OK)
        status = dw_store_put_bytes(stream->store, name, bytes.bytes, bytes.n_bytes,
                                    DW_PUT_CREATE, err);
    dw_writer_release(&bytes);
    return status;
}
