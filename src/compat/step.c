#include "compat/step.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/progress.h"
#include "deltawire/delta.h"
#include "store/store.h"
#include "tensor/tensor_list.h"

#define HEAP_BYTES (256u << 20) /* the most bytes of a step in memory */

void dw_peer_stream_id(char out[DW_ID_TEXT], dw_peer_format format)
{
    /* not random, because such a bucket has no id of its own
     */
    snprintf(out, DW_ID_TEXT, "7065657200000000%016x", (unsigned)format);
}

/* ---- files ---- */

void dw_peer_blob_release(dw_peer_blob *b)
{
    dw_safetensors_release(&b->file);
    dw_blob_release(&b->blob);
}

dw_status dw_peer_room(dw_blob *out, uint64_t n_bytes, const char *spool_dir,
                       uint64_t *n_heap, dw_error *err)
{
    if (n_bytes > 0 && (n_bytes > HEAP_BYTES || *n_heap > HEAP_BYTES - n_bytes))
        return dw_blob_map(out, n_bytes, spool_dir, err);
    dw_status status = dw_blob_make(out, n_bytes, spool_dir, err);
    if (status == DW_OK && !out->mapped)
        *n_heap += n_bytes;
    return status;
}

dw_status dw_peer_fetch(dw_peer_blob *out, const dw_peer *p, const dw_peer_file *file,
                        const char *spool_dir, uint64_t *n_heap,
                        const dw_progress *progress, dw_error *err)
{
    char where[DW_STORE_WHERE];
    dw_store_where(p->store, file->key, where, sizeof where);
    *out = (dw_peer_blob){0};
    if (file->n_bytes == UINT64_MAX)
        return dw_fail(err, DW_NOT_FOUND, where,
                       "the version names this file, but it is not there: it is still "
                       "being written, or lost");
    size_t n_read = 0;
    dw_status status = dw_peer_room(&out->blob, file->n_bytes, spool_dir, n_heap, err);
    if (status == DW_OK)
        status = dw_store_get(p->store, file->key, 0, out->blob.bytes, out->blob.n_bytes,
                              &n_read, progress, err);
    if (status == DW_OK && n_read != out->blob.n_bytes)
        status = dw_fail(err, DW_CORRUPT, where,
                         "it ends after %zu bytes of the %zu that are listed", n_read,
                         out->blob.n_bytes);
    if (status == DW_OK)
        status = dw_safetensors_parse(&out->file, out->blob.bytes, out->blob.n_bytes,
                                      where, err);
    if (status != DW_OK)
        dw_peer_blob_release(out);
    return status;
}

/* ---- payloads ---- */

static dw_status find_checksum(dw_payload *out, const dw_peer_entry *e,
                               const dw_safetensors *file, dw_error *err)
{
    if (out->checksum == DW_CHECKSUM_NONE)
        return DW_OK;
    out->checksum_text = dw_safetensors_metadata(file, e->name);
    return out->checksum_text
               ? DW_OK
               : dw_fail_tensor(err, DW_CORRUPT, out->where, e->name,
                                "the file's metadata has no checksum of it");
}

dw_status dw_peer_payload(dw_payload *out, const dw_peer_record *r,
                          const dw_peer_entry *e, const dw_safetensors *file,
                          const dw_tensor *there, const char *where, dw_error *err)
{
    if (!there)
        return dw_fail_tensor(err, DW_CORRUPT, where, e->name,
                              "the version names it, but the file does not hold it");
    if (there->dtype != DW_U8 || there->n_dims != 1)
        return dw_fail_tensor(err, DW_CORRUPT, where, e->name,
                              "it is %s with %u dimensions, not packed bytes",
                              dw_dtype_name(there->dtype), there->n_dims);
    *out = (dw_payload){.packed = there->data,
                        .n_packed = (size_t)there->n_bytes,
                        .packing = r->packing,
                        .checksum = r->checksum,
                        .where = where};
    return find_checksum(out, e, file, err);
}

/* ---- TRL's deltas ---- */

