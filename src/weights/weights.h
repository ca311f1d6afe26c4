/* Weights that go from version to version of a stream: in the caller's memory, in a
 * directory, or in a directory with two copies, of which one is read while the other is
 * written. A kill at any instant is harmless.
 *
 *     open      lock; finish what a killed run left; map
 *     stage     decode and prove; write the patch beside the weights, which are untouched
 *     prepare   the patch gets its name and is durable: from here there is only forward
 *     apply     the stores. This is what an engine pauses for
 *     finish    sync the weights; read them back; remove the patch; write the record
 *     close     what is only staged is dropped; what is prepared is left to the next open
 *
 * A verb that failed may be called again, and one that is done does nothing. Apply
 * prepares if that was not done. One thread at a time uses the weights.
 *
 * FILES. The directory of one copy holds
 *
 *     W   model.safetensors, or shards and their index. With a directory for the weights
 *         (--weights-dir) W is a link to a file there, made for this very directory
 *     S   .deltawire-staged: the patch while it is staged (format: patch_file.c)
 *     P   .deltawire-patch: the same file once it is prepared
 *     R   .deltawire-state.json: the record. It names the version that W is and, while an
 *         update is under way, the next one
 *     C   .deltawire-control: the control block, for processes that map W (control.h).
 *         Its sequence is odd while W is written. With two copies there is one block, in
 *         the directory above the copies
 *
 * STATES (dw_update_state), the files in each of them, and the next open after a crash.
 * A "-" means that the file is not there.
 *
 *     state       W        S    P    R            C          the next open
 *     NONE        old      -    -    old          old        has nothing to do
 *     STAGED      old      S    -    old          old        removes S
 *     (preparing) old      S    -    old, next    old        removes S; W is still old
 *     NAMED       old      -    P    old, next    old        applies P; if the rename was
 *                                                            lost, removes S
 *     PREPARED    old      -    P    old, next    old        applies P
 *     (applying)  a mix    -    P    old, next    odd        applies P
 *     APPLIED     new      -    P    old, next    new        applies P, which may not be
 *                                                            durable in W
 *     SYNCED      new      -    -    old, next    new        digests W: it is next
 *     NONE        new      -    -    new          new        has nothing to do
 *
 * An open always reads W and compares its digest with R, so that R never has to be newer
 * than W. P says which elements it replaces and with what: it is applied only to weights
 * that hold the old or the new value of each. The order of the writes is an invariant:
 * R before P, the name of P before the first store, C before P goes, P before R goes back
 * to one version.
 *
 * An empty directory is filled: W is written under a temporary name, digested and synced;
 * R names only the next version; W gets its name; R names it as the version. A crash
 * leaves no W, or one that the digest finds to be the next.
 *
 * TWO COPIES lie in copy-0 and copy-1; the link `current` and C name the one to read, A;
 * B is its twin. Both have the patch as S, by a hard link.
 *
 *     prepare   R of A names the next version; B goes through all states, to the new one
 *     apply     `current` and C name B: readers of A go on, new ones read B
 *     finish    once that is durable and nobody holds A, A goes through all states too
 *
 * After a crash the copy is read that the other's R names as next, else the newer one,
 * and the other one is made the same (dw_weights_align).
 *
 * MEMORY knows the same states, with the patch in memory and no files.
 */
#ifndef DW_WEIGHTS_WEIGHTS_H
#define DW_WEIGHTS_WEIGHTS_H

#include "deltawire/checkpoint.h"
#include "deltawire/follow.h"
#include "stream/cut.h"
#include "weights/position.h"
#include "weights/whole_model.h"

/* How far the weights are on their way to the next version. */
typedef enum dw_update_state {
    DW_UPDATE_NONE,     /* nothing is staged */
    DW_UPDATE_STAGED,   /* the patch is written; discard drops it */
    DW_UPDATE_NAMED,    /* the patch file has its name, which may not be durable yet.
                           From here there is only forward */
    DW_UPDATE_PREPARED, /* it is durable, and the pages to store to are present */
    DW_UPDATE_APPLIED,  /* the stores are done */
    DW_UPDATE_SYNCED,   /* they are durable and proven, and the patch file is removed; the
                           record still names two versions */
} dw_update_state;

typedef struct dw_weights dw_weights;

/* ---- opening ---- */

/* Memory of the caller's: same names, types and shapes as TABLE, in any order. The
 * contents are digested, and are no version until dw_weights_adopt. If it is EMPTY, they
 * are not read, and the memory may be filled directly. */
