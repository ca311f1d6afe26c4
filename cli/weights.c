#include "weights.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "error.h"
#include "progress.h"

dw_status cli_weights_load(cli_weights *out, const char *path, dw_error *err)
{
    *out = (cli_weights){0};
    dw_status status = dw_checkpoint_open(&out->ckpt, path, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    out->tensors = dw_checkpoint_tensors(out->ckpt, &out->n_tensors);
    for (size_t i = 0; i < out->n_tensors; i++)
        out->n_bytes += out->tensors[i].n_bytes;
    return DW_OK;
}

int cli_weights_open(cli_weights *out, const cli_session *s, const char *path)
{
    dw_error err;
    bool pending;
    *out = (cli_weights){0};
    if (dw_checkpoint_pending(path, &pending, &err) != DW_OK ||
        cli_weights_load(out, path, &err) != DW_OK)
        return cli_fail(s, &err, path, NULL);
    if (!pending)
        return 0;
    cli_weights_close(out);
    return cli_fail_as(s, "interrupted", path,
                       "an apply to this checkpoint was interrupted, or is under way: "
                       "it is a mix of two versions",
                       "deltawire recover %s", path);
}

void cli_weights_close(cli_weights *weights)
{
    dw_checkpoint_close(weights->ckpt);
    *weights = (cli_weights){0};
}

dw_status cli_weights_digest(dw_digest *out, dw_digest *state, const cli_weights *weights,
                             const cli_session *s, dw_error *err)
{
    cli_progress bar = cli_progress_start(s, "reading");
    dw_progress hook = cli_progress_hook(&bar);
    dw_status status = dw_digest_tensors(out, state, weights->tensors, weights->n_tensors,
                                         s->n_threads, &hook, err);
    cli_progress_end(&bar);
    return status;
}

dw_status cli_weights_state(dw_digest *state, const cli_weights *weights,
                            const cli_session *s, dw_error *err)
{
    dw_digest *digests = calloc(weights->n_tensors + 1, sizeof *digests);
    dw_status status = digests ? cli_weights_digest(digests, state, weights, s, err)
                               : cli_error_set(err, DW_NO_MEMORY, "", "out of memory");
    free(digests);
    return status;
}

static bool is_file(const struct stat *st, const char *path)
{
    struct stat other;
    return path && stat(path, &other) == 0 && st->st_dev == other.st_dev &&
           st->st_ino == other.st_ino;
}

bool cli_weights_own_file(const cli_weights *weights, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return false;
    bool own = is_file(&st, dw_checkpoint_index(weights->ckpt));
    for (size_t i = 0; !own && i < dw_checkpoint_file_count(weights->ckpt); i++)
        own = is_file(&st, dw_checkpoint_file(weights->ckpt, i));
    return own;
}
