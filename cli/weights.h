/* Checkpoints as the verbs read them. */
#ifndef CLI_WEIGHTS_H
#define CLI_WEIGHTS_H

#include <deltawire/checkpoint.h>
#include <deltawire/delta.h>

#include "options.h"

typedef struct cli_weights {
    dw_checkpoint *ckpt;
    const dw_tensor *tensors;
    size_t n_tensors;
    uint64_t n_bytes;
} cli_weights;

/* Opens a checkpoint for reading. One that an interrupted apply left is refused: it is a
 * mix of two versions. Returns 0, or the exit code of the error it reported. */
int cli_weights_open(cli_weights *out, const cli_session *s, const char *path);

/* Opens it whatever state it is in, and reports nothing. */
dw_status cli_weights_load(cli_weights *out, const char *path, dw_error *err);

void cli_weights_close(cli_weights *weights);

/* Digests of all tensors, [n_tensors] in OUT, and of the whole; with a progress bar. */
dw_status cli_weights_digest(dw_digest *out, dw_digest *state, const cli_weights *weights,
                             const cli_session *s, dw_error *err);

/* The digest of the whole alone. */
dw_status cli_weights_state(dw_digest *state, const cli_weights *weights,
                            const cli_session *s, dw_error *err);

/* Whether PATH is one of the files behind the checkpoint, its index among them, by
 * whatever name. */
bool cli_weights_own_file(const cli_weights *weights, const char *path);

#endif
