/* Weights that go from version to version of a stream, in the caller's memory or in a
 * directory. This module owns the transaction from one version to the next: a kill at
 * any instant leaves the old version or the new one.
 *
 *     open      lock the directory; finish what a killed run left; map the weights
 *     stage     decode and prove; write the patch; the weights stay the same
 *     prepare   give the patch file its name, durably: from here there is only forward
 *     apply     store the new values. An engine pauses only for this
 *     finish    sync the weights; read them back; remove the patch; write the record
 *     close     drop what is only staged; leave what is prepared to the next open
 *
 * A verb that failed may be called again. Prepare and apply do nothing if they are done;
 * apply prepares first if needed. Only one thread at a time may use the weights.
 *
 * FILES. The directory holds W, and .deltawire in it the others (own_dir.h)
 *
 *     W   model.safetensors, or shards and their index
 *     S   the patch while it is staged (format: patch_file.c). Its name is
 *         model.safetensors.staged, or `staged` if W is several files
 *     P   the same file once it is prepared: `patch` instead of `staged`
 *     R   state.json: the record. It names the version of W and, during an update,
 *         the next one and P with its hash (position.h)
 *     C   control: the control block, for processes that map W (control.h). Its
 *         sequence is odd while W is written
 *
 * STATES (dw_update_state in follow.h), the files in each of them, and what the next open
 * does after a crash. A "-" means that the file is not there.
 *
 *     state       W        S    P    R            C          the next open
 *     NONE        old      -    -    old          old        has nothing to do
 *     STAGED      old      S    -    old          old        removes S
 *     (preparing) old      S    -    old, next    old        removes S; W is still old
 *     PREPARED    old      -    P    old, next    old        applies P; while its name is
 *                                                            not durable, it may be S
 *     (applying)  a mix    -    P    old, next    odd        applies P
 *     APPLIED     new      -    P    old, next    new        applies P, which may not be
 *                                                            durable in W
 *     (finishing) new      -    -    old, next    new        digests W: it is next
 *     NONE        new      -    -    new          new        has nothing to do
 *
 * The next open always digests W and compares that with R, so it does not matter if R is
 * older than W. P holds the old and the new value of each element that it replaces; it is
 * applied only if R names it, and each byte of such an element in W is the old or the
 * new one. A patch that R does not name is removed. The order
 * of the writes is an invariant: R names the next version before S becomes P (if W is
 * damaged, after); the name of P is durable before the first store; C is durable before
 * P is removed; P is removed before R names only the new version.
 *
 * AN EMPTY DIRECTORY is filled. A patch that is left in it is removed first: it is not
 * for the new weights. W is written under a temporary name, digested and synced; R names
 * only the next version; W gets its name; R names the version. A crash leaves no W, or
 * one that has the digest of the next version.
 *
 * MEMORY has the same states, with the patch in memory and no files. If it is on a
 * device, apply can fail. The old values are put back, and the weights are the old
 * version if reading them proves it, else none. What is staged stays, and apply may be
 * called again; if somebody changed the weights, it is dropped, and they are no version.
 */
#ifndef DW_WEIGHTS_TARGET_H
#define DW_WEIGHTS_TARGET_H

#include "deltawire/checkpoint.h"
#include "deltawire/follow.h"
#include "stream/cut.h"
#include "weights/position.h"
#include "weights/proven.h"
#include "weights/whole_model.h"

typedef struct dw_target dw_target;

/* ---- opening ---- */

/* Memory of the caller's: same names, types and shapes as TABLE, in any order. The
 * contents are digested, and are no version until dw_target_adopt. If it is EMPTY, they
 * are not read, and the memory may be filled directly. */
dw_status dw_target_open_memory(dw_target **out, const dw_tensor *table, size_t n_tensors,
                                const dw_tensor *memory, bool empty, unsigned n_threads,
                                dw_error *err);

/* The memory that OPTIONS name. It may have F32 tensors in place of BF16 ones of the
 * stream (widen.h). */
dw_status dw_target_open_widened(dw_target **out, const dw_tensor *table,
                                 size_t n_tensors, const dw_follow_options *options,
                                 dw_error *err);

