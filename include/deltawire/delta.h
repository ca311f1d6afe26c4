/* Deltas: what changed between two versions of a model.
 *
 *     dw_delta_diff     two versions in memory     ->  delta
 *     dw_delta_save     delta                      ->  file
 *     dw_delta_open     file                       ->  delta
 *     dw_delta_apply    delta + old weights        ->  new weights, checked
 *     dw_delta_stage    delta + old weights        ->  patch: a list of stores
 *     dw_patch_apply    patch                      ->  new weights, at memory speed
 *
 * A delta handle may be read by several threads at once; everything else belongs
 * to one thread at a time. Functions with `n_threads` start their own threads and
 * join them before they return.
 */
#ifndef DELTAWIRE_DELTA_H
#define DELTAWIRE_DELTA_H

#include "deltawire/digest.h"
#include "deltawire/error.h"
#include "deltawire/progress.h"
#include "deltawire/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_delta dw_delta;
typedef struct dw_patch dw_patch;

typedef enum dw_codec {
    DW_CODEC_CLASS = 0, /* ours: gaps counted inside magnitude classes, entropy-coded;
                           a block that changed densely is packed whole instead */
    DW_CODEC_GAP = 1,   /* TRL v2/v3 `gap_delta`: U16 or U32 gaps and values */
    DW_CODEC_RAW = 2,   /* TRL `raw`: I32 indices and values */
} dw_codec;

/* "class", "gap", "raw". */
DW_API const char *dw_codec_name(dw_codec codec);

/* ---- making a delta --------------------------------------------------------- */

typedef struct dw_diff_options {
    dw_codec codec;
    unsigned trl_layout;   /* RAW, GAP: 1 writes `.indices`/`.values`, 3 `.idx`/`.val`; 1
                              has no gaps */
    unsigned n_threads;    /* 0: all cores */
    uint64_t base_version; /* the caller's own numbers, carried in the delta */
    uint64_t new_version;
    bool update_base; /* also store the new values into BASE, in the same pass. The delta
                         is then the only record of what changed: keep it safe */
    bool round_next;  /* where BASE has BF16, NEXT may have F32, which is rounded in the
                         same pass, as dw_cast_bf16 does */
    const dw_digest *base_digests; /* digests of BASE where the caller keeps them: saves
                                      reading unchanged data twice. NULL: computed */
    dw_digest *new_digests;        /* where not NULL, takes the digests of NEXT */
    dw_progress progress;
} dw_diff_options;

/* CLASS, layout 3, all cores, versions 0 -> 1, BASE left alone. */
DW_API void dw_diff_options_init(dw_diff_options *options);

/* Compares NEXT with BASE bit for bit (NaN payloads and -0 count) and encodes what
 * differs. Both lists must hold the same names, types and shapes; their order may
 * differ, and base_digests follows BASE, new_digests NEXT. OPTIONS may be NULL.
 * With update_base a failure leaves BASE partly updated: values of BASE or NEXT. Tensors
 * that share memory (tied weights) must do so in both lists. With base_digests a tensor
 * of NEXT may have BASE's own data: it is unchanged, and is not read. */
DW_API dw_status dw_delta_diff(dw_delta **out, const dw_tensor *base,
                               const dw_tensor *next, size_t n_tensors,
                               const dw_diff_options *options, dw_error *err);

/* ---- deltas as files and bytes ---------------------------------------------- */

/* Maps a delta file and checks its header, table and checksums. Reads our own
 * container and TRL's v1, v2 and v3 files. */
DW_API dw_status dw_delta_open(dw_delta **out, const char *path, dw_error *err);

/* The same for bytes in memory, which are borrowed until dw_delta_close. LABEL
 * names them in errors. BYTES must be 8-byte aligned. */
DW_API dw_status dw_delta_open_bytes(dw_delta **out, const void *bytes, size_t n_bytes,
                                     const char *label, dw_error *err);

DW_API void dw_delta_close(dw_delta *delta);

/* Takes the next bytes of an encoded delta; not DW_OK stops the writing. */
typedef dw_status (*dw_sink)(void *context, const void *bytes, size_t n_bytes,
                             dw_error *err);

/* Hands the encoded file to SINK, front to back, in pieces. */
DW_API dw_status dw_delta_write(const dw_delta *delta, dw_sink sink, void *context,
                                dw_error *err);

/* Writes PATH through a temporary file: it appears whole and synced, or not at
 * all. An existing file is replaced. */
DW_API dw_status dw_delta_save(const dw_delta *delta, const char *path, dw_error *err);

/* Elements are counted as the codec sees them: C64 as two, types below a byte as bytes.
 */
typedef struct dw_delta_info {
    dw_codec codec;
    unsigned trl_layout; /* 0 for our own container */
    bool has_digests;    /* false for files TRL wrote: nothing to verify against */
    uint64_t base_version;
    uint64_t new_version;
    dw_digest base_state; /* of the whole model */
    dw_digest new_state;
    uint64_t n_model_tensors; /* counts over the whole model; 0 where not known */
    uint64_t n_model_elems;
    uint64_t n_changed; /* changed elements */
    uint64_t n_bytes;   /* size of the encoded file */
    size_t n_tensors;   /* tensors with changes: what dw_delta_tensor walks */
} dw_delta_info;

