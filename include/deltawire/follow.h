/* Following: weights are brought to versions of a stream.
 *
 *     dw_follower_open    a directory, or the caller's memory
 *     dw_follower_poll    is there something new?
 *     dw_follower_stage   fetch, decode, verify: the weights stay as they are
 *     dw_follower_commit  make what is staged durable: from here there is only forward
 *     dw_follower_apply   the stores, at memory speed: what an engine pauses for
 *     dw_follower_settle  make the stores durable, read them back, remember the position
 *
 * or, all in one, dw_follower_sync. Whatever fails, the weights stay at the version they
 * had, and that is what dw_follower_version says.
 *
 * Before and after each step, and at each poll, the directory and its files are compared
 * with those that are open. If somebody replaced or removed them, the call is DW_CONFLICT
 * and the follower has no version; the next stage or sync opens what is there then, and
 * fills it if that is nothing.
 *
 * A follower belongs to one thread at a time. Fetching ahead is done by threads of its
 * own.
 */
#ifndef DELTAWIRE_FOLLOW_H
#define DELTAWIRE_FOLLOW_H

#include "deltawire/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_follower dw_follower;

typedef struct dw_follow_options {
    const char
        *into; /* a checkpoint directory: made, with those above it, if it is not
                  there, filled if it is empty, patched in place where it holds a
                  version of the stream. One that holds anything else is refused. A file
                  of the weights that is a link, or that has several names, is replaced
                  with a private copy first: what it leads to stays as it is */
    const dw_tensor *tensors; /* or, with INTO NULL: the caller's memory, same names,
                                 types and shapes as the stream's. Contents are taken for
                                 a version where their digest is that of version 0, of the
                                 head or of AT. Other contents are replaced, but only by a
                                 version that was fetched and proven first: that takes the
                                 size of the model in SPOOL_DIR */
    size_t n_tensors;
    bool tensors_empty; /* the memory holds nothing and nobody reads it. It is not looked
                           at, and the first version is fetched right into it, before it
                           is proven, with no spool. Until a version was proven
                           dw_follower_version reports none */
    bool widen;         /* F32 tensors may follow BF16 ones of the stream: each weight is
                           widened, which is exact. Only for models that nobody trains:
                           other values are taken for damage, and replaced. This takes
                           the size of those BF16 tensors in SPOOL_DIR until close, and
                           dw_follower_tensors shows them as the stream has them */
    uint64_t at;        /* memory: the version its contents may be; DW_NO_VERSION */
    const char *base;   /* the checkpoint behind a version 0 that was not uploaded */
    const char *spool_dir; /* for what does not fit in memory: objects above 16 MiB, and a
                              whole model while it is proven, in files without a name.
                              NULL: INTO, or TMPDIR, or /tmp */
    unsigned n_copies; /* of the weights in INTO: 1, the default, or 2. With 2 they lie in
                          INTO/copy-0 and INTO/copy-1, the link INTO/current names the one
                          to read, and a version is written to the other one first, so
                          that readers never wait (control.h). A directory that holds
                          another number of copies is refused */
    const char *weights_dir; /* where the files of the weights are made, for instance on
                                hugetlbfs; INTO then holds links to them, and all else.
                                NULL: INTO */
    unsigned reader_wait_ms; /* how long an apply waits for readers that hold the weights
                                (control.h) before it is DW_UNAVAILABLE; default 10,000 */
    dw_trust trust;
    const char *id;       /* report under followers/ID.json; NULL: do not report */
    unsigned sweep_every; /* read the weights and compare them, a share after each
                             version, all of them within so many versions; default 64, 0:
                             never. Weights that were changed are DW_CORRUPT and at no
                             version: the next stage brings them to one from an anchor */
    unsigned n_threads;
    uint64_t max_ahead_bytes; /* of objects fetched ahead; default 32 MiB */
    /* Opens the store of the stream that this one forks from; NULL: dw_store_open with
     * no options. The result is closed by the follower. */
    dw_status (*open_store)(void *context, dw_store **out, const char *url,
                            dw_error *err);
    void *open_context;
} dw_follow_options;

DW_API void dw_follow_options_init(dw_follow_options *options);

/* Opens the stream and the target; finishes what a killed process left half done. A
 * target that holds no version yet is fine. */
DW_API dw_status dw_follower_open(dw_follower **out, dw_store *store,
                                  const dw_follow_options *options, dw_error *err);
DW_API void dw_follower_close(dw_follower *follower);

DW_API dw_stream *dw_follower_stream(dw_follower *follower); /* borrowed */

/* The version the weights are at, or DW_NO_VERSION. */
DW_API uint64_t dw_follower_version(const dw_follower *follower);

/* The weights, in the order of the stream's table. Valid until close, or until a call
 * after one that was DW_CONFLICT because files were replaced; of two copies, those of the
 * one to read, until the next apply. */
DW_API const dw_tensor *dw_follower_tensors(const dw_follower *follower,
                                            size_t *n_tensors);

/* Asks for the newest version: one small request where nothing is new. */
DW_API dw_status dw_follower_poll(dw_follower *follower, uint64_t *newest, dw_error *err);

