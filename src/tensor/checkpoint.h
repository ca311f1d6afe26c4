/* What the layers above need of a checkpoint beyond the public functions. */
#ifndef DW_TENSOR_CHECKPOINT_H
#define DW_TENSOR_CHECKPOINT_H

#include "deltawire/checkpoint.h"

/* Makes sure that stores to a writable checkpoint will find room on the disk. */
dw_status dw_checkpoint_reserve(dw_checkpoint *ckpt, dw_error *err);

/* A number that tells the files behind it from others, also of the same names; they
 * cannot be others while somebody has them mapped. */
uint64_t dw_checkpoint_identity(const dw_checkpoint *ckpt);

#endif
