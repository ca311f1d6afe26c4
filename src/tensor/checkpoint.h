/* Checkpoint functions for the layers above, beside the public ones. */
#ifndef DW_TENSOR_CHECKPOINT_H
#define DW_TENSOR_CHECKPOINT_H

#include "deltawire/checkpoint.h"

/* Makes room on the disk for stores to a writable checkpoint. */
dw_status dw_checkpoint_reserve(dw_checkpoint *ckpt, dw_error *err);

/* The descriptor of file I. */
int dw_checkpoint_fd(const dw_checkpoint *ckpt, size_t i);

/* A number that identifies its files, also among files of the same names. That of a
 * single file is its dw_file_identity. */
uint64_t dw_checkpoint_identity(const dw_checkpoint *ckpt);

/* A hash of what its files hold beside the tensors: their headers and their sizes. */
uint64_t dw_checkpoint_frame(const dw_checkpoint *ckpt);

/* How many of the tensors, in order, go into the next shard: as many as fit, or one that
 * is too large; and how many shards all of them need (checkpoint_write.c). */
size_t dw_shard_fill(const dw_tensor *tensors, size_t n_tensors, uint64_t max_bytes);
size_t dw_shard_count(const dw_tensor *tensors, size_t n_tensors, uint64_t max_bytes);

#endif
