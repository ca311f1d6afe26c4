/* Snapshots: reads the weights of a directory that a follower updates. Stable.
 *
 * The files are mapped, so a reader sees an update without a copy or a reload. control.h
 * describes how a reader and the writer keep out of each other's way.
 *
 * A handle belongs to one thread at a time: open one for each thread that reads.
 */
#ifndef DELTAWIRE_SNAPSHOT_H
#define DELTAWIRE_SNAPSHOT_H

#include "deltawire/control.h"
#include "deltawire/digest.h"
#include "deltawire/error.h"
#include "deltawire/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_snapshot dw_snapshot;

typedef struct dw_snapshot_view {
    uint64_t version;
    dw_digest state;
    const dw_tensor *tensors; /* by name; read-only. Their addresses, one for each copy,
                                 stay the same as long as mark.files is the same */
    size_t n_tensors;
    dw_control_mark mark;
} dw_snapshot_view;

/* Maps the weights in DIR. DW_NOT_FOUND if there is no control block or no version yet.
 * DW_UNAVAILABLE if the writer died during a write, or a power loss may have interrupted
 * one: start the writer again first. DW_CONFLICT if every slot is taken. If the control
 * block cannot be written (a read-only mount), only dw_snapshot_look works. */
DW_API dw_status dw_snapshot_open(dw_snapshot **out, const char *dir, dw_error *err);
DW_API void dw_snapshot_close(dw_snapshot *snapshot);

/* While it is pinned, nothing is unmapped: for readers that keep pointers to tensors
 * between reads. If the writer made new files, a hold or look returns DW_STALE: open
 * another snapshot then. */
DW_API void dw_snapshot_pin(dw_snapshot *snapshot, bool pinned);

/* The version that a read would get now; while it is being written, the last one. */
DW_API uint64_t dw_snapshot_version(const dw_snapshot *snapshot);

/* Holds the newest version: it stays as it is until dw_snapshot_release or the next hold.
 * Waits while it is being written, at most TIMEOUT_MS; then it returns DW_UNAVAILABLE,
 * and the text reports if the writer still runs.
 * DW_UNSUPPORTED if only dw_snapshot_look works. */
DW_API dw_status dw_snapshot_hold(dw_snapshot *snapshot, unsigned timeout_ms,
                                  dw_snapshot_view *view, dw_error *err);
DW_API void dw_snapshot_release(dw_snapshot *snapshot);

/* Reads without a hold: look, read, then call dw_snapshot_unchanged. If that returns
 * false, the data may be a mix of two versions: read again. Waits as dw_snapshot_hold
 * does. */
DW_API dw_status dw_snapshot_look(dw_snapshot *snapshot, unsigned timeout_ms,
                                  dw_snapshot_view *view, dw_error *err);
DW_API bool dw_snapshot_unchanged(const dw_snapshot *snapshot,
                                  const dw_snapshot_view *view);

#ifdef __cplusplus
}
#endif

#endif
