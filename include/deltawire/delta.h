/* Deltas: the changes between two versions of a model.
 *
 *     dw_delta_diff     two versions in memory     ->  delta
 *     dw_delta_save     delta                      ->  file
 *     dw_delta_open     file                       ->  delta
 *     dw_delta_apply    delta + old weights        ->  new weights, checked
 *     dw_delta_stage    delta + old weights        ->  patch: positions and values
 *     dw_patch_apply    patch                      ->  new weights, at memory speed
 *
 * dw_checkpoint_apply (checkpoint.h) applies a delta to files.
 *
 * Several threads may read a delta at once. A patch belongs to one thread at a time.
 */
#ifndef DELTAWIRE_DELTA_H
#define DELTAWIRE_DELTA_H

#include <string.h>

#include "deltawire/tensor.h"
#include "deltawire/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_delta dw_delta;
typedef struct dw_patch dw_patch;

typedef enum dw_codec {
    DW_CODEC_CLASS = 0, /* deltawire's: gaps inside magnitude classes, entropy-coded; a
                           block with many changes is packed whole */
    DW_CODEC_GAP = 1,   /* TRL v2/v3 `gap_delta`: U16 or U32 gaps and values */
    DW_CODEC_RAW = 2,   /* TRL `raw`: I32 indices and values */
} dw_codec;

/* "class", "gap", "raw". */
DW_API const char *dw_codec_name(dw_codec codec);

/* ---- making a delta --------------------------------------------------------- */

typedef struct dw_diff_options {
    size_t struct_bytes; /* set by dw_diff_options_init */
    dw_codec codec;
    unsigned trl_layout; /* RAW and GAP: 1 writes `.indices` and `.values`, 3 `.idx` and
                            `.val`. Layout 1 has no GAP */
    unsigned n_threads;
    uint64_t base_version; /* numbers of the caller's, carried in the delta */
    uint64_t new_version;
    bool update_base; /* also store the new values into BASE, in the same pass. The delta
                         is then the only record of the change: keep it safe */
    bool round_next;  /* if BASE has BF16, NEXT may have F32. It is rounded in the same
                         pass, as dw_cast_bf16 does */
    const dw_digest *base_digests; /* the digests of BASE, if the caller keeps them. This
                                      saves a second read of unchanged data. NULL: they
                                      are computed */
    dw_digest *new_digests;        /* takes the digests of NEXT; may be NULL */
    dw_progress progress;
} dw_diff_options;

/* The defaults: CLASS, layout 3, all cores, versions 0 and 1, BASE stays as it is. */
static inline void dw_diff_options_init(dw_diff_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_bytes = sizeof *options;
    options->codec = DW_CODEC_CLASS;
    options->trl_layout = 3;
    options->new_version = 1;
}

/* Compares NEXT with BASE bit for bit (NaN payloads and -0 count) and encodes the
 * differences. Both lists must have the same names, types and shapes. Their order may
 * differ: base_digests has the order of BASE, new_digests that of NEXT. If update_base is
 * set, a failure leaves BASE partly updated. Tensors that share memory (tied weights)
 * must do so in both lists. If base_digests is set, a tensor of NEXT may have BASE's own
 * data: it counts as unchanged and is not read. */
DW_API dw_status dw_delta_diff(dw_delta **out, const dw_tensor *base,
                               const dw_tensor *next, size_t n_tensors,
                               const dw_diff_options *options, dw_error *err);

/* ---- deltas as files and bytes ---------------------------------------------- */

/* Maps a delta file and checks its header, table and checksums. Reads deltawire's
 * container and TRL's files of versions 1, 2 and 3. */
DW_API dw_status dw_delta_open(dw_delta **out, const char *path, dw_error *err);

/* The same for bytes in memory, which are borrowed until dw_delta_close and must be
 * aligned to 8 bytes. LABEL names them in errors. */
DW_API dw_status dw_delta_open_bytes(dw_delta **out, const void *bytes, size_t n_bytes,
                                     const char *label, dw_error *err);

DW_API void dw_delta_close(dw_delta *delta);

/* Takes the next bytes of an encoded delta. Any result but DW_OK stops the writing. */
typedef dw_status (*dw_sink)(void *context, const void *bytes, size_t n_bytes,
                             dw_error *err);

/* Passes the encoded file to SINK in pieces, front to back. */
DW_API dw_status dw_delta_write(const dw_delta *delta, dw_sink sink, void *context,
                                dw_error *err);

