/* Finishing an interrupted update of a directory without its stream: the patch file holds
 * the stores, and the record names the version they lead to. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "deltawire/checkpoint.h"
#include "tensor/tensor_list.h"
#include "weights/replica.h"

/* If two copies are not the same version, the older one is written when they are opened.
 */
static bool copies_differ(const char *into)
{
    dw_position at[2], next;
    bool exists[2] = {false, false};
    dw_record_kind kind;
    for (int i = 0; i < 2; i++) {
        char *dir = dw_join_path(into, i == 0 ? DW_COPY_NAME "0" : DW_COPY_NAME "1");
        exists[i] = dir && dw_position_read(&at[i], &next, &kind, dir, NULL) == DW_OK &&
                    (kind == DW_RECORD_SEALED || kind == DW_RECORD_UNSEALED);
        dw_free(dir);
    }
    return exists[0] && exists[1] &&
           (at[0].version != at[1].version || strcmp(at[0].stream, at[1].stream) != 0);
}

dw_status dw_weights_interrupted(const char *into, bool *interrupted, dw_error *err)
{
    static const char *const names[] = {"", DW_COPY_NAME "0", DW_COPY_NAME "1"};
    *interrupted = false;
    for (size_t i = 0; !*interrupted && i < sizeof names / sizeof *names; i++) {
        char *dir = *names[i] ? dw_join_path(into, names[i]) : dw_copy_string(into);
        dw_error fault = {0};
        dw_status status = dir ? dw_checkpoint_pending(dir, interrupted, &fault)
                               : dw_fail_memory(&fault, into);
        dw_free(dir);
        if (status != DW_OK &&
            status != DW_NOT_FOUND) { /* no weights: nothing to write */
            if (err)
                *err = fault;
            return status;
        }
    }
    *interrupted = *interrupted || copies_differ(into);
    return DW_OK;
}

/* The checkpoint whose names and shapes are those of the stream: DIR itself, or a copy.
 */
static dw_status open_any(dw_checkpoint **out, const dw_follow_options *options,
                          dw_error *err)
{
    static const char *const names[] = {DW_COPY_NAME "0", DW_COPY_NAME "1"};
    if (options->n_copies != 2)
        return dw_checkpoint_open(out, options->into, DW_CHECKPOINT_READ, err);
    dw_status status = DW_NOT_FOUND;
    for (size_t i = 0; status != DW_OK && i < 2; i++) {
        char *dir = dw_join_path(options->into, names[i]);
        status = dir ? dw_checkpoint_open(out, dir, DW_CHECKPOINT_READ, err)
                     : dw_fail_memory(err, options->into);
        dw_free(dir);
    }
    return status;
}

static dw_status sort_table(dw_tensor **out, const dw_checkpoint *checkpoint, size_t *n,
                            dw_error *err)
{
    const dw_tensor *tensors = dw_checkpoint_tensors(checkpoint, n);
    *out = dw_alloc_array(*n, sizeof **out);
    if (!*out)
        return dw_fail_memory(err, NULL);
    if (*n > 0) {
        memcpy(*out, tensors, *n * sizeof **out);
        qsort(*out, *n, sizeof **out, dw_tensor_compare_names);
    }
    return DW_OK;
}

dw_status dw_weights_recover(const dw_follow_options *options, dw_error *err)
{
    dw_checkpoint *checkpoint = NULL;
    dw_tensor *table = NULL;
    dw_weights *weights = NULL;
    size_t n = 0;
    dw_status status = open_any(&checkpoint, options, err);
    if (status == DW_OK)
        status = sort_table(&table, checkpoint, &n, err);
    /* with no stream to prefer, the copy is read that the interrupted run was to reach */
    if (status == DW_OK)
        status = dw_weights_open_dir(&weights, table, n, "", options, false, err);
    if (status == DW_OK && weights->now->at.version == DW_NO_VERSION)
        status = dw_fail(err, DW_CORRUPT, options->into,
                         "the interrupted apply was finished, but no record says which "
                         "version the weights are: the stream is needed");
    if (status == DW_OK)
        status = dw_weights_accept(weights, err);
    if (status == DW_OK)
        status = dw_weights_align(weights, err);
    dw_weights_close(weights);
    dw_free(table);
    dw_checkpoint_close(checkpoint);
    return status;
}

dw_status dw_weights_recovered(dw_position *at, char **dir,
                               const dw_follow_options *options, dw_error *err)
{
    dw_position next;
    dw_record_kind kind;
    *dir = options->n_copies == 2 ? dw_join_path(options->into, DW_CURRENT_NAME)
                                  : dw_copy_string(options->into);
    if (!*dir)
        return dw_fail_memory(err, options->into);
    dw_status status = dw_position_read(at, &next, &kind, *dir, err);
    if (status == DW_OK &&
        (at->version == DW_NO_VERSION || next.version != DW_NO_VERSION))
        status = dw_fail(err, DW_NOT_FOUND, *dir, "no record says which version it is");
    if (status != DW_OK) {
        dw_free(*dir);
        *dir = NULL;
    }
    return status;
}