/* The directory that OPTIONS name, which is made if it is not there. Finishes an
 * interrupted update. DW_MISMATCH if it holds another model, DW_CONFLICT if another
 * process keeps it up to date. IS_OWN: only this program's weights can be there. If they
 * are no checkpoint of the model, they are removed, and the directory is empty; if only
 * values are wrong, they stay and are no version. STREAM: its weights that are damaged
 * are no error either. What can be mapped is no version, and may be replaced; the rest
 * counts as empty, and stays until the directory is filled. Weights that somebody else
 * put there are DW_CORRUPT. NULL: nothing is replaced. */
dw_status dw_target_open_dir(dw_target **out, const dw_tensor *table, size_t n_tensors,
                             const char *stream, const dw_follow_options *options,
                             bool is_own, dw_error *err);

/* A substitute for weights that cannot be opened: no version, and no tensor has data. */
dw_status dw_target_open_none(dw_target **out, const dw_tensor *table, size_t n_tensors,
                              const char *into, dw_error *err);

/* Drops an update that is only staged; the next open finishes one that is prepared.
 * Accepts NULL. */
void dw_target_close(dw_target *target);

/* Makes the directory the follower's: makes a control block if there is none, and private
 * copies of files that are links. Until then, open only finishes an interrupted run. */
dw_status dw_target_accept(dw_target *target, dw_error *err);

/* If the record names two versions and no update is under way, rewrites it with the one
 * that the weights are. */
dw_status dw_target_forget_next(dw_target *target, dw_error *err);

/* ---- directories that are not open ---- */

/* Makes the directory INTO, and those above it, if it is not there. Never DW_NOT_FOUND:
 * to callers that means that the stream is not there yet. */
dw_status dw_target_make_dir(const char *into, dw_error *err);

/* Locks the directory INTO, open as FD, until FD is closed. DW_CONFLICT if another
 * process has the lock. */
dw_status dw_target_take_lock(int fd, const char *into, dw_error *err);

/* Whether a run was interrupted, so that the next open of INTO writes to its weights. */
dw_status dw_target_interrupted(const char *into, bool *interrupted, dw_error *err);

/* Whether that update can be finished: reads its patch, and checks its seal and hashes,
 * that it fits the weights, and that it leads to the version that the record names.
 * Writes nothing. */
dw_status dw_target_check_interrupted(const char *into, unsigned n_threads,
                                      dw_error *err);

/* The version that the weights in INTO are: one that their record names, or DW_CORRUPT.
 * Reads all of them. */
dw_status dw_target_check_whole(dw_position *at, const char *into, unsigned n_threads,
                                dw_error *err);

/* Finishes an interrupted update of the directory that OPTIONS name. Needs no stream. */
dw_status dw_target_recover(const dw_follow_options *options, dw_error *err);

/* Reads from its record which version the directory INTO is. */
dw_status dw_target_recovered(dw_position *at, const char *into, dw_error *err);

/* ---- the weights as they are ---- */

const dw_position *dw_target_at(const dw_target *target);

/* The digest of all weights, whether or not they are a version. */
dw_digest dw_target_state(const dw_target *target);

/* In the order of the stream's table: names ascending. */
const dw_tensor *dw_target_tensors(const dw_target *target, size_t *n_tensors);
const dw_digest *dw_target_digests(const dw_target *target);

/* The directory; NULL for memory. */
const char *dw_target_dir(const dw_target *target);

/* Whether dw_target_fill may be called: there are no weights that anybody reads. */
bool dw_target_is_empty(const dw_target *target);

/* Whether there are weights that may be a version, but it is not known which. */
bool dw_target_is_unknown(const dw_target *target);

/* How the record of the directory was when it was opened; DW_RECORD_DAMAGED once the
 * weights were found changed, DW_RECORD_NONE if they were removed. */
dw_record_kind dw_target_record(const dw_target *target);

/* Whether weights of no version may be replaced with others: they are this program's, and
 * were damaged. */
bool dw_target_may_replace(const dw_target *target);

/* Whether the open, or a sweep, found the weights damaged. Only for a directory that was
 * opened with IS_OWN. */
bool dw_target_was_damaged(const dw_target *target);

/* Whether the open found weights of the stream damaged. *WAS: the version that their
 * record named. */
bool dw_target_is_hurt(const dw_target *target, dw_position *was);

/* How many files were links and were replaced with private copies. */
uint64_t dw_target_n_private(const dw_target *target);

/* Whether the open removed a patch that the record did not name. */
bool dw_target_had_stray(const dw_target *target);

