/* Following: brings weights to versions of a stream.
 *
 *     dw_follower_open     opens a directory, or tensors in memory
 *     dw_follower_poll     asks for the newest version
 *     dw_follower_stage    fetches, decodes and proves a step; touches nothing
 *     dw_follower_prepare  makes the patch durable; readers see nothing yet
 *     dw_follower_apply    stores the values at memory speed: engines pause for this
 *     dw_follower_finish   syncs, reads back, removes the patch
 *
 * dw_follower_sync does all of it. If something fails, the weights stay at their version,
 * which dw_follower_version returns, unless they were damaged before.
 *
 * Before and after each call the follower compares the directory and its files with those
 * that it opened. If somebody replaced or removed them, the call returns DW_CONFLICT and
 * the follower has no version. The next stage or sync opens the new directory, and fills
 * it if it is empty.
 *
 * A version may have companion files (stream.h). A directory gets those of the version
 * where a sync stops: they are fetched before the first weight changes, and installed
 * before the weights become that version.
 *
 * A follower belongs to one thread at a time. It has threads of its own that fetch ahead.
 */
#ifndef DELTAWIRE_FOLLOW_H
#define DELTAWIRE_FOLLOW_H

#include <string.h>

#include "deltawire/control.h"
#include "deltawire/tensor.h"
#include "deltawire/base.h"
#include "deltawire/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_follower dw_follower;

typedef struct dw_follow_options {
    size_t struct_bytes; /* set by dw_follow_options_init */
    const char *into;    /* a checkpoint directory. It is created if it does not exist,
                            filled if it is empty, and patched in place if it holds a
                            version of the stream. Other contents are refused. A file that
                            is a link or has several names is replaced with a copy first:
                            the other file stays as it is */
    const dw_tensor *tensors; /* or, if INTO is NULL: tensors in memory, with the names,
                                 types and shapes of the stream. If their digest is that
                                 of version 0, of the head or of AT, they are that
                                 version. Else they are replaced, but only by a version
                                 that was fetched and proven first, which takes the size
                                 of the model in SPOOL_DIR */
    size_t n_tensors;         /* They may be on devices (tensor.h): before open and before
                                 apply, wait until no work of yours on the device uses
                                 them. After a failed apply their version is known only
                                 if dw_follower_version still names one */
    bool tensors_empty; /* the memory holds nothing and nobody reads it. The first version
                           is fetched right into it, before it is proven and without a
                           spool. Until then dw_follower_version returns DW_NO_VERSION */
    bool widen;  /* F32 tensors on the host may follow BF16 tensors of the stream. Each
                    weight is widened, which is exact. Only for models that nobody trains:
                    other values count as damage and are replaced. This takes the
                    size of the BF16 tensors in SPOOL_DIR until close, and
                    dw_follower_tensors returns those */
    uint64_t at; /* of TENSORS: the version that they may be; default DW_NO_VERSION */
    const char *base;      /* the base, if the stream has one */
    const char *spool_dir; /* for data that does not fit in memory: objects above 16 MiB,
                              and a whole model while it is proven, in files without a
                              name. NULL: INTO/.deltawire, or TMPDIR, or /tmp */
    unsigned reader_wait_ms; /* how long an apply waits for readers that hold the weights
                                (control.h) before it returns DW_UNAVAILABLE; default
                                10,000 */
    dw_trust trust;
    const char *id;       /* report as followers/ID.json; NULL: do not report */
    unsigned sweep_every; /* compare all weights with their digests within N versions, a
                             share after each; default 64, 0: never. Weights that somebody
                             changed are DW_CORRUPT and have no version: the next stage
                             brings them to one from an anchor */
    unsigned n_threads;
    uint64_t max_ahead_bytes; /* of objects fetched ahead; default 32 MiB */
    /* Opens the store of the stream that this one forks from. The follower closes it.
     * NULL: dw_store_open without options. */
    dw_status (*open_store)(void *context, dw_store **out, const char *url,
                            dw_error *err);
    void *open_context;
    bool no_files; /* leave companion files (stream.h) alone. Else those of the version
                      are installed in INTO. Files of the user's are never replaced */
} dw_follow_options;

