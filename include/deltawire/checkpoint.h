/* Checkpoints on disk: one safetensors file, or a directory (or index.json) of
 * shards. They are mapped, never read into memory: opening a terabyte costs its
 * headers. guard.h says what happens if such a file shrinks.
 */
#ifndef DELTAWIRE_CHECKPOINT_H
#define DELTAWIRE_CHECKPOINT_H

#include "deltawire/error.h"
#include "deltawire/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_checkpoint dw_checkpoint;

enum {
    DW_CHECKPOINT_READ = 0,
    DW_CHECKPOINT_WRITE = 1, /* map shared and writable: stores reach the files */
};

/* Opens PATH: a .safetensors file, a model.safetensors.index.json, or a directory
 * that holds one of `model.safetensors.index.json`, `model.safetensors`, or
 * exactly one other .safetensors file. Every header is checked whole before this
 * returns; shard names that leave the directory are refused. */
DW_API dw_status dw_checkpoint_open(dw_checkpoint **out, const char *path, unsigned flags,
                                    dw_error *err);

/* Unmaps and frees. Accepts NULL. Does not sync. */
DW_API void dw_checkpoint_close(dw_checkpoint *ckpt);

/* Tensors in ascending byte order of their names. The array and all it points
 * to live until dw_checkpoint_close. */
DW_API const dw_tensor *dw_checkpoint_tensors(const dw_checkpoint *ckpt,
                                              size_t *n_tensors);

/* The tensor of that name, or NULL. */
DW_API const dw_tensor *dw_checkpoint_find(const dw_checkpoint *ckpt, const char *name);

/* The files behind the checkpoint, as opened: shards in index order. The index
 * file itself is not among them. */
DW_API size_t dw_checkpoint_file_count(const dw_checkpoint *ckpt);
DW_API const char *dw_checkpoint_file(const dw_checkpoint *ckpt, size_t i);

/* The index file, or NULL where the checkpoint is a single file. */
DW_API const char *dw_checkpoint_index(const dw_checkpoint *ckpt);

/* A value from the first file's __metadata__, or NULL. */
DW_API const char *dw_checkpoint_metadata(const dw_checkpoint *ckpt, const char *key);

/* DW_IO if a file behind the checkpoint is shorter now than when it was opened, or if the
 * guard (guard.h) had to replace one of its pages: what was read of it may be zeros. Call
 * it after reading tensors directly. */
DW_API dw_status dw_checkpoint_check(const dw_checkpoint *ckpt, dw_error *err);

/* Makes every store to a writable checkpoint durable. */
DW_API dw_status dw_checkpoint_sync(dw_checkpoint *ckpt, dw_error *err);

typedef struct dw_pair {
    const char *key;
    const char *value;
} dw_pair;

typedef struct dw_checkpoint_write_options {
    const dw_pair *metadata; /* strings for __metadata__, or NULL */
    size_t n_metadata;
    uint64_t max_shard_bytes; /* 0: one file. Otherwise PATH is a directory, and
                                 shards and an index are written into it */
} dw_checkpoint_write_options;

/* Writes the tensors; OPTIONS may be NULL. A file appears
 * under its name only when it is whole and synced (with shards: the index comes
 * last), and a failure, a full disk among them, leaves nothing behind. Tensors
 * are ordered as the stock library does (larger alignment first, then name), so
 * the same tensors give the same bytes. */
DW_API dw_status dw_checkpoint_write(const char *path, const dw_tensor *tensors,
                                     size_t n_tensors,
                                     const dw_checkpoint_write_options *options,
                                     dw_error *err);

#ifdef __cplusplus
}
#endif

#endif
