/* The weights that a follower keeps: the caller's memory, a directory, or a directory
 * with two copies of which one is read while the other is written.
 *
 *               one                          two: A is read, B is its twin
 *     stage     a list of stores             the same list beside A and B
 *     prepare   the list becomes the patch   B gets the list's stores, durable
 *     apply     the stores                   B is to be read: A is the twin now
 *     finish    durable, checked             A gets the stores, once nobody reads it
 *
 * The directory has a control block (weights/control.h) and is locked while it is open.
 */
#ifndef DW_WEIGHTS_WEIGHTS_H
#define DW_WEIGHTS_WEIGHTS_H

#include "deltawire/follow.h"
#include "weights/replica.h"

#define DW_COPY_NAME    "copy-" /* and a digit */
#define DW_CURRENT_NAME "current"

typedef struct dw_weights {
    dw_replica *now;  /* what is to be read */
    dw_replica *twin; /* the other copy, or NULL */

    /* a directory */
    char *into;
    char *weights_dir; /* or NULL */
    int lock;
    dw_control_writer *control;
    unsigned reader_wait_ms;
    uint64_t n_private; /* files that were links, and were replaced with private copies */

    enum { DW_TWIN_SAME, DW_TWIN_AHEAD, DW_TWIN_BEHIND } step; /* of two copies */
} dw_weights;

/* As dw_replica_open_memory. */
dw_status dw_weights_open_memory(dw_weights **out, const dw_tensor *table,
                                 size_t n_tensors, const dw_tensor *memory, bool empty,
                                 unsigned n_threads, dw_error *err);

/* As dw_replica_open_widened, of the tensors that OPTIONS name. */
dw_status dw_weights_open_widened(dw_weights **out, const dw_tensor *table,
                                  size_t n_tensors, const dw_follow_options *options,
                                  dw_error *err);

/* Makes the directory INTO, and those above it, if it is not there. Never DW_NOT_FOUND:
 * that means to callers that the stream is not there yet. */
dw_status dw_weights_make_dir(const char *into, dw_error *err);

/* Locks the directory INTO, open as FD, for as long as that is: DW_CONFLICT where another
 * has it. */
dw_status dw_weights_take_lock(int fd, const char *into, dw_error *err);

/* The directory OPTIONS name, which is made where it is not there. Of two copies the one
 * is read that an interrupted run was to reach, else the newer one of STREAM. IS_OWN is
 * that of dw_replica_dir. */
dw_status dw_weights_open_dir(dw_weights **out, const dw_tensor *table, size_t n_tensors,
                              const char *stream, const dw_follow_options *options,
                              bool is_own, dw_error *err);
void dw_weights_close(dw_weights *weights);

/* The directory is the follower's: it gets a control block where it has none, and private
 * copies in the place of links. Until then nothing is written to it but what an
 * interrupted run has to finish. */
dw_status dw_weights_accept(dw_weights *weights, dw_error *err);

/* A replica of nothing in the place of weights that cannot be opened: it has no version,
 * and no tensor has data. */
dw_status dw_weights_open_none(dw_weights **out, const dw_tensor *table, size_t n_tensors,
                               const char *into, dw_error *err);

/* DW_CONFLICT if the directory, a file of the weights or the control block is not the one
 * that is open: somebody replaced or removed it, or gave a file a second name. DW_IO if
 * a file shrank. */
dw_status dw_weights_check_files(const dw_weights *weights, dw_error *err);

/* As dw_replica_drop_shrunk, for both copies. */
dw_status dw_weights_drop_shrunk(const dw_weights *weights, dw_error *err);

/* Makes the two copies the same, where they are not and nothing is under way; ends what
 * an interrupted run left. */
dw_status dw_weights_align(dw_weights *weights, dw_error *err);

/* As those of a replica. */
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
dw_status dw_weights_discard(dw_weights *weights, dw_error *err);
dw_status dw_weights_prepare(dw_weights *weights, bool sweep, dw_error *err);
dw_status dw_weights_apply(dw_weights *weights, bool sweep, dw_error *err);
dw_status dw_weights_finish(dw_weights *weights, bool sweep, dw_error *err);

/* Reads the next share of the weights and compares it with their digests: all of them
 * within N_VERSIONS calls; 0: nothing. If they were changed, they are at no version any
 * more, and the next stage brings them to one from an anchor: DW_CORRUPT. A damaged twin
 * is made the same again by the next stage. */
dw_status dw_weights_sweep(dw_weights *weights, unsigned n_versions, dw_error *err);

/* The replica beside which the list of what is staged lies until it is finished. */
static inline const dw_replica *dw_weights_list(const dw_weights *w)
{
    return w->step == DW_TWIN_BEHIND ? w->twin : w->now;
}

bool dw_weights_is_prepared(const dw_weights *weights);
bool dw_weights_is_applied(const dw_weights *weights);

/* Links the current copy, and into the copies what else a checkpoint has
 * (weights_open.c). */
dw_status dw_weights_link(const dw_weights *weights, dw_error *err);

#endif
