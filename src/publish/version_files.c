#include "publish/version_files.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "publish/publisher.h"
#include "store/store.h"
#include "stream/record_files.h"
#include "stream/transfer.h"

/* ---- sets ---- */

void dw_file_set_release(dw_file_set *set)
{
    for (size_t i = 0; i < set->n; i++) {
        dw_free((void *)(uintptr_t)set->items[i].name);
        dw_free((void *)(uintptr_t)set->items[i].bytes);
    }
    dw_free(set->items);
    *set = (dw_file_set){0};
}

void dw_file_set_move(dw_file_set *to, dw_file_set *from)
{
    if (!from->is_given)
        return;
    dw_file_set_release(to);
    *to = *from;
    *from = (dw_file_set){0};
}

static dw_status open_set(dw_file_set *out, size_t n, dw_error *err)
{
    *out = (dw_file_set){.is_given = true};
    out->items = dw_alloc_zeroed(n, sizeof *out->items);
    return out->items ? DW_OK : dw_fail_memory(err, NULL);
}

static dw_status add_copy(dw_file_set *set, const char *name, const void *bytes,
                          uint64_t n_bytes, dw_error *err)
{
    dw_file *file = &set->items[set->n++];
    void *copy = dw_alloc((size_t)n_bytes);
    *file = (dw_file){dw_copy_string(name), copy, n_bytes};
    if (!file->name || !copy)
        return dw_fail_memory(err, NULL);
    if (n_bytes > 0)
        memcpy(copy, bytes, (size_t)n_bytes);
    return DW_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const dw_file *)a)->name, ((const dw_file *)b)->name);
}

dw_status dw_file_set_copy(dw_file_set *out, const dw_file *files, size_t n_files,
                           dw_error *err)
{
    *out = (dw_file_set){0};
    dw_status status = dw_files_check(files, n_files, err);
    if (status != DW_OK)
        return status;
    status = open_set(out, n_files, err);
    for (size_t i = 0; status == DW_OK && i < n_files; i++)
        status = add_copy(out, files[i].name, files[i].bytes, files[i].n_bytes, err);
    if (status == DW_OK)
        qsort(out->items, out->n, sizeof *out->items, compare_names);
    else
        dw_file_set_release(out);
    return status;
}

/* Replaces the bytes of FILE. */
static dw_status replace_bytes(dw_file *file, const dw_writer *text, dw_error *err)
{
    void *copy = dw_alloc(text->n_bytes);
    if (!copy)
        return dw_fail_memory(err, NULL);
    memcpy(copy, text->bytes, text->n_bytes);
    dw_free((void *)(uintptr_t)file->bytes);
    file->bytes = copy;
    file->n_bytes = text->n_bytes;
    return DW_OK;
}

dw_status dw_file_set_quantize(dw_file_set *set, const dw_quant_plan *plan, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; plan && status == DW_OK && i < set->n; i++) {
        dw_file *file = &set->items[i];
        if (strcmp(file->name, "config.json") != 0)
            continue;
        dw_writer text = {0};
        status = dw_quant_config(&text, file->bytes, (size_t)file->n_bytes, plan,
                                 file->name, err);
        if (status == DW_OK)
            status = replace_bytes(file, &text, err);
        if (status == DW_OK) /* it grew */
            status = dw_files_check(set->items, set->n, err);
        dw_writer_release(&text);
    }
    return status;
}

dw_status dw_file_set_fetch(dw_file_set *out, dw_stream *stream,
                            const dw_commit_record *commit, dw_error *err)
{
    const dw_file_list *list = &commit->files;
    *out = (dw_file_set){0};
    if (!list->is_given)
        return DW_OK;
    dw_status status = open_set(out, list->n, err);
    for (size_t i = 0; status == DW_OK && i < list->n; i++) {
        dw_blob blob;
        status = dw_file_fetch(&blob, stream->store, &list->items[i], NULL, NULL, err);
        if (status != DW_OK)
            break;
        status = add_copy(out, list->items[i].name, blob.bytes, blob.n_bytes, err);
        dw_blob_release(&blob);
    }
    if (status != DW_OK)
        dw_file_set_release(out);
    return status;
}

/* ---- the parent ---- */

void dw_version_files_close(dw_version_files *f)
{
    dw_file_set_release(&f->pending);
    dw_file_set_release(&f->wanted);
    dw_file_list_release(&f->head);
}

void dw_version_files_note(dw_version_files *f, dw_commit_record *commit)
{
    dw_file_list_release(&f->head);
    f->head = commit->files;
    commit->files = (dw_file_list){0};
    memcpy(f->head_sha256, commit->seal.sha256, sizeof f->head_sha256);
    f->knows_head = true;
}

