#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "compat/peer_publish_int.h"
#include "stream/anchor.h"
#include "tensor/shard_index.h"

#define COMPARE_BYTES (1u << 20)

/* Whether the object under KEY has the bytes of SOURCE. */
static dw_status is_same(bool *same, dw_store *store, const char *key,
                         const dw_source *source, dw_error *err)
{
    uint64_t n_bytes;
    *same = false;
    dw_status status = dw_store_stat(store, key, &n_bytes, NULL, err);
    if (status != DW_OK || n_bytes != source->n_bytes)
        return status;
    uint8_t *theirs = dw_alloc(2 * COMPARE_BYTES), *ours = theirs + COMPARE_BYTES;
    if (!theirs)
        return dw_fail_memory(err, key);
    *same = true;
    for (uint64_t at = 0; status == DW_OK && *same && at < n_bytes;) {
        size_t n = n_bytes - at < COMPARE_BYTES ? (size_t)(n_bytes - at) : COMPARE_BYTES;
        size_t n_read = 0;
        status = dw_store_get(store, key, at, theirs, n, &n_read, NULL, err);
        if (status == DW_OK)
            status = dw_source_read(source, at, ours, n, err);
        *same = status == DW_OK && n_read == n && memcmp(theirs, ours, n) == 0;
        at += n;
    }
    dw_free(theirs);
    return status;
}

dw_status dw_peer_put(dw_peer_publisher *p, const char *key, const dw_source *source,
                      dw_peer_publish_report *report, dw_error *err)
{
    const dw_progress *progress =
        p->options.progress.report ? &p->options.progress : NULL;
    dw_status status = dw_store_put(p->store, key, source, DW_PUT_CREATE, progress, err);
    if (status == DW_CONFLICT) {
        bool same;
        status = is_same(&same, p->store, key, source, err);
        if (status == DW_OK && !same) {
            char where[DW_STORE_WHERE];
            status = dw_fail(err, DW_CONFLICT,
                             dw_store_where(p->store, key, where, sizeof where),
                             "somebody else wrote this object meanwhile: one process "
                             "writes at a time; stop one of the two");
        }
    }
    if (status == DW_OK) {
        report->n_objects++;
        report->n_bytes += source->n_bytes;
    }
    return status;
}

dw_status dw_peer_put_text(dw_peer_publisher *p, const char *key, const dw_writer *text,
                           dw_peer_publish_report *report, dw_error *err)
{
    if (text->failed)
        return dw_fail_memory(err, key);
    const dw_source source = {.n_bytes = text->n_bytes, .bytes = text->bytes};
    return dw_peer_put(p, key, &source, report, err);
}

dw_status dw_peer_put_file(dw_peer_publisher *p, const char *key,
                           const dw_tensor *tensors, size_t n_tensors,
                           const dw_pair *metadata, size_t n_metadata,
                           dw_peer_publish_report *report, dw_error *err)
{
    dw_anchor file;
    dw_status status =
        dw_anchor_open_file(&file, tensors, n_tensors, metadata, n_metadata, key, err);
    if (status != DW_OK)
        return status;
    const dw_source source = dw_anchor_source(&file);
    status = dw_peer_put(p, key, &source, report, err);
    dw_anchor_release(&file);
    return status;
}

static dw_status remove_one(void *context, const dw_store_entry *entry, dw_error *err)
{
    return dw_store_remove(context, entry->key, err);
}

dw_status dw_peer_clear(dw_peer_publisher *p, const char *prefix, const char *record,
                        dw_error *err)
{
    char where[DW_STORE_WHERE];
    dw_status status = dw_store_stat(p->store, record, NULL, NULL, err);
    if (status == DW_OK)
        return dw_fail(err, DW_UNAVAILABLE,
                       dw_store_where(p->store, record, where, sizeof where),
                       "it is there, and was not listed: try again");
    return status == DW_NOT_FOUND
               ? dw_store_list(p->store, prefix, NULL, remove_one, p->store, err)
               : status;
}

size_t dw_peer_record_keys(char keys[DW_PEER_RECORDS][DW_PEER_KEY], dw_peer_format format,
                           uint64_t version)
{
    if (format == DW_PEER_TRL) {
        snprintf(keys[0], DW_PEER_KEY, "deltas/step_%06" PRIu64 ".safetensors", version);
        snprintf(keys[1], DW_PEER_KEY, "anchors/step_%06" PRIu64 ".safetensors", version);
        return 2;
    }
    snprintf(keys[0], DW_PEER_KEY, "weight_v%06" PRIu64 "/" DW_SHARD_INDEX_NAME, version);
    return 1;
}
