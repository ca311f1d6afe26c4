/* The companion files of a version, fetched and shown to callers. */
#include "deltawire/stream.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"
#include "stream/record_files.h"
#include "stream/stream.h"
#include "stream/transfer.h"

dw_status dw_file_fetch(dw_blob *out, dw_store *store, const dw_file_entry *entry,
                        const char *spool_dir, const dw_progress *progress, dw_error *err)
{
    dw_object object = {.n_bytes = entry->n_bytes};
    memcpy(object.key, entry->key, sizeof object.key);
    memcpy(object.sha256, entry->sha256, sizeof object.sha256);
    dw_error fault = {0};
    dw_status status = dw_object_fetch(out, store, &object, spool_dir, progress, &fault);
    if (status == DW_CORRUPT || status == DW_NOT_FOUND)
        return dw_fail(err, status, fault.where, "companion file '%s': %.400s",
                       entry->name, fault.text);
    if (status != DW_OK && err)
        *err = fault;
    return status;
}

/* DW_NEWEST: the head. */
static dw_status show_commit(dw_stream *s, uint64_t version, dw_error *err)
{
    dw_commit_record commit;
    dw_status status = version == DW_NEWEST
                           ? dw_stream_read_head(s, s->head, &commit, err)
                           : dw_stream_read_commit(s, version, &commit, err);
    if (status == DW_NOT_FOUND && version != DW_NEWEST)
        return dw_stream_fail_absent(s, version, err);
    if (status != DW_OK)
        return status;
    dw_commit_record_release(&s->shown);
    s->shown = commit;
    return DW_OK;
}

dw_status dw_stream_files(dw_stream *s, uint64_t version, const dw_file_info **files,
                          size_t *n_files, bool *is_given, dw_error *err)
{
    *files = NULL;
    *n_files = 0;
    dw_status status = show_commit(s, version, err);
    if (status != DW_OK)
        return status;
    const dw_file_list *list = &s->shown.files;
    dw_file_info *items = dw_alloc_zeroed(list->n, sizeof *items);
    if (!items)
        return dw_fail_memory(err, dw_store_url(s->store));
    for (size_t i = 0; i < list->n; i++) {
        const dw_file_entry *entry = &list->items[i];
        items[i].name = entry->name;
        items[i].n_bytes = entry->n_bytes;
        memcpy(items[i].sha256, entry->sha256, sizeof items[i].sha256);
        dw_key_is_file(entry->key, &items[i].version);
    }
    dw_free(s->files);
    s->files = items;
    *files = items;
    *n_files = list->n;
    if (is_given)
        *is_given = list->is_given;
    return DW_OK;
}

dw_status dw_stream_read_file(dw_stream *s, uint64_t version, const char *name,
                              const void **bytes, uint64_t *n_bytes, dw_error *err)
{
    *bytes = NULL;
    *n_bytes = 0;
    dw_status status = show_commit(s, version, err);
    if (status != DW_OK)
        return status;
    const dw_file_entry *entry = dw_file_list_find(&s->shown.files, name);
    if (!entry)
        return dw_fail(err, DW_NOT_FOUND, dw_store_url(s->store),
                       "version %" PRIu64
                       " has no companion file '%.255s': `deltawire inspect` lists "
                       "them",
                       s->shown.version, name);
    dw_blob_release(&s->file);
    status = dw_file_fetch(&s->file, s->store, entry, NULL, NULL, err);
    if (status != DW_OK)
        return status;
    *bytes = s->file.bytes;
    *n_bytes = s->file.n_bytes;
    return DW_OK;
}
