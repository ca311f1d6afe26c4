/* Checkpoints on disk: one safetensors file, or several with an index.
 *
 * Files are mapped, never read into memory as a whole, so opening a terabyte costs no
 * more than its headers. The library itself reads a file that was opened for reading with
 * system calls, so a file that shrinks makes a call fail with DW_IO. A touch of the bytes
 * that it lost, through dw_tensor.data, raises SIGBUS.
 */
#ifndef DELTAWIRE_CHECKPOINT_H
#define DELTAWIRE_CHECKPOINT_H

#include <string.h>

#include "deltawire/delta.h"
#include "deltawire/base.h"
#include "deltawire/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_checkpoint dw_checkpoint;

enum {
    DW_CHECKPOINT_READ = 0,
    DW_CHECKPOINT_WRITE = 1, /* map shared and writable: stores go to the files */
};

/* Opens PATH: a .safetensors file, a model.safetensors.index.json, or a directory that
 * holds one of `model.safetensors.index.json`, `model.safetensors`, or exactly one other
 * .safetensors file. Checks every header. Refuses shard names that lead out of the
 * directory. */
DW_API dw_status dw_checkpoint_open(dw_checkpoint **out, const char *path, unsigned flags,
                                    dw_error *err);

/* Unmaps and frees. Does not sync. */
DW_API void dw_checkpoint_close(dw_checkpoint *ckpt);

/* The tensors, in ascending byte order of their names. The array and what it points to
 * live until dw_checkpoint_close. */
DW_API const dw_tensor *dw_checkpoint_tensors(const dw_checkpoint *ckpt,
                                              size_t *n_tensors);

/* The tensor of that name, or NULL. */
DW_API const dw_tensor *dw_checkpoint_find(const dw_checkpoint *ckpt, const char *name);

/* The files with the tensors, in the order of the index. The index is not among them. */
DW_API size_t dw_checkpoint_file_count(const dw_checkpoint *ckpt);
DW_API const char *dw_checkpoint_file(const dw_checkpoint *ckpt, size_t i);

/* The value of KEY in the first file's __metadata__, or NULL. */
DW_API const char *dw_checkpoint_metadata(const dw_checkpoint *ckpt, const char *key);

/* DW_IO if a file is shorter now than when it was opened. */
DW_API dw_status dw_checkpoint_check(const dw_checkpoint *ckpt, dw_error *err);

/* Syncs a writable checkpoint to disk. */
DW_API dw_status dw_checkpoint_sync(dw_checkpoint *ckpt, dw_error *err);

typedef struct dw_pair {
    const char *key;
    const char *value;
} dw_pair;

typedef struct dw_checkpoint_write_options {
    size_t struct_bytes;     /* set by dw_checkpoint_write_options_init */
    const dw_pair *metadata; /* strings for __metadata__, or NULL */
    size_t n_metadata;
    uint64_t max_shard_bytes; /* 0: one file. Else PATH is a directory that takes shards
                                 and an index */
} dw_checkpoint_write_options;

static inline void dw_checkpoint_write_options_init(dw_checkpoint_write_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_bytes = sizeof *options;
}

/* Writes the tensors. A file gets its name only once it is complete and synced; the index
 * comes last. A failure, a full disk for example, leaves nothing behind. Tensors are
 * ordered as the safetensors library orders them (larger alignment first, then by name),
 * so the same tensors give the same bytes. */
DW_API dw_status dw_checkpoint_write(const char *path, const dw_tensor *tensors,
                                     size_t n_tensors,
                                     const dw_checkpoint_write_options *options,
                                     dw_error *err);

/* ---- applying deltas to the files --------------------------------------------- */

typedef struct dw_apply_report {
    bool already_applied; /* the checkpoint was at the new version before */
    bool recovered;       /* an interrupted apply was finished first */
    bool verified;        /* false if the delta has no digests to verify against */
    uint64_t n_changed;
    dw_digest new_state;
    uint64_t reserved[4];
} dw_apply_report;

/* Brings the checkpoint at PATH to the delta's new version, in place. The patch is
 * written beside it and synced before the first byte of the checkpoint changes. If the
 * process is killed, call this again, or dw_checkpoint_recover. Other processes that map
 * the files see the stores as they happen. DW_CONFLICT if a file is a symbolic link or
 * has several names: others use it. base_digests and new_digests of OPTIONS are not used.
 * REPORT may be NULL. */
DW_API dw_status dw_checkpoint_apply(const char *path, const dw_delta *delta,
                                     const dw_apply_options *options,
                                     dw_apply_report *report, dw_error *err);

/* Finishes an interrupted dw_checkpoint_apply, if there was one, and sets *RECOVERED,
 * which may be NULL. Until then the checkpoint must not be read. */
DW_API dw_status dw_checkpoint_recover(const char *path, unsigned n_threads,
                                       bool *recovered, dw_error *err);

/* Sets *PENDING if an apply to the checkpoint was interrupted or is in progress: the
 * files are then a mix of two versions. Writes nothing. */
DW_API dw_status dw_checkpoint_pending(const char *path, bool *pending, dw_error *err);

#ifdef __cplusplus
}
#endif

#endif