DW_API void dw_delta_get_info(const dw_delta *delta, dw_delta_info *out);

typedef struct dw_delta_tensor_info {
    const char *name;
    bool has_shape; /* false for files TRL wrote: n_dims, dims and n_elems are 0 */
    dw_dtype dtype;
    uint32_t n_dims;
    const uint64_t *dims;
    uint64_t n_elems;
    uint64_t n_changed;
    uint64_t n_bytes; /* encoded */
    dw_digest base_digest;
    dw_digest new_digest;
    uint64_t n_blocks; /* CLASS only: blocks in all, and how they are coded */
    uint64_t n_class_blocks;
    uint64_t n_packed_blocks;
    uint64_t n_stored_blocks;
} dw_delta_tensor_info;

DW_API void dw_delta_tensor(const dw_delta *delta, size_t i, dw_delta_tensor_info *out);

/* ---- applying --------------------------------------------------------------- */

typedef struct dw_apply_options {
    unsigned n_threads;            /* 0: all cores */
    const dw_digest *base_digests; /* digests of the tensors where the caller keeps them;
                                      NULL: every tensor is read and checked */
    dw_digest *new_digests;        /* where not NULL, takes the digests after the apply */
    dw_progress progress;
} dw_apply_options;

DW_API void dw_apply_options_init(dw_apply_options *options);

/* Decodes, proves that the outcome is the version the delta names, and only then
 * writes the tensors. Any failure leaves them as they were. Memory stays bounded
 * whatever the size of the change: the price is that blocks are decoded twice. */
DW_API dw_status dw_delta_apply(const dw_delta *delta, const dw_tensor *tensors,
                                size_t n_tensors, const dw_apply_options *options,
                                dw_error *err);

/* The same without the writing: proves that the delta leads from these weights to the
 * version it names. */
DW_API dw_status dw_delta_verify(const dw_delta *delta, const dw_tensor *tensors,
                                 size_t n_tensors, const dw_apply_options *options,
                                 dw_error *err);

/* Decodes and verifies, without writing: the outcome is the plain list of stores
 * that leads to the new version. The tensors must stay as they are until it is
 * applied. */
DW_API dw_status dw_delta_stage(dw_patch **out, const dw_delta *delta,
                                const dw_tensor *tensors, size_t n_tensors,
                                const dw_apply_options *options, dw_error *err);

/* Does the stores. Doing them twice gives the same result, so an interrupted apply
 * is finished by another. TENSORS must be those that were staged, or others of the
 * same names, types and shapes. */
DW_API dw_status dw_patch_apply(const dw_patch *patch, const dw_tensor *tensors,
                                size_t n_tensors, unsigned n_threads, dw_error *err);

/* Changed elements, and bytes the list takes. */
DW_API uint64_t dw_patch_changed(const dw_patch *patch);
DW_API uint64_t dw_patch_bytes(const dw_patch *patch);

DW_API void dw_patch_free(dw_patch *patch);

/* The same change in another codec. TENSORS are the weights the delta starts from.
 * Of OPTIONS, codec, trl_layout, n_threads and progress are used; a delta that knows
 * its versions keeps them. */
DW_API dw_status dw_delta_recode(dw_delta **out, const dw_delta *delta,
                                 const dw_tensor *tensors, size_t n_tensors,
                                 const dw_diff_options *options, dw_error *err);

/* ---- applying to a checkpoint on disk --------------------------------------- */

typedef struct dw_apply_report {
    bool already_applied; /* the checkpoint stood at the new version before */
    bool recovered;       /* an interrupted earlier apply was finished first */
    bool verified;        /* false where the delta names no digest to verify against */
    uint64_t n_changed;
    dw_digest new_state;
} dw_apply_report;

/* Brings the checkpoint at PATH to the delta's new version, in place. The list of
 * stores is written beside it and synced before the first byte of the checkpoint
 * changes, so that a process killed at any instant is repaired by calling this
 * again, or by dw_checkpoint_recover. Other processes that map the files see the
 * stores as they happen. DW_CONFLICT if a file is a symbolic link or has several names:
 * others use what would be written. base_digests and new_digests of OPTIONS are not used;
 * OPTIONS and REPORT may be NULL. */
DW_API dw_status dw_checkpoint_apply(const char *path, const dw_delta *delta,
                                     const dw_apply_options *options,
                                     dw_apply_report *report, dw_error *err);

/* Finishes an interrupted dw_checkpoint_apply, if there was one; sets *RECOVERED, which
 * may be NULL. A checkpoint that was being written must not be read before this. */
DW_API dw_status dw_checkpoint_recover(const char *path, unsigned n_threads,
                                       bool *recovered, dw_error *err);

/* Whether an apply to the checkpoint was interrupted, or is under way: what is there is a
 * mix of two versions. Writes nothing. */
DW_API dw_status dw_checkpoint_pending(const char *path, bool *pending, dw_error *err);

#ifdef __cplusplus
}
#endif

#endif
