/* The companion files of a derived version are those of its source. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "mirror.h"

/* The hash of names, sizes and hashes. */
static dw_status hash_list(uint8_t out[DW_SHA256_BYTES], const dw_file_info *files,
                           size_t n, dw_error *err)
{
    dw_writer list = {0};
    for (size_t i = 0; i < n; i++) {
        dw_write_format(&list, "%s/%" PRIu64 "/", files[i].name, files[i].n_bytes);
        for (size_t k = 0; k < sizeof files[i].sha256; k++)
            dw_write_format(&list, "%02x", files[i].sha256[k]);
    }
    dw_write_text(&list, ".");
    dw_status status = list.failed ? dw_fail_memory(err, NULL)
                                   : dw_sha256_of(out, list.bytes, list.n_bytes, err);
    dw_writer_release(&list);
    return status;
}

static dw_status fetch(const cli_source *s, cli_source_files *out, dw_error *err)
{
    dw_stream *stream = dw_follower_stream(s->follower);
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < out->n; i++) {
        dw_file *file = &out->items[i];
        const void *bytes;
        status = dw_stream_read_file(stream, cli_source_version(s), file->name, &bytes,
                                     &file->n_bytes, err);
        if (status != DW_OK)
            break;
        void *copy = dw_alloc((size_t)file->n_bytes);
        if (!copy)
            return dw_fail_memory(err, NULL);
        if (file->n_bytes > 0)
            memcpy(copy, bytes, (size_t)file->n_bytes);
        file->bytes = copy;
    }
    return status;
}

dw_status cli_source_files_read(const cli_source *s, const uint8_t *known,
                                cli_source_files *out, dw_error *err)
{
    *out = (cli_source_files){0};
    if (cli_source_is_foreign(s))
        return DW_OK;
    const dw_file_info *files;
    size_t n;
    dw_status status =
        dw_stream_files(dw_follower_stream(s->follower), cli_source_version(s), &files,
                        &n, &out->is_given, err);
    if (status == DW_OK && out->is_given)
        status = hash_list(out->sha256, files, n, err);
    if (status != DW_OK || !out->is_given)
        return status;
    out->is_known = known && memcmp(known, out->sha256, sizeof out->sha256) == 0;
    if (out->is_known)
        return DW_OK;
    out->items = calloc(n + 1, sizeof *out->items);
    if (!out->items)
        return dw_fail_memory(err, NULL);
    for (; status == DW_OK && out->n < n; out->n++) {
        out->items[out->n].name = dw_copy_string(files[out->n].name);
        if (!out->items[out->n].name)
            return dw_fail_memory(err, NULL);
    }
    return fetch(s, out, err);
}

void cli_source_files_release(cli_source_files *files)
{
    for (size_t i = 0; i < files->n; i++) {
        dw_free((void *)files->items[i].name);
        dw_free((void *)files->items[i].bytes);
    }
    free(files->items);
    *files = (cli_source_files){0};
}
