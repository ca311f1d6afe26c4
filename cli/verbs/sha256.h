#ifndef CLI_SHA256_H
#define CLI_SHA256_H

#include "base/hash.h"
#include "checkpoint_read.h"

/* SHA-256 over the bytes of all tensors in ascending order of their names, in hex. */
dw_status cli_sha256_weights(char out[DW_SHA256_TEXT], const cli_weights *weights,
                             const cli_session *s, dw_error *err);

#endif
