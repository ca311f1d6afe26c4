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

#include "deltawire/follow.h"
#include "weights/replica.h"

#define DW_COPY_NAME    "copy-" /* and a digit */
#define DW_CURRENT_NAME "current"

typedef struct dw_weights {
    dw_replica *now;  /* the copy to read */
    dw_replica *twin; /* the other one, or NULL */

    /* two copies: PREPARED once the twin is at the next version, APPLIED once it is the
     * one to read; else NONE, and the copies know */
    dw_update_state both;

    /* a directory */
    char *into;
    char *weights_dir; /* or NULL */
    int lock;
    dw_control_writer *control;
    unsigned reader_wait_ms;
    uint64_t n_private; /* files that were links, and were replaced with private copies */
} dw_weights;

/* ---- opening ---- */

/* As dw_replica_open_memory. */
dw_status dw_weights_open_memory(dw_weights **out, const dw_tensor *table,
                                 size_t n_tensors, const dw_tensor *memory, bool empty,
                                 unsigned n_threads, dw_error *err);

/* As dw_replica_open_widened, of the tensors that OPTIONS name. */
dw_status dw_weights_open_widened(dw_weights **out, const dw_tensor *table,
                                  size_t n_tensors, const dw_follow_options *options,
                                  dw_error *err);

/* Makes the directory INTO, and those above it, if it is not there. Never DW_NOT_FOUND:
 * to callers that means that the stream is not there yet. */
dw_status dw_weights_make_dir(const char *into, dw_error *err);

/* Locks the directory INTO, open as FD, for as long as that is. DW_CONFLICT if another
 * process has the lock. */
dw_status dw_weights_take_lock(int fd, const char *into, dw_error *err);

/* Opens the directory that OPTIONS name, which is made if it is not there. Of two copies
 * the one is read that an interrupted run was to reach, else the newer one of STREAM.
 * IS_OWN is that of dw_replica_dir. */
dw_status dw_weights_open_dir(dw_weights **out, const dw_tensor *table, size_t n_tensors,
                              const char *stream, const dw_follow_options *options,
                              bool is_own, dw_error *err);

/* Stands in for weights that cannot be opened: no version, and no tensor has data. */
dw_status dw_weights_open_none(dw_weights **out, const dw_tensor *table, size_t n_tensors,
                               const char *into, dw_error *err);
void dw_weights_close(dw_weights *weights);

/* Takes the directory as the follower's: it gets a control block if it has none, and
 * private copies in place of links. Until then only an interrupted run is finished in
 * it. */
dw_status dw_weights_accept(dw_weights *weights, dw_error *err);

/* Makes the two copies the same, if they are not and no update is under way; removes what
 * an interrupted run left in the records. */
dw_status dw_weights_align(dw_weights *weights, dw_error *err);

/* ---- versions ---- */

/* How far the weights are on their way to the next version. */
dw_update_state dw_weights_update(const dw_weights *weights);

/* The copy that is still to get what is staged: its `next` is that version. */
const dw_replica *dw_weights_pending(const dw_weights *weights);

/* As those of a replica, for all copies. */
dw_status dw_weights_adopt(dw_weights *weights, const dw_position *position,
                           dw_error *err);
dw_status dw_weights_fill(dw_weights *weights, const dw_position *position,
                          dw_fill_fn source, void *context, dw_error *err);
dw_status dw_weights_stage(dw_weights *weights, const dw_position *position,
                           const dw_objects *objects, const dw_blob *blobs,
                           const dw_progress *progress, dw_error *err);
dw_status dw_weights_stage_copy(dw_weights *weights, const dw_position *position,
                                const dw_tensor *source, const dw_progress *progress,
                                dw_error *err);

/* Stages MODEL, the weights of POSITION: as a patch to the files of a directory, or as it
 * is for memory, which then takes it. */
dw_status dw_weights_stage_model(dw_weights *weights, const dw_position *position,
                                 dw_scratch_model *model, const dw_progress *progress,
                                 dw_error *err);
dw_status dw_weights_discard(dw_weights *weights, dw_error *err);
dw_status dw_weights_prepare(dw_weights *weights, bool sweep, dw_error *err);
dw_status dw_weights_apply(dw_weights *weights, bool sweep, dw_error *err);
dw_status dw_weights_finish(dw_weights *weights, bool sweep, dw_error *err);

/* ---- faults from outside ---- */

/* Reads the next share of the weights and compares it with their digests: all of them
 * within N_VERSIONS calls; 0: nothing. If they were changed, they are at no version any
 * more, and the next stage brings them to one from an anchor: DW_CORRUPT. A damaged twin
 * is made the same again by the next stage. */
dw_status dw_weights_sweep(dw_weights *weights, unsigned n_versions, dw_error *err);

/* DW_CONFLICT if the directory, a file of the weights or the control block is not the one
 * that is open: somebody replaced or removed it, or gave a file a second name. DW_IO if
 * a file shrank. */
dw_status dw_weights_check_files(const dw_weights *weights, dw_error *err);

/* As dw_replica_drop_shrunk, for both copies. */
dw_status dw_weights_drop_shrunk(const dw_weights *weights, dw_error *err);

/* ---- inside ---- */

/* Makes `current` name the copy to read, and links into the copies what else a checkpoint
 * has (weights_open.c). */
dw_status dw_weights_link(const dw_weights *weights, dw_error *err);

#endif
