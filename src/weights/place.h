/* A checkpoint on disk that is held, and brought from version to version, so that a kill
 * at any instant is harmless.
 *
 *     open     lock; finish what an interrupted run left; map
 *     stage    decode and verify; write the list of stores beside the checkpoint; make
 *              room on the disk. The weights are untouched
 *     prepare  rename the list to the patch file, and make that durable; make the pages
 *              that will be stored to present and writable
 *     apply    do the stores. This is what an engine pauses for
 *     finish   sync the weights; read back; remove the patch file
 *
 * Before the rename the checkpoint is the old version, and what is staged is dropped by
 * the next open. From then until finish is done the patch file is there, and the next
 * open does its stores once more. A lock keeps two holders apart; it ends with its
 * process. docs/DESIGN.md, section 6, has the argument. One thread at a time uses a
 * place.
 */
#ifndef DW_WEIGHTS_PLACE_H
#define DW_WEIGHTS_PLACE_H

#include "weights/own_files.h"
#include "codec/parts.h"

typedef struct dw_place dw_place;

/* Sets *RECOVERED, which may be NULL, where an interrupted run was finished. DW_CONFLICT
 * where the checkpoint is held already. */
dw_status dw_place_open(dw_place **out, const char *path, unsigned n_threads,
                        bool *recovered, dw_error *err);

/* Lets go, wherever it was: what is only staged is dropped, what is applied and not
 * finished is finished by the next open. Accepts NULL. */
void dw_place_close(dw_place *place);

/* Finishes an interrupted run, if there was one, and lets go: open and close, without the
 * map where there is nothing to do. */
dw_status dw_place_recover(const char *path, unsigned n_threads, bool *recovered,
                           dw_error *err);

/* As dw_checkpoint_check. */
dw_status dw_place_check(const dw_place *place, dw_error *err);

/* As dw_checkpoint_identity. */
uint64_t dw_place_files(const dw_place *place);

/* Whether the files are the place's only (own_files.h). What is staged is prepared only
 * then. What an interrupted run left is finished in a private copy, or refused if the
 * weights are kept elsewhere. */
dw_ownership dw_place_judge(const dw_place *place, dw_error *err);

/* As dw_files_make_own: the place is to be closed and opened anew then. */
dw_status dw_place_make_own(const dw_place *place, uint64_t *n_copied, dw_error *err);

/* As dw_files_copy. */
dw_status dw_place_copy(const dw_place *place, const char *dir, dw_error *err);

/* Removes the files, and the stores to them that are not done. */
dw_status dw_place_remove_files(const dw_place *place, dw_error *err);

/* The weights, writable and shared with the files. Valid until close. */
const dw_tensor *dw_place_tensors(const dw_place *place, size_t *n_tensors);

/* Stages a version, instead of what was staged before, which is gone also where this
 * fails. Where GOAL has a digest and the parts cover the model, they must lead to it;
 * where they cover less, the caller, who knows the rest, checks new_digests. PROGRESS may
 * be NULL. DW_INVALID between prepare and finish. */
dw_status dw_place_stage(dw_place *place, const dw_part *parts, size_t n_parts,
                         const dw_patch_goal *goal, const dw_progress *progress,
                         dw_error *err);

/* Stages the list that is staged at FROM, a place whose weights are the same. */
dw_status dw_place_stage_same(dw_place *place, const dw_place *from, dw_error *err);

/* The file that holds what is staged, under the name it has now: prepare gives it
 * another. NULL if nothing is staged, and after finish. */
const char *dw_place_staged_path(const dw_place *place);

/* Whether there is only forward. */
bool dw_place_is_prepared(const dw_place *place);

/* Drops what is staged. DW_INVALID once it is prepared. */
dw_status dw_place_discard(dw_place *place, dw_error *err);

/* Makes what is staged durable, and does all that takes time or can fail before the
 * stores. May be called again if it failed. */
dw_status dw_place_prepare(dw_place *place, dw_error *err);

/* Does the stores; prepares first if that was not done. May be called again if it
 * failed. */
dw_status dw_place_apply(dw_place *place, dw_error *err);

/* Makes the stores durable, and proves them: with SWEEP by reading all weights, where the
 * goal has a digest; else by reading what was stored. May be called again where it
 * failed. */
dw_status dw_place_finish(dw_place *place, bool sweep, dw_error *err);

#endif
