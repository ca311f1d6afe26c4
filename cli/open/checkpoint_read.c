#include "checkpoint_read.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "base/error.h"
#include "fail.h"
#include "progress_bar.h"
#include "inner.h"

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

/* ---- files that somebody may be writing ---- */

/* Two writes within one tick of the file system's clock have the same time. */
#define T_TICK 0.02

static size_t count_files(const cli_weights *w)
{
    return dw_checkpoint_file_count(w->ckpt) + (dw_checkpoint_index(w->ckpt) != NULL);
}

static const char *path_of(const cli_weights *w, size_t i)
{
    return i < dw_checkpoint_file_count(w->ckpt) ? dw_checkpoint_file(w->ckpt, i)
                                                 : dw_checkpoint_index(w->ckpt);
}

static dw_status read_id(cli_file_id *out, const char *path, dw_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return dw_fail_errno(err, path, "look at the file");
    *out = (cli_file_id){st.st_dev, st.st_ino, st.st_size, st.st_mtim, st.st_ctim};
    return DW_OK;
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool same_id(const cli_file_id *a, const cli_file_id *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           same_time(a->modified, b->modified) && same_time(a->changed, b->changed);
}

/* Whether the file was written so recently that another write might not change its time.
 */
static bool is_fresh(const cli_file_id *id)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const double age = (double)(now.tv_sec - id->changed.tv_sec) +
                       1e-9 * (double)(now.tv_nsec - id->changed.tv_nsec);
    return age >= 0 && age < T_TICK;
}

static dw_status note_files(cli_weights *w, const char *path, dw_error *err)
{
    const size_t n = count_files(w);
    w->ids = calloc(n + 1, sizeof *w->ids);
    dw_status status = w->ids ? DW_OK : dw_fail_memory(err, path);
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        status = read_id(&w->ids[i], path_of(w, i), err);
        if (status == DW_OK && is_fresh(&w->ids[i])) {
            cli_sleep(T_TICK);
            status = read_id(&w->ids[i], path_of(w, i), err);
        }
    }
    return status;
}

dw_status cli_weights_unchanged(const cli_weights *w, dw_error *err)
{
    for (size_t i = 0; w->ids && i < count_files(w); i++) {
        cli_file_id now = {0};
        dw_error unread;
        const char *path = path_of(w, i);
        if (read_id(&now, path, &unread) != DW_OK || !same_id(&now, &w->ids[i]))
            return dw_fail(err, DW_STALE, path,
                           "the file changed while it was read: nothing was "
                           "published. Publish again when the save has ended, or "
                           "save each checkpoint to a directory of its own");
    }
    return DW_OK;
}

dw_status cli_weights_confirm(void *weights, dw_error *err)
{
    return cli_weights_unchanged(weights, err);
}

dw_status cli_weights_load_noted(cli_weights *out, const char *path, dw_error *err)
{
    /* open it once to learn its files: their sizes and times must be noted before the
     * headers are read
     */
    cli_weights first;
    dw_status status = cli_weights_load(&first, path, err);
    *out = (cli_weights){0};
    if (status != DW_OK)
        return status;
    status = note_files(&first, path, err);
    const size_t n = count_files(&first);
    if (status == DW_OK)
        status = cli_weights_load(out, path, err);
    if (status == DW_OK) {
        out->ids = first.ids;
        first.ids = NULL;
        status = count_files(out) == n ? cli_weights_unchanged(out, err)
                                       : dw_fail(err, DW_STALE, path,
                                                 "its files changed while they "
                                                 "were opened. Publish again");
    }
    if (status != DW_OK)
        cli_weights_close(out);
    cli_weights_close(&first);
    return status;
}

dw_status cli_weights_check_whole(const char *path, dw_error *err)
{
    bool pending;
    dw_status status = dw_checkpoint_pending(path, &pending, err);
    if (status == DW_OK && pending)
        status = dw_fail(err, DW_STALE, path,
                         "an apply to this checkpoint was interrupted, or is under way: "
                         "run deltawire recover");
    return status;
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
    free(weights->ids);
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
                               : dw_fail_memory(err, "");
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