/* The commit before COMMIT; the next one follows on it or is refused (check_ground). */
static dw_status find_parent(dw_publisher *p, const dw_commit_record *commit,
                             dw_error *err)
{
    dw_version_files *f = &p->files;
    dw_commit_record parent;
    if (commit->version == 0) {
        dw_file_list_release(&f->head);
        f->knows_head = false;
        return DW_OK;
    }
    if (f->knows_head &&
        memcmp(f->head_sha256, commit->parent_sha256, sizeof f->head_sha256) == 0)
        return DW_OK;
    dw_status status =
        dw_stream_read_commit(p->stream, commit->version - 1, &parent, err);
    if (status != DW_OK)
        return status;
    dw_version_files_note(f, &parent);
    dw_commit_record_release(&parent);
    return DW_OK;
}

/* ---- storing ---- */

/* Whether the object of ENTRY, which the parent names, can be named again. It may be
 * lost: publishing the same file then stores it again. */
static dw_status is_kept(bool *kept, const dw_publisher *p, const dw_file_entry *entry,
                         dw_error *err)
{
    uint64_t n_bytes = 0;
    *kept = true;
    if (p->files.is_sure)
        return DW_OK;
    dw_status status = dw_store_stat(p->store, entry->key, &n_bytes, NULL, err);
    *kept = status == DW_OK && n_bytes == entry->n_bytes;
    return status == DW_NOT_FOUND ? DW_OK : status;
}

/* Fills in ENTRY for FILE: the parent's entry, or a new object. */
static dw_status store(dw_publisher *p, const dw_commit_record *commit,
                       const dw_file *file, size_t index, dw_file_entry *entry,
                       dw_error *err)
{
    dw_version_files *f = &p->files;
    const dw_file_entry *parent = dw_file_list_find(&f->head, file->name);
    entry->name = dw_copy_string(file->name);
    entry->n_bytes = file->n_bytes;
    dw_status status =
        entry->name ? dw_sha256_of(entry->sha256, file->bytes, (size_t)file->n_bytes, err)
                    : dw_fail_memory(err, NULL);
    if (status != DW_OK)
        return status;
    bool kept = false;
    if (parent && !f->renew && dw_file_entry_same(parent, entry))
        status = is_kept(&kept, p, parent, err);
    if (status != DW_OK)
        return status;
    if (kept) {
        memcpy(entry->key, parent->key, sizeof entry->key);
        return DW_OK;
    }
    dw_key_file(entry->key, commit->version, commit->write_id, (unsigned)index);
    f->n_stored_bytes += file->n_bytes;
    status = dw_store_put_bytes(p->store, entry->key, file->bytes ? file->bytes : "",
                                (size_t)file->n_bytes, DW_PUT_CREATE, err);
    /* an object that is there is this one, after a lost reply: keys are never used twice
     */
    return status == DW_OK || status == DW_CONFLICT
               ? dw_store_confirm(p->store, entry->key, entry->n_bytes, err)
               : status;
}

/* A repair names nothing that is lost. */
static dw_status drop_missing(dw_publisher *p, dw_file_list *list, dw_error *err)
{
    size_t n = 0;
    dw_status status = DW_OK;
    for (size_t i = 0; i < list->n; i++) {
        dw_status found =
            status == DW_OK ? dw_store_stat(p->store, list->items[i].key, NULL, NULL, err)
                            : DW_OK;
        if (found == DW_NOT_FOUND) {
            dw_free(list->items[i].name);
            continue;
        }
        if (status == DW_OK)
            status = found;
        list->items[n++] = list->items[i];
    }
    list->n = n;
    return status;
}

dw_status dw_version_files_store(dw_publisher *p, dw_commit_record *commit, dw_error *err)
{
    dw_version_files *f = &p->files;
    const dw_file_set *set = &f->wanted;
    f->n_stored_bytes = 0;
    commit->files = (dw_file_list){0};
    dw_status status = find_parent(p, commit, err);
    if (status != DW_OK)
        return status;
    if (!set->is_given) {
        status = dw_file_list_copy(&commit->files, &f->head, err);
        if (status == DW_OK && f->renew)
            status = drop_missing(p, &commit->files, err);
        if (status != DW_OK)
            dw_file_list_release(&commit->files);
        return status;
    }
    commit->files.is_given = true;
    commit->files.items = dw_alloc_zeroed(set->n, sizeof *commit->files.items);
    if (!commit->files.items)
        return dw_fail_memory(err, NULL);
    commit->files.n = set->n;
    for (size_t i = 0; status == DW_OK && i < set->n; i++)
        status = store(p, commit, &set->items[i], i, &commit->files.items[i], err);
    if (status != DW_OK)
        dw_file_list_release(&commit->files);
    return status;
}

void dw_version_files_committed(dw_version_files *f, dw_commit_record *commit)
{
    f->is_sure = f->is_sure || f->wanted.is_given;
    dw_file_set_release(&f->wanted);
    f->renew = false;
    dw_version_files_note(f, commit);
}