dw_status dw_weights_open_memory(dw_weights **out, const dw_tensor *table,
                                 size_t n_tensors, const dw_tensor *memory, bool empty,
                                 unsigned n_threads, dw_error *err);

/* The memory that OPTIONS name. F32 tensors of it may stand for BF16 ones of the stream
 * (widen.h). */
dw_status dw_weights_open_widened(dw_weights **out, const dw_tensor *table,
                                  size_t n_tensors, const dw_follow_options *options,
                                  dw_error *err);

/* The directory that OPTIONS name, which is made if it is not there. An interrupted
 * update is finished. Of two copies the one is read that an interrupted run was to
 * reach, else the newer one of STREAM. DW_MISMATCH if it holds another model,
 * DW_CONFLICT if another process keeps it up to date. IS_OWN: nobody else's weights can
 * be there; if they are damaged, they are removed, and the directory is empty. */
dw_status dw_weights_open_dir(dw_weights **out, const dw_tensor *table, size_t n_tensors,
                              const char *stream, const dw_follow_options *options,
                              bool is_own, dw_error *err);

/* Stands in for weights that cannot be opened: no version, and no tensor has data. */
dw_status dw_weights_open_none(dw_weights **out, const dw_tensor *table, size_t n_tensors,
                               const char *into, dw_error *err);

/* Drops an update that is only staged; the next open finishes one that is prepared.
 * Accepts NULL. */
void dw_weights_close(dw_weights *weights);

/* Takes the directory as the follower's: it gets a control block if it has none, and
 * private copies in place of links. Before that, only an interrupted run is finished in
 * it. */
dw_status dw_weights_accept(dw_weights *weights, dw_error *err);

/* Makes the two copies the same, if they are not and no update is under way. Then their
 * records name one version each. */
dw_status dw_weights_align(dw_weights *weights, dw_error *err);

/* ---- directories that are not open ---- */

/* Makes the directory INTO, and those above it, if it is not there. Never DW_NOT_FOUND:
 * to callers that means that the stream is not there yet. */
dw_status dw_weights_make_dir(const char *into, dw_error *err);

/* Whether DIR holds a file of a checkpoint, whole or not. */
bool dw_dir_has_weights(const char *dir);

/* Removes the weights of a copy, their patch and their record. The control block and
 * every other file stay. */
dw_status dw_weights_empty_dir(const char *dir, dw_error *err);

/* Locks the directory INTO, open as FD, until FD is closed. DW_CONFLICT if another
 * process has the lock. */
dw_status dw_weights_take_lock(int fd, const char *into, dw_error *err);

/* Whether the next open of INTO writes to its weights: a run was interrupted. */
dw_status dw_weights_interrupted(const char *into, bool *interrupted, dw_error *err);

/* Finishes an interrupted update of the directory that OPTIONS name, and makes two copies
 * the same. Needs no stream. */
dw_status dw_weights_recover(const dw_follow_options *options, dw_error *err);

/* Reads from its record which version the directory is that OPTIONS name, and sets *DIR,
 * which the caller frees with dw_free, to the directory of its weights. */
dw_status dw_weights_recovered(dw_position *at, char **dir,
                               const dw_follow_options *options, dw_error *err);

/* ---- what they are ----
 *
 * Of two copies, the one to read. */

const dw_position *dw_weights_at(const dw_weights *weights);

/* The digest of all weights, whether or not they are a version. */
dw_digest dw_weights_state(const dw_weights *weights);

/* In the order of the stream's table: names ascending. */
const dw_tensor *dw_weights_tensors(const dw_weights *weights, size_t *n_tensors);
const dw_digest *dw_weights_digests(const dw_weights *weights);

/* The directory of the copy; NULL for memory. */
const char *dw_weights_dir(const dw_weights *weights);

/* Its open files; NULL for memory and for an empty directory. */
const dw_checkpoint *dw_weights_checkpoint(const dw_weights *weights);

/* Whether dw_weights_fill may be called: there are no weights, and nobody reads them. */
bool dw_weights_is_empty(const dw_weights *weights);

/* Whether there are weights that may be a version, and nobody knows which. */
bool dw_weights_is_unknown(const dw_weights *weights);

/* How the record of the directory was when it was opened. */
dw_record_kind dw_weights_record(const dw_weights *weights);

/* Whether weights of no version may be replaced with others: they are this program's, and
 * were damaged. */
bool dw_weights_may_replace(const dw_weights *weights);

/* Whether the open, or a sweep, found the weights damaged. Only for a directory that was
 * opened with IS_OWN. */
bool dw_weights_was_damaged(const dw_weights *weights);

