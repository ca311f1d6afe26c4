/* TRL's delta layouts, v1 and v2/v3: a pair of tensors for each changed one.
 *
 *     v1       NAME.indices I32 | NAME.values      metadata changed_params
 *     v2, v3   NAME.idx         | NAME.val         metadata encoding:
 *                raw        I32 positions
 *                gap_delta  U16 or U32 gaps: unchanged elements before each change
 *
 * Files of TRL have no shapes, base version or digests. Files that deltawire writes have
 * them in further metadata, which TRL's readers ignore: base_version, base_digest,
 * new_digest, elements, tensors, `changed` (JSON: name -> dtype, shape, digests) and a
 * seal.
 */
#ifndef DW_CODEC_TRL_DELTA_H
#define DW_CODEC_TRL_DELTA_H

#include "codec/delta.h"

#define DW_TRL_FORMAT "sparse_weight_patch"

/* The suffixes of a tensor's name. */
typedef struct dw_trl_spelling {
    const char *index;
    const char *values;
} dw_trl_spelling;

static inline dw_trl_spelling dw_trl_spelling_of(const dw_delta *delta)
{
    return delta->info.trl_layout == 1 ? (dw_trl_spelling){".indices", ".values"}
                                       : (dw_trl_spelling){".idx", ".val"};
}

/* ---- reading (trl_read.c) ---- */

bool dw_trl_detect(const dw_safetensors *file);
dw_status dw_trl_read(dw_delta *delta, dw_error *err);

/* Takes the changes of one block, positions relative to element FIRST. */
typedef dw_status (*dw_trl_take)(void *context, uint64_t first, const dw_decoded *changes,
                                 dw_error *err);

/* Passes the changes of an entry to the sink, block by block, for a tensor of N_UNITS
 * elements. ROOM holds the positions of a block. DW_CORRUPT if positions do not ascend or
 * pass the end. */
dw_status dw_trl_walk(const dw_delta *delta, const dw_delta_entry *entry,
                      uint64_t n_units, uint32_t *room, dw_trl_take take, void *context,
                      dw_error *err);

/* ---- writing (trl_write.c) ---- */

/* Digests of each tensor before and after, in the order of the patch's tensors. */
typedef struct dw_trl_digests {
    const dw_digest *base;
    const dw_digest *next;
} dw_trl_digests;

/* Fills entries, header and pieces from PATCH; info must hold codec, layout, versions,
 * states and the counts of the model. */
dw_status dw_trl_write(dw_delta *delta, const dw_patch *patch, dw_trl_digests digests,
                       dw_error *err);

#endif