/* Polls until there is a version above the one the weights are at, or TIMEOUT_MS have
 * passed (DW_OK with *NEWEST not above; DW_NOT_FOUND where there is no version at all).
 * Asks often at first, then less, up to every MAX_WAIT_MS. PROGRESS is asked now and
 * then, and can cancel. */
DW_API dw_status dw_follower_wait(dw_follower *follower, uint64_t *newest,
                                  unsigned timeout_ms, unsigned max_wait_ms,
                                  const dw_progress *progress, dw_error *err);

/* Fetches, decodes and verifies the next hop on the cheapest way to GOAL (DW_LATEST: the
 * head). *STAGED takes the version it leads to; the version the weights are at where
 * there is nothing to do. A hop that fails because it was collected or damaged is
 * replaced by another way where there is one. PROGRESS may be NULL. */
DW_API dw_status dw_follower_stage(dw_follower *follower, uint64_t goal, uint64_t *staged,
                                   const dw_progress *progress, dw_error *err);

/* The staged list as a file (into a directory), for processes that apply it themselves,
 * until it is settled; dw_follower_commit gives it another name. NULL for memory or where
 * nothing is staged. */
DW_API const char *dw_follower_staged_path(const dw_follower *follower);

/* Makes the staged list durable, and does all that takes time before the stores. From
 * here on the version is reached, after a crash too: another cannot be staged before it
 * is settled. Called by dw_follower_apply where the caller did not. Of two copies the one
 * that is not read is brought to the version here. */
DW_API dw_status dw_follower_commit(dw_follower *follower, dw_error *err);

/* Does the stores, or makes the other copy the one to read. DW_UNAVAILABLE where a reader
 * holds the weights for too long: call it again. Between dw_follower_apply and
 * dw_follower_settle the weights are those of the staged version, but not yet synced: an
 * engine can go on. */
DW_API dw_status dw_follower_apply(dw_follower *follower, dw_error *err);

/* What is staged and not settled: the version it leads to and that version's digest.
 * False where nothing is. An empty directory, and memory that is declared empty, is
 * filled while it is staged, with no list: then the weights are that version already, and
 * the steps up to settle have nothing to do. Either output may be NULL. */
DW_API bool dw_follower_staged(const dw_follower *follower, uint64_t *version,
                               dw_digest *state);

/* The digest of the version the weights are at; 0 where that is none. */
DW_API dw_digest dw_follower_state(const dw_follower *follower);

/* The checkpoint directory that holds the version the weights are at: INTO, or one of its
 * copies. NULL for memory. */
DW_API const char *dw_follower_dir(const dw_follower *follower);

/* Whether an apply to INTO was interrupted, or its two copies are not the same, so that
 * dw_follower_open will write weights at once. Writes nothing. */
DW_API dw_status dw_follower_pending(const char *into, bool *pending, dw_error *err);

/* Makes it durable, checks it, remembers the position. Of two copies the other one is
 * brought to the version too, once nobody reads it: DW_UNAVAILABLE where that takes too
 * long. Call it again where it failed. */
DW_API dw_status dw_follower_settle(dw_follower *follower, dw_error *err);

typedef struct dw_follow_report {
    uint64_t from;    /* DW_NO_VERSION: from nothing */
    uint64_t version; /* where the weights are now */
    uint64_t n_hops;
    uint64_t n_objects;
    uint64_t n_bytes; /* fetched */
    uint64_t n_changed;
    uint64_t fetch_ms;
    uint64_t stage_ms;
    uint64_t apply_ms;
    uint64_t n_private; /* files of the weights that were links or had several names, and
                           that private copies took the place of */
} dw_follow_report;

/* Brings the weights to GOAL: stage, apply, settle, hop by hop. A GOAL below the version
 * they are at starts anew from an anchor. REPORT is filled also where it failed on the
 * way; it and PROGRESS may be NULL. */
DW_API dw_status dw_follower_sync(dw_follower *follower, uint64_t goal,
                                  const dw_progress *progress, dw_follow_report *report,
                                  dw_error *err);

/* The sums since it was opened; `from` is where it stood then. */
DW_API void dw_follower_totals(const dw_follower *follower, dw_follow_report *out);

/* What was done since BEFORE, which dw_follower_totals gave; `from` is where it stood
 * then. */
DW_API void dw_follower_since(const dw_follower *follower, const dw_follow_report *before,
                              dw_follow_report *out);

/* Says in followers/ID.json how it goes; STATUS is a word, MESSAGE a line or NULL. What
 * fails here is no reason to stop. If STATUS is "stopped" and the weights are in the
 * caller's memory, the report names no version: the memory goes with the process, and
 * nothing in the stream must be kept for it. */
DW_API dw_status dw_follower_report(dw_follower *follower, const char *status,
                                    const char *message, dw_error *err);

#define DW_FOLLOW_ID_SIZE 65

/* Makes an id to report under: the machine's name, and a hash of the path of INTO. For
 * weights in memory INTO is NULL, and N tells the followers on the machine apart. */
DW_API void dw_follow_id(char out[DW_FOLLOW_ID_SIZE], const char *into, unsigned n);

#ifdef __cplusplus
}
#endif

#endif
