/* Snapshots: the weights that a follower keeps in a directory, read in place.
 *
 * The files are mapped, so that an update is seen with no copy and no reload. control.h
 * tells how a reader and the writer keep out of each other's way; here is a reader that
 * does it.
 *
 * A handle belongs to one thread at a time; open one for each thread that reads.
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
    const dw_tensor *tensors; /* names ascending; read-only. They stay where they are, one
                                 place for each copy, as long as mark.files is the same */
    size_t n_tensors;
    dw_control_mark mark;
} dw_snapshot_view;

/* Maps what the follower keeps in DIR. DW_NOT_FOUND where there is no control block or no
 * version yet; DW_UNAVAILABLE where the writer died in the middle of a write, or where a
 * power loss may have interrupted one: it is to be started again first. DW_CONFLICT where
 * every slot is taken. Where the control block may not be written (a read-only mount),
 * the snapshot is opened to look twice alone. */
DW_API dw_status dw_snapshot_open(dw_snapshot **out, const char *dir, dw_error *err);
DW_API void dw_snapshot_close(dw_snapshot *snapshot);

/* While it is pinned, nothing that was mapped is unmapped, for readers who keep pointers
 * to tensors between reads: where the files were made anew, a hold or look is DW_STALE.
 * Open another snapshot then. */
DW_API void dw_snapshot_pin(dw_snapshot *snapshot, bool pinned);

/* The version that would be read now, or the last one where it is being written. */
DW_API uint64_t dw_snapshot_version(const dw_snapshot *snapshot);

/* Holds the newest version: it stays as it is until dw_snapshot_release, or the next
 * hold. Waits while it is being written, at most TIMEOUT_MS: then DW_UNAVAILABLE, and the
 * text says whether the writer is still there. With two copies there is nothing to wait
 * for. DW_UNSUPPORTED where the snapshot can only be looked at twice. */
DW_API dw_status dw_snapshot_hold(dw_snapshot *snapshot, unsigned timeout_ms,
                                  dw_snapshot_view *view, dw_error *err);
DW_API void dw_snapshot_release(dw_snapshot *snapshot);

/* The other way: look now, read, and ask whether it was whole all the time. Waits as
 * dw_snapshot_hold does. */
DW_API dw_status dw_snapshot_look(dw_snapshot *snapshot, unsigned timeout_ms,
                                  dw_snapshot_view *view, dw_error *err);
DW_API bool dw_snapshot_unchanged(const dw_snapshot *snapshot,
                                  const dw_snapshot_view *view);

#ifdef __cplusplus
}
#endif

#endif