/* Computes the new digests and the state that the delta leads to. */
static dw_status find_state(dw_peer_step *s, const dw_peer_settings *settings,
                            const dw_delta *delta, const dw_peer_start *now,
                            dw_error *err)
{
    dw_digest *digests = dw_alloc_array(now->n_tensors, sizeof *digests);
    if (!digests)
        return dw_fail_memory(err, NULL);
    dw_apply_options options;
    dw_apply_options_init(&options);
    options.n_threads = settings->n_threads;
    options.base_digests = now->digests;
    options.new_digests = digests;
    dw_status status =
        dw_delta_verify(delta, now->tensors, now->n_tensors, &options, err);
    if (status == DW_OK)
        s->position.state = dw_digest_state(now->tensors, digests, now->n_tensors);
    dw_free(digests);
    return status;
}

static dw_status step_trl(dw_peer_step *s, const dw_peer_settings *settings,
                          const dw_peer_record *r, const dw_peer_start *now,
                          dw_error *err)
{
    char where[DW_STORE_WHERE];
    dw_store_where(settings->peer->store, r->files[0].key, where, sizeof where);
    dw_peer_blob file;
    dw_status status =
        dw_peer_fetch(&file, settings->peer, &r->files[0], settings->spool_dir,
                      &s->n_heap, settings->progress, err);
    if (status != DW_OK)
        return status;
    dw_safetensors_release(&file.file);
    s->objects.items = dw_alloc_zeroed(1, sizeof *s->objects.items);
    s->deltas = dw_alloc_zeroed(1, sizeof *s->deltas);
    if (!s->objects.items || !s->deltas) {
        dw_blob_release(&file.blob);
        return dw_fail_memory(err, where);
    }
    s->objects.n = 1;
    s->deltas[0] = file.blob;
    memcpy(s->objects.items[0].key, r->files[0].key, sizeof s->objects.items[0].key);
    dw_delta *delta;
    status = dw_delta_open_bytes(&delta, file.blob.bytes, file.blob.n_bytes, where, err);
    if (status != DW_OK)
        return status;
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    s->n_changed = info.n_changed;
    s->n_tensors = info.n_tensors;
    if (info.has_digests)
        s->n_checked = info.n_tensors;
    status = find_state(s, settings, delta, now, err);
    dw_delta_close(delta);
    return status;
}

/* ---- all of them ---- */

static dw_status check_readable(const dw_peer_settings *settings, const dw_peer_record *r,
                                dw_error *err)
{
    char where[DW_STORE_WHERE];
    if (!r->refusal[0])
        return DW_OK;
    dw_store_where(settings->peer->store, r->listed.key, where, sizeof where);
    return dw_fail(err, DW_UNSUPPORTED, where, "%s", r->refusal);
}

dw_status dw_peer_step_make(dw_peer_step *out, const dw_peer_settings *settings,
                            const dw_peer_record *r, const dw_peer_start *now,
                            dw_error *err)
{
    *out = (dw_peer_step){.position.version = r->version};
    dw_peer_stream_id(out->position.stream, settings->peer->format);
    memcpy(out->position.commit_sha256, r->sha256, sizeof r->sha256);
    dw_status status = check_readable(settings, r, err);
    if (status != DW_OK)
        return status;
    if (r->is_whole)
        return dw_peer_step_whole(out, settings, r, now, err);
    return settings->peer->format == DW_PEER_TRL
               ? step_trl(out, settings, r, now, err)
               : dw_peer_step_packed(out, settings, r, now, err);
}

void dw_peer_step_release(dw_peer_step *s)
{
    for (size_t i = 0; i < s->objects.n; i++)
        dw_blob_release(&s->deltas[i]);
    dw_objects_release(&s->objects);
    dw_free(s->deltas);
    for (size_t i = 0; i < s->n_files; i++)
        dw_peer_blob_release(&s->files[i]);
    dw_free(s->files);
    dw_free(s->tensors);
    *s = (dw_peer_step){0};
}
