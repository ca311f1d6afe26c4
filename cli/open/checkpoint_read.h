/* Checkpoints as the verbs read them. */
#ifndef CLI_CHECKPOINT_READ_H
#define CLI_CHECKPOINT_READ_H

#include <sys/types.h>
#include <time.h>

#include <deltawire/checkpoint.h>
#include <deltawire/delta.h>

#include "command_line.h"

/* The identity of a file before it was read. */
typedef struct cli_file_id {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec modified, changed;
} cli_file_id;

typedef struct cli_weights {
    dw_checkpoint *ckpt;
    cli_file_id *ids; /* of its files, then of the index; NULL: not noted */
    const dw_tensor *tensors;
    size_t n_tensors;
    uint64_t n_bytes;
} cli_weights;

/* DW_STALE if an apply to the checkpoint was interrupted, or is under way. */
dw_status cli_weights_check_whole(const char *path, dw_error *err);

/* Opens a checkpoint for reading. Refuses one with an interrupted apply: it is a mix of
 * two versions. Returns 0, or the exit code of the error it reported. */
int cli_weights_open(cli_weights *out, const cli_session *s, const char *path);

/* Opens it in any state, and reports nothing. */
dw_status cli_weights_load(cli_weights *out, const char *path, dw_error *err);

/* The same for files that somebody may be writing: notes their sizes and times first. */
dw_status cli_weights_load_noted(cli_weights *out, const char *path, dw_error *err);

/* DW_STALE if a file has changed since the weights were loaded. A file that is
 * written through a mapping may show it late, or not at all. */
dw_status cli_weights_unchanged(const cli_weights *weights, dw_error *err);

/* The same, for `confirm` of dw_publish_options. */
dw_status cli_weights_confirm(void *weights, dw_error *err);

void cli_weights_close(cli_weights *weights);

/* Computes the digests of all tensors, [n_tensors] in OUT, and of the model, with a
 * progress bar. */
dw_status cli_weights_digest(dw_digest *out, dw_digest *state, const cli_weights *weights,
                             const cli_session *s, dw_error *err);

/* Computes only the digest of the model. */
dw_status cli_weights_state(dw_digest *state, const cli_weights *weights,
                            const cli_session *s, dw_error *err);

/* Whether PATH is one of the checkpoint's files or its index, by any name. */
bool cli_weights_own_file(const cli_weights *weights, const char *path);

#endif
