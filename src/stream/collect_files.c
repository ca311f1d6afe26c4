#include "stream/collect_files.h"

#include <string.h>

#include "base/error.h"
#include "store/store.h"

/* "files/", the version, '-' and the id of an attempt. */
#define ATTEMPT_BYTES (sizeof "files/" - 1 + 20 + 1 + DW_ID_TEXT - 1)

static bool is_named(const dw_commit_record *commit, const char *key)
{
    for (size_t i = 0; i < commit->files.n; i++)
        if (strcmp(commit->files.items[i].key, key) == 0)
            return true;
    return false;
}

/* Marks those of the items [BEGIN, END) that the commit of VERSION does not name. */
static dw_status mark_unnamed(dw_listing *files, size_t begin, size_t end,
                              dw_stream *stream, uint64_t version, dw_error *err)
{
    dw_commit_record commit;
    dw_status status = dw_stream_read_commit(stream, version, &commit, err);
    if (status == DW_NOT_FOUND)
        return dw_stream_fail_hole(stream, version, stream->head, err);
    if (status != DW_OK)
        return status;
    for (size_t i = begin; i < end; i++)
        files->items[i].mark = !is_named(&commit, files->items[i].key);
    dw_commit_record_release(&commit);
    return DW_OK;
}

dw_status dw_collect_mark_files(dw_listing *files, dw_stream *stream, uint64_t floor,
                                uint64_t head, dw_error *err)
{
    dw_status status = DW_OK;
    dw_listed *items = files->items;
    uint64_t version, other;
    size_t n_below = 0; /* those of versions up to the floor come first */
    for (size_t i = 0; i < files->n; i++) {
        items[i].mark = 0;
        if (floor > 0 && n_below == i && dw_key_is_file(items[i].key, &version) &&
            version <= floor)
            n_below++;
    }
    if (n_below > 0)
        status = mark_unnamed(files, 0, n_below, stream, floor, err);
    for (size_t i = n_below, end; status == DW_OK && i < files->n; i = end) {
        bool is_one = true;
        end = i + 1;
        if (!dw_key_is_file(items[i].key, &version) || version > head)
            continue;
        for (;
             end < files->n && dw_key_is_file(items[end].key, &other) && other == version;
             end++)
            is_one = is_one && strncmp(items[i].key, items[end].key, ATTEMPT_BYTES) == 0;
        if (!is_one)
            status = mark_unnamed(files, i, end, stream, version, err);
    }
    return status;
}