/* Writes PATH through a temporary file: it appears complete and synced, or not at all.
 * Replaces an existing file. */
DW_API dw_status dw_delta_save(const dw_delta *delta, const char *path, dw_error *err);

/* The codec counts an element of C64 as two, and types below a byte as bytes. */
typedef struct dw_delta_info {
    dw_codec codec;
    unsigned trl_layout; /* 0 for deltawire's container */
    bool has_digests; /* false for files of TRL's: there is nothing to verify against */
    uint64_t base_version;
    uint64_t new_version;
    dw_digest base_state; /* of the whole model */
    dw_digest new_state;
    uint64_t n_model_tensors; /* of the whole model; 0: not known */
    uint64_t n_model_elems;
    uint64_t n_changed; /* changed elements */
    uint64_t n_bytes;   /* size of the encoded file */
    size_t n_tensors;   /* tensors with changes, for dw_delta_tensor */
    uint64_t reserved[4];
} dw_delta_info;

DW_API void dw_delta_get_info(const dw_delta *delta, dw_delta_info *out);

typedef struct dw_delta_tensor_info {
    const char *name;
    bool has_shape; /* false for files of TRL's: n_dims, dims and n_elems are 0 */
    dw_dtype dtype;
    uint32_t n_dims;
    const uint64_t *dims;
    uint64_t n_elems;
    uint64_t n_changed;
    uint64_t n_bytes; /* encoded */
    dw_digest base_digest;
    dw_digest new_digest;
    uint64_t n_blocks; /* CLASS only: all blocks, and how they are coded */
    uint64_t n_class_blocks;
    uint64_t n_packed_blocks;
    uint64_t n_stored_blocks;
    uint64_t reserved[4];
} dw_delta_tensor_info;

/* Tensor I of n_tensors. What OUT points to lives until dw_delta_close. */
DW_API void dw_delta_tensor(const dw_delta *delta, size_t i, dw_delta_tensor_info *out);

/* ---- applying --------------------------------------------------------------- */

typedef struct dw_apply_options {
    size_t struct_bytes; /* set by dw_apply_options_init */
    unsigned n_threads;
    const dw_digest *base_digests; /* the digests of the tensors, if the caller keeps
                                      them. NULL: every tensor is read and checked */
    dw_digest *new_digests;        /* takes the digests after the apply; may be NULL */
    dw_progress progress;
} dw_apply_options;

static inline void dw_apply_options_init(dw_apply_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_bytes = sizeof *options;
}

/* Decodes the delta, proves that the result is the version that it names, and only then
 * writes the tensors. A failure leaves them as they were. Memory is bounded for changes
 * of any size, because blocks are decoded twice. */
DW_API dw_status dw_delta_apply(const dw_delta *delta, const dw_tensor *tensors,
                                size_t n_tensors, const dw_apply_options *options,
                                dw_error *err);

/* The same without the write: proves that the delta leads from these weights to the
 * version that it names. */
DW_API dw_status dw_delta_verify(const dw_delta *delta, const dw_tensor *tensors,
                                 size_t n_tensors, const dw_apply_options *options,
                                 dw_error *err);

/* Decodes and proves, without a write. The patch is the plain list of positions and
 * values. The tensors must stay as they are until it is applied. */
DW_API dw_status dw_delta_stage(dw_patch **out, const dw_delta *delta,
                                const dw_tensor *tensors, size_t n_tensors,
                                const dw_apply_options *options, dw_error *err);

/* Stores the values. To apply a patch twice gives the same result, so an interrupted
 * apply is finished by another one. TENSORS are those that were staged, or others with
 * the same names, types, shapes and values. On a device they must be the very same: there
 * each weight is compared first, and DW_STALE means that somebody changed one, and that
 * all of them are as before. */
DW_API dw_status dw_patch_apply(const dw_patch *patch, const dw_tensor *tensors,
                                size_t n_tensors, unsigned n_threads, dw_error *err);

/* How many elements it changes. */
DW_API uint64_t dw_patch_changed(const dw_patch *patch);
DW_API void dw_patch_free(dw_patch *patch);

/* Makes a delta of the same change in another codec. TENSORS are the weights that the
 * delta starts from. Only codec, trl_layout, n_threads and progress of OPTIONS are used.
 * A delta that knows its versions keeps them. */
DW_API dw_status dw_delta_recode(dw_delta **out, const dw_delta *delta,
                                 const dw_tensor *tensors, size_t n_tensors,
                                 const dw_diff_options *options, dw_error *err);

#ifdef __cplusplus
}
#endif

#endif
