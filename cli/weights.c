#include "weights.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "error.h"
#include "progress.h"

#define BATCH_BYTES (256u << 20)

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

/* The library's sweep cannot be watched or stopped, so it is given batches: large
 * enough to keep all threads busy, small enough to stop between them. */
dw_status cli_weights_digest(dw_digest *out, dw_digest *state, const cli_weights *weights,
                             const cli_session *s, dw_error *err)
{
    cli_progress bar = cli_progress_start(s, "reading");
    dw_status status = DW_OK;
    uint64_t n_done = 0;
    for (size_t begin = 0, end; status == DW_OK && begin < weights->n_tensors;
         begin = end) {
        uint64_t n_batch = 0;
        for (end = begin; end < weights->n_tensors && n_batch < BATCH_BYTES; end++)
            n_batch += weights->tensors[end].n_bytes;
        status = dw_digest_tensors(out + begin, NULL, weights->tensors + begin,
                                   end - begin, s->n_threads, err);
        n_done += n_batch;
        if (status == DW_OK && cli_progress_report(&bar, n_done, weights->n_bytes) != 0)
            status = cli_check_signal(err);
    }
    cli_progress_end(&bar);
    if (status == DW_OK)
        *state = dw_digest_state(weights->tensors, out, weights->n_tensors);
    return status;
}

bool cli_weights_own_file(const cli_weights *weights, const char *path)
{
    struct stat a, b;
    if (stat(path, &a) != 0)
        return false;
    for (size_t i = 0; i < dw_checkpoint_file_count(weights->ckpt); i++)
        if (stat(dw_checkpoint_file(weights->ckpt, i), &b) == 0 && a.st_dev == b.st_dev &&
            a.st_ino == b.st_ino)
            return true;
    return false;
}