/* ---- versions ---- */

/* Declares that the weights are POSITION. DW_MISMATCH if they have another digest. */
dw_status dw_target_adopt(dw_target *target, const dw_position *position, dw_error *err);

/* Declares that memory holds no version. It is in use, so the next version is staged and
 * not filled in. */
void dw_target_forget(dw_target *target);

/* Declares that nobody reads memory until it holds a version: it may be filled. */
void dw_target_allow_fill(dw_target *target);

/* The memory lies elsewhere now, with the same contents (dw_follower_move). */
dw_status dw_target_relocate(dw_target *target, const dw_tensor *memory, size_t n_tensors,
                             dw_error *err);

/* Fills empty weights from SOURCE. The result must have the digest of POSITION. A
 * directory is filled completely or not at all. Then the state is FILLED, until finish or
 * the next stage. */
dw_status dw_target_fill(dw_target *target, const dw_position *position,
                         dw_fill_fn source, void *context, dw_error *err);

/* Sets that state: the weights became a version with nothing to store. */
void dw_target_arrive(dw_target *target);

/* Brings the weights to POSITION by deltas that were proven against them. Memory that
 * failed half way is no version. */
dw_status dw_target_move(dw_target *target, const dw_position *position,
                         const dw_proven *proven, dw_error *err);

/* ---- the update ---- */

dw_update_state dw_target_update(const dw_target *target);

/* The version that is staged or filled, until it is finished, and how many elements it
 * replaces. */
const dw_position *dw_target_next(const dw_target *target);
uint64_t dw_target_n_changed(const dw_target *target);

/* The patch file under its present name, which prepare changes. NULL for memory, if
 * nothing is staged, and once it is removed. */
const char *dw_target_staged_path(const dw_target *target);

/* Stages deltas from the version that the weights are at: BLOBS are the objects of a
 * step, in its order. */
dw_status dw_target_stage(dw_target *target, const dw_position *position,
                          const dw_objects *objects, const dw_blob *blobs,
                          const dw_progress *progress, dw_error *err);

/* The same for deltas that are open already. */
dw_status dw_target_stage_deltas(dw_target *target, const dw_position *position,
                                 const dw_objects *objects, dw_delta *const *deltas,
                                 dw_error *err);

/* Stages the difference between the weights and SOURCE, the weights of POSITION. */
dw_status dw_target_stage_copy(dw_target *target, const dw_position *position,
                               const dw_tensor *source, const dw_progress *progress,
                               dw_error *err);

/* Stages MODEL, the weights of POSITION: as a patch to the files of a directory. Memory
 * takes MODEL itself: then apply copies all of it, and neither memory nor time depend on
 * how much differs. */
dw_status dw_target_stage_model(dw_target *target, const dw_position *position,
                                dw_scratch_model *model, const dw_progress *progress,
                                dw_error *err);

/* Drops what is staged. DW_INVALID once it is prepared. */
dw_status dw_target_discard(dw_target *target, dw_error *err);

dw_status dw_target_prepare(dw_target *target, dw_error *err);
dw_status dw_target_apply(dw_target *target, dw_error *err);

/* With SWEEP the stores are proven by reading all weights, else by reading only what was
 * stored. */
dw_status dw_target_finish(dw_target *target, bool sweep, dw_error *err);

/* ---- faults from outside ---- */

/* Reads the next share of the weights and compares it with their digests: all of them
 * within N_VERSIONS calls; 0: nothing. DW_CORRUPT if they were changed. Then they are no
 * version, and the next stage starts from an anchor. */
dw_status dw_target_sweep(dw_target *target, unsigned n_versions, dw_error *err);

/* The caller found that the weights were changed: they are no version, and readers stop.
 * Drops what is staged. */
void dw_target_distrust(dw_target *target);

/* DW_CONFLICT if the directory, a file of the weights or the control block is not the one
 * that is open: somebody replaced or removed it, or gave a file a second name. DW_IO if
 * a file shrank. */
dw_status dw_target_check_files(const dw_target *target, dw_error *err);

/* DW_IO if a mapped file shrank. Cheap enough for every access. */
dw_status dw_target_check_size(const dw_target *target, dw_error *err);

/* Stops all readers: the files are not those that the control block describes. */
void dw_target_stop_readers(dw_target *target);

#endif