static inline void dw_follow_options_init(dw_follow_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_bytes = sizeof *options;
    options->at = DW_NO_VERSION;
    options->reader_wait_ms = 10000;
    options->sweep_every = 64;
    options->max_ahead_bytes = 32u << 20;
}

/* Opens the stream and the weights. Finishes an apply that a killed process left. The
 * weights may be at no version yet. */
DW_API dw_status dw_follower_open(dw_follower **out, dw_store *store,
                                  const dw_follow_options *options, dw_error *err);
DW_API void dw_follower_close(dw_follower *follower);

DW_API dw_stream *dw_follower_stream(dw_follower *follower); /* borrowed */

/* The version of the weights, or DW_NO_VERSION. */
DW_API uint64_t dw_follower_version(const dw_follower *follower);

/* The weights, in the order of dw_stream_tensors. They are valid until close. After a
 * DW_CONFLICT because files were replaced they are valid until the next call. */
DW_API const dw_tensor *dw_follower_tensors(const dw_follower *follower,
                                            size_t *n_tensors);

/* Asks for the newest version: usually two small requests. */
DW_API dw_status dw_follower_poll(dw_follower *follower, uint64_t *newest, dw_error *err);

/* Polls until there is a version above that of the weights. If TIMEOUT_MS pass first it
 * returns DW_OK with the *NEWEST there is, or DW_NOT_FOUND if there is no version. Polls
 * often at first, then less, at least every MAX_WAIT_MS. PROGRESS can cancel it. */
DW_API dw_status dw_follower_wait(dw_follower *follower, uint64_t *newest,
                                  unsigned timeout_ms, unsigned max_wait_ms,
                                  const dw_progress *progress, dw_error *err);

/* Fetches, decodes and proves the next step of the cheapest route to GOAL, a version or
 * DW_NEWEST. *STAGED takes the version that the step leads to, or the version of the
 * weights if there is nothing to do. If a step is collected or damaged, another route is
 * tried. */
DW_API dw_status dw_follower_stage(dw_follower *follower, uint64_t goal, uint64_t *staged,
                                   const dw_progress *progress, dw_error *err);

/* Makes the patch durable, and does all slow work that can be done before the stores.
 * From now on the version will be reached, also after a crash, and no other version can
 * be staged before dw_follower_finish. dw_follower_apply calls it if the caller did
 * not. */
DW_API dw_status dw_follower_prepare(dw_follower *follower, dw_error *err);

/* Stores the new values. DW_UNAVAILABLE if a reader holds the weights for too long: call
 * it again. After it the weights are those of the staged version but not yet synced:
 * engines can go on. */
DW_API dw_status dw_follower_apply(dw_follower *follower, dw_error *err);

/* How far the weights are on their way to the next version. */
typedef enum dw_update_state {
    DW_UPDATE_NONE,     /* nothing is staged */
    DW_UPDATE_FILLED,   /* an empty target was filled while it was staged: the weights are
                           that version, and only finish is left */
    DW_UPDATE_STAGED,   /* the patch is written; the next stage drops it */
    DW_UPDATE_PREPARED, /* the patch file has its name: there is only forward */
    DW_UPDATE_APPLIED,  /* the stores are done: finish is left */
} dw_update_state;

/* Where the update is. Only the follower knows that, also after a call that failed or was
 * interrupted: callers ask instead of counting their calls. */
typedef struct dw_update {
    dw_update_state state;
    uint64_t version;  /* that it leads to; DW_NO_VERSION if nothing is staged */
    dw_digest digest;  /* of that version */
    const char *patch; /* as a file, for processes that apply it themselves. It exists
                          until dw_follower_finish; dw_follower_prepare gives it another
                          name. NULL for weights in memory, or if nothing is staged */
    bool will_fill;    /* nothing is staged, and the next stage writes to the caller's
                          memory, which holds no weights */
} dw_update;
DW_API dw_update dw_follower_update(const dw_follower *follower);

/* The caller's memory lies elsewhere now: TENSORS take the place of those in
 * dw_follow_options, until close. All of them are read, and must hold what the follower
 * has in the old ones: the version of the weights, or the one that is applied. DW_STALE
 * with the name of a tensor if not: then the follower stays with the old ones. If it has
 * no version, the new ones may hold anything. On devices, what is staged is dropped, and
 * DW_INVALID if it is prepared. */