/* How many files were links and were replaced with private copies. */
uint64_t dw_weights_n_private(const dw_weights *weights);

/* ---- versions ---- */

/* Declares that the weights are POSITION. DW_MISMATCH if they have another digest. */
dw_status dw_weights_adopt(dw_weights *weights, const dw_position *position,
                           dw_error *err);

/* Memory holds no version. It is in use, so the next version is staged, not filled in. */
void dw_weights_forget(dw_weights *weights);

/* The same, for memory that nobody reads until it holds a version: it may be filled. */
void dw_weights_allow_fill(dw_weights *weights);

/* The caller changed the memory itself: it is POSITION now. DIGESTS are those of the
 * slices of CUT, which cover all tensors. */
void dw_weights_note(dw_weights *weights, const dw_position *position,
                     const dw_slices *cut, const dw_digest *digests);

/* Fills empty weights from SOURCE. The result must have the digest of POSITION. A
 * directory is filled completely or not at all. */
dw_status dw_weights_fill(dw_weights *weights, const dw_position *position,
                          dw_fill_fn source, void *context, dw_error *err);

/* ---- the update ---- */

dw_update_state dw_weights_update(const dw_weights *weights);

/* Of what is staged, until it is finished: the version it leads to, and how many elements
 * it replaces. */
const dw_position *dw_weights_next(const dw_weights *weights);
uint64_t dw_weights_n_changed(const dw_weights *weights);

/* The file of the patch, under the name that it has now: prepare gives it another. NULL
 * for memory, if nothing is staged, and once it is removed. */
const char *dw_weights_staged_path(const dw_weights *weights);

/* Stages deltas from the version that the weights are at: BLOBS are the objects of a
 * step, in its order. */
dw_status dw_weights_stage(dw_weights *weights, const dw_position *position,
                           const dw_objects *objects, const dw_blob *blobs,
                           const dw_progress *progress, dw_error *err);

/* The same for deltas that are open already. Only for one copy. */
dw_status dw_weights_stage_deltas(dw_weights *weights, const dw_position *position,
                                  const dw_objects *objects, dw_delta *const *deltas,
                                  dw_error *err);

/* Stages the difference between the weights and SOURCE, the weights of POSITION. */
dw_status dw_weights_stage_copy(dw_weights *weights, const dw_position *position,
                                const dw_tensor *source, const dw_progress *progress,
                                dw_error *err);

/* Stages MODEL, the weights of POSITION: as a patch to the files of a directory. Memory
 * takes MODEL itself: then apply copies all of it, and neither memory nor time depend on
 * how much differs. */
dw_status dw_weights_stage_model(dw_weights *weights, const dw_position *position,
                                 dw_scratch_model *model, const dw_progress *progress,
                                 dw_error *err);

/* Drops what is staged. DW_INVALID once it is prepared. */
dw_status dw_weights_discard(dw_weights *weights, dw_error *err);

/* The stores are proven: with SWEEP by reading all weights, else by reading what was
 * stored. */
dw_status dw_weights_prepare(dw_weights *weights, bool sweep, dw_error *err);
dw_status dw_weights_apply(dw_weights *weights, bool sweep, dw_error *err);
dw_status dw_weights_finish(dw_weights *weights, bool sweep, dw_error *err);

/* ---- faults from outside ---- */

/* Reads the next share of the weights and compares it with their digests: all of them
 * within N_VERSIONS calls; 0: nothing. If they were changed, they are at no version any
 * more, and the next stage brings them to one from an anchor: DW_CORRUPT. The next stage
 * makes a damaged twin the same again. */
dw_status dw_weights_sweep(dw_weights *weights, unsigned n_versions, dw_error *err);

/* The caller found that the weights were changed: they are at no version, and nobody is
 * to read them. Drops what is staged. Only for one copy. */
void dw_weights_distrust(dw_weights *weights);

/* DW_CONFLICT if the directory, a file of the weights or the control block is not the one
 * that is open: somebody replaced or removed it, or gave a file a second name. DW_IO if
 * a file shrank. */
dw_status dw_weights_check_files(const dw_weights *weights, dw_error *err);

/* DW_IO if a file that is mapped shrank. Cheaper, for every access. */
dw_status dw_weights_check_size(const dw_weights *weights, dw_error *err);

/* Removes the files of a copy if one of them shrank: the rest is no version, and is
 * fetched again. Files that somebody put in their place stay. */
dw_status dw_weights_drop_shrunk(const dw_weights *weights, dw_error *err);

/* Stops all readers: the files are not those that the control block describes. */
void dw_weights_stop_readers(dw_weights *weights);

#endif
