/* Checkpoint functions for the layers above, beyond the public ones. */
#ifndef DW_TENSOR_CHECKPOINT_H
#define DW_TENSOR_CHECKPOINT_H

#include "deltawire/checkpoint.h"

/* Makes sure that stores to a writable checkpoint will find room on the disk. */
dw_status dw_checkpoint_reserve(dw_checkpoint *ckpt, dw_error *err);

/* The descriptor that file I is open with. */
int dw_checkpoint_fd(const dw_checkpoint *ckpt, size_t i);

/* A number that distinguishes the files behind it from others, also of the same names;
 * they cannot be others while somebody has them mapped. */
uint64_t dw_checkpoint_identity(const dw_checkpoint *ckpt);

/* How many of the tensors, in order, the next shard takes: as many as fit, and one that
 * is too large by itself; and how many shards all of them take (checkpoint_write.c). */
size_t dw_shard_fill(const dw_tensor *tensors, size_t n_tensors, uint64_t max_bytes);
size_t dw_shard_count(const dw_tensor *tensors, size_t n_tensors, uint64_t max_bytes);

#endif