DW_API dw_status dw_follower_move(dw_follower *follower, const dw_tensor *tensors,
                                  size_t n_tensors, dw_error *err);

/* The digest of the weights' version; 0 if they have none. */
DW_API dw_digest dw_follower_state(const dw_follower *follower);

/* The checkpoint directory, INTO. NULL for weights in memory. */
DW_API const char *dw_follower_dir(const dw_follower *follower);

/* Sets *PENDING if an apply to INTO was interrupted, so that dw_follower_open will write
 * weights at once: engines that read them must pause first. Writes nothing. */
DW_API dw_status dw_follower_pending(const char *into, bool *pending, dw_error *err);

/* Syncs the weights, reads them back and removes the patch. If it fails, call it again.
 */
DW_API dw_status dw_follower_finish(dw_follower *follower, dw_error *err);

typedef struct dw_follow_report {
    uint64_t from;    /* DW_NO_VERSION: from nothing */
    uint64_t version; /* of the weights now */
    uint64_t n_steps; /* of the route */
    uint64_t n_objects;
    uint64_t n_bytes; /* fetched */
    uint64_t n_changed;
    uint64_t fetch_ms;
    uint64_t stage_ms;
    uint64_t apply_ms;
    uint64_t n_private; /* files that were links or had several names, and were replaced
                           with copies */
    uint64_t n_files_installed; /* companion files that are new or were replaced */
    uint64_t n_files_removed;   /* ... that the version does not have any more */
    uint64_t n_files_kept;      /* ... that are not installed now, because the user has
                                   another file of that name */
    uint64_t n_healed; /* how often the weights of the directory were found damaged, and
                          were or are to be fetched again */
    uint64_t n_stray;  /* patches in the directory that its state file did not name, and
                          that were removed */
    dw_times times;    /* dw_follow_moment, of the newest step */
    uint64_t reserved[4];
} dw_follow_report;

/* The paths of the user's files that n_files_kept counts. They live until the next call
 * with this follower. */
DW_API const char *const *dw_follower_files_kept(const dw_follower *follower,
                                                 size_t *n_files);

/* Brings the weights to GOAL, a version or DW_NEWEST: stage, prepare, apply and finish,
 * step by step. Companion files of GOAL that the directory lacks are installed, also if
 * the weights are at GOAL already. A GOAL below the weights' version starts from an
 * anchor. REPORT is filled also if this fails, and may be NULL. */
DW_API dw_status dw_follower_sync(dw_follower *follower, uint64_t goal,
                                  const dw_progress *progress, dw_follow_report *report,
                                  dw_error *err);

/* The totals since open; `from` is the version at that time. */
DW_API void dw_follower_totals(const dw_follower *follower, dw_follow_report *out);

/* Reports to followers/ID.json. STATUS is a word, MESSAGE a line or NULL. An error here
 * is no reason to stop. If STATUS is "stopped" and the weights are in memory, the report
 * names no version: the memory ends with the process, and the stream need keep nothing
 * for it. */
DW_API dw_status dw_follower_report(dw_follower *follower, const char *status,
                                    const char *message, dw_error *err);

#define DW_FOLLOWER_ID_SIZE 65

/* Makes an id to report as: the machine's name and a hash of the path of INTO. For
 * weights in memory INTO is NULL, and N distinguishes the followers on the machine. */
DW_API void dw_follower_id(char out[DW_FOLLOWER_ID_SIZE], const char *into, unsigned n);

/* ---- snapshots: reading a directory that a follower updates ---- */

/* Snapshots: reads the weights of a directory that a follower updates.
 *
 * The files are mapped, so a reader sees an update without a copy or a reload. control.h
 * describes how a reader and the writer keep out of each other's way.
 *
 * A handle belongs to one thread at a time: open one for each thread that reads. */

typedef struct dw_snapshot dw_snapshot;

typedef struct dw_snapshot_view {
    uint64_t version;
    dw_digest state;
    const dw_tensor *tensors; /* by name; read-only. Their addresses stay the same as
                                 long as mark.files is the same */
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
