/* Publishing: versions of a model go into a stream.
 *
 *     dw_publisher_open      weights + store           version 0 where the stream is new
 *     dw_publisher_publish   the weights as they are   -> ticket, at once
 *     dw_publisher_captured  the weights may change again
 *     dw_publisher_wait      the version is committed
 *
 * A version is diffed against the baseline, a copy of the newest committed version, then
 * encoded and uploaded by a thread of the publisher's. The baseline moves when a version
 * is committed and not before, so a step that failed or was skipped is covered by the
 * next. One process writes a stream at a time; one that opens it takes over, and the one
 * before gets DW_CONFLICT (docs/PROTOCOL.md).
 *
 * A publisher belongs to one thread at a time, but dw_publisher_wait, _captured, _idle
 * and _cancel may be called by any.
 */
#ifndef DELTAWIRE_PUBLISH_H
#define DELTAWIRE_PUBLISH_H

#include "deltawire/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_publisher dw_publisher;

/* What a publish does that finds the one before still under way. */
typedef enum dw_when_busy {
    DW_BUSY_WAIT = 0, /* wait for it */
    DW_BUSY_SKIP = 1, /* publish nothing now: the next delta covers this step */
    DW_BUSY_FOLD = 2, /* give up the one before, unless it is being committed or restarts
                         the stream, and publish both as one */
} dw_when_busy;

/* How version 0 of a new stream comes to be. */
typedef enum dw_first_version {
    DW_FIRST_ANCHOR = 0, /* upload the whole model */
    DW_FIRST_BASE = 1,   /* upload nothing: followers have the checkpoint; its digest
                            names it */
    DW_FIRST_FORK = 2,   /* upload nothing: it is a version of another stream. The weights
                            must be that version, or become the first delta */
} dw_first_version;

/* A range of a tensor's elements, row-major, that this process holds. */
typedef struct dw_shard {
    size_t tensor; /* number in the list of tensors */
    uint64_t first;
    uint64_t n_elems;
    void *data; /* borrowed */
} dw_shard;

/* How the ranks of a sharded publish tell rank 0 what they uploaded. */
typedef enum dw_receipts {
    DW_RECEIPTS_STORE = 0,  /* through the store alone */
    DW_RECEIPTS_CALLER = 1, /* the caller carries bytes between the ranks */
} dw_receipts;

typedef struct dw_publish_options {
    dw_first_version first;
    const char *base_name; /* BASE: what the checkpoint is, for people */
    const char *base; /* the checkpoint behind a version 0 that was not uploaded, to start
                         from where the baseline is not at hand */
    dw_store *fork_store;     /* FORK: where the other stream lies; must outlive the
                                 publisher ... */
    uint64_t fork_version;    /* ... and its version, or DW_LATEST */
    const char *baseline_dir; /* keep the baseline in this directory, mapped, for the
                                 next start; NULL: in memory, and read back from the
                                 store at the next start */
    const char *spool_dir;    /* for what does not fit in memory; NULL: baseline_dir,
                                 or TMPDIR */
    dw_when_busy when_busy;
    const dw_sign_key *sign_key; /* or NULL; borrowed */
    dw_trust trust;              /* for what is there already */
    bool new_key;                /* go on though the newest version is signed by another
                                    key than SIGN_KEY, or is signed and SIGN_KEY is NULL:
                                    else that is DW_UNTRUSTED */
    bool single_writer;          /* accept a store that cannot create conditionally: the
                                    caller sees to it that nobody else writes */
    bool no_provenance;          /* do not record the version of this library and the
                                    name of this machine in commits and epochs */
    unsigned folds[4];           /* fold so many versions into one delta; each a multiple
                                    of the one before. Default 4, 16, 64, 0. Needs
                                    baseline_dir or spool_dir, with room for a copy of
                                    the model. Without room no folds are made, and
                                    dw_publisher_drain reports it */
    unsigned anchor_every;       /* an anchor each so many versions; 0: never by count */
    double anchor_factor;        /* an anchor when catching up from the newest one costs
                                    more than so many anchors' bytes; 0: never. Default
                                    0.1 */
    unsigned sweep_every;        /* read the baseline and compare it with what was
                                    committed, a share after each version, all of it
                                    within so many versions. A damaged baseline is read
                                    back from the stream; if a version of it does not
                                    decode, the next version restarts the stream.
                                    Default 64, 0: never */
    uint64_t max_object_bytes;   /* of a delta's objects; 0: 32 MiB. Bounds memory too */
    uint64_t max_anchor_bytes;   /* of an anchor's objects; 0: 4 GiB */
    unsigned n_threads;          /* 0: all cores */

    const bool *as_bf16; /* [n_tensors] which of them, in F32, are published as BF16,
                            rounded as dw_cast_bf16 does while they are compared; NULL:
                            none. For the call alone, as the shards are */

    const dw_shard *shards; /* NULL: the tensors' own data, all of it */
    size_t n_shards;
    uint32_t rank; /* of n_ranks; 0 commits */
    uint32_t n_ranks;
    const char *job; /* the same string on every rank, another for every start */
    dw_receipts receipts;
    unsigned rank_timeout_ms; /* how long ranks wait for each other, rank 0 twice as long;
                                 0: 10 minutes */

    const char *first_step; /* step and notes of the version that opening makes */
    const char *first_notes;
    bool publish_changed; /* if the stream has versions already and the newest differs
                             from the weights, opening publishes the weights, and waits
                             until they are committed. Set it if the next publish comes
                             only after training: a trainer that goes on from an older
                             checkpoint would otherwise leave followers with weights that
                             it has discarded. That version has ticket 1: its report says
                             whether it restarted the stream. Without effect on shards,
                             whose ranks must decide together: see dw_publisher_is_current
                           */

    /* Asked before each commit, version 0 among them, after everything was read: not
     * DW_OK commits nothing, and is what becomes of the version. For weights that
     * somebody else may change, such as files: it says whether they did. Called from the
     * thread that publishes, for version 0 from the caller's. May be NULL. */
    dw_status (*confirm)(void *context, dw_error *err);
    void *confirm_context;

    dw_progress progress; /* of opening: fetching a baseline, uploading version 0; asked
                             with 0 of 0 while it waits for other ranks */
} dw_publish_options;

DW_API void dw_publish_options_init(dw_publish_options *options);

/* Opens the stream at the root of STORE for writing, creates it where it is not there,
 * and takes over from whoever wrote it before. TENSORS and what they point to stay the
 * caller's and are read at each publish; with shards their data is not looked at.
 * On a new stream version 0 is committed before this returns; on one that is there the
 * baseline is brought to its head. OPTIONS may be NULL. */
DW_API dw_status dw_publisher_open(dw_publisher **out, dw_store *store,
                                   const dw_tensor *tensors, size_t n_tensors,
                                   const dw_publish_options *options, dw_error *err);

/* Waits for what is under way, for as long as the store's deadlines allow; frees. */
DW_API void dw_publisher_close(dw_publisher *publisher);

/* What is committed: the stream's id, and the newest version of this writer. */
DW_API const char *dw_publisher_stream(const dw_publisher *publisher);
DW_API uint64_t dw_publisher_version(dw_publisher *publisher);

/* Whether the weights, of shards this process's, are those of the newest version. Reads
 * all of them; waits for a version that is under way. If a sharded publish is opened on a
 * stream that has versions, each rank asks, and if any of them gets false, all publish.
 */
DW_API dw_status dw_publisher_is_current(dw_publisher *publisher, bool *is_current,
                                         dw_error *err);

typedef struct dw_publish_note {
    const char *step;  /* the trainer's own number or name of this step; may be NULL */
    const char *notes; /* free text, up to 4,096 bytes; may be NULL */
    const bool *unchanged; /* [n_tensors] which of them, in the order of
                              dw_publisher_open, were not written to since the publish
                              before that gave a ticket: believed, and not compared where
                              the stream has what that one saw. NULL: none */
} dw_publish_note;

#define DW_TICKET_SKIPPED 0 /* nothing was begun (DW_BUSY_SKIP) */

/* Publishes the weights as they are. Returns at once with a ticket; the weights must not
 * change until dw_publisher_captured says so. NOTE may be NULL. After DW_CONFLICT
 * (another writer took over) nothing can be published with this handle any more. */
DW_API dw_status dw_publisher_publish(dw_publisher *publisher, uint64_t *ticket,
                                      const dw_publish_note *note, dw_error *err);

/* Waits until the weights have been read. TIMEOUT_MS 0 asks; *DONE says whether. */
DW_API dw_status dw_publisher_captured(dw_publisher *publisher, uint64_t ticket,
                                       unsigned timeout_ms, bool *done, dw_error *err);

typedef struct dw_publish_report {
    uint64_t version;   /* committed */
    bool unchanged;     /* no weight differed; a version was committed all the same */
    uint64_t n_changed; /* elements */
    uint64_t n_bytes;   /* of the delta's objects */
    uint64_t n_objects;
    dw_digest state;
    uint64_t diff_ms; /* time spent on each; they overlap */
    uint64_t upload_ms;
    uint64_t total_ms; /* from publish to commit */
    bool restarted; /* the newest version did not decode: this one holds the whole model,
                       and followers cross over to it by themselves */
    uint64_t suspect_from; /* the baseline was damaged, or versions did not decode: those
                              from this one to the one before VERSION may not be the
                              weights that were published. 0: none */
} dw_publish_report;

/* Waits until the version of TICKET is committed, and gives its fate: DW_OK, or why it
 * failed; DW_CANCELLED where a later publish took it in (DW_BUSY_FOLD). DW_UNAVAILABLE
 * with *DONE false where TIMEOUT_MS passed first (UINT_MAX: no limit). REPORT may be
 * NULL. The fate of the last 64 tickets is kept. */
DW_API dw_status dw_publisher_wait(dw_publisher *publisher, uint64_t ticket,
                                   unsigned timeout_ms, bool *done,
                                   dw_publish_report *report, dw_error *err);

/* Folds and anchors that are due are made after the commit, by the publisher's thread;
 * this waits until that is done too. What went wrong there is told here, and harms no
 * version. */
DW_API dw_status dw_publisher_drain(dw_publisher *publisher, dw_error *err);

/* Waits until nothing is under way, folds and anchors among it, so that neither a publish
 * nor dw_publisher_drain would have to wait; false where TIMEOUT_MS passed first
 * (UINT_MAX: no limit). */
DW_API bool dw_publisher_idle(dw_publisher *publisher, unsigned timeout_ms);

/* Has the version under way given up, unless it is being committed or restarts the
 * stream: its ticket becomes DW_CANCELLED, and the next publish covers it. Does not
 * wait. */
DW_API void dw_publisher_cancel(dw_publisher *publisher);

/* ---- repair ----------------------------------------------------------------------- */

typedef struct dw_repair_report {
    uint64_t version; /* committed: the restart */
    uint64_t source;  /* its weights are those of this version; DW_NO_VERSION: TENSORS */
    dw_digest state;
    uint64_t n_bytes; /* of its anchor */
    uint64_t n_objects;
} dw_repair_report;

/* Lets a stream go on whose newest versions cannot be decoded or have lost objects: the
 * next version is a restart, which holds the whole model and needs no version before it.
 * Followers cross over to it by themselves. The weights are TENSORS or, if that is NULL,
 * those of the newest version that can still be had; DW_INVALID if that is the head.
 * Takes over from whoever writes the stream. Of OPTIONS, which may be NULL, base,
 * fork_store, spool_dir (takes a copy of the model), sign_key, trust, single_writer,
 * no_provenance, max_anchor_bytes, n_threads, first_step, first_notes, confirm and
 * progress count. */
DW_API dw_status dw_stream_repair(dw_store *store, const dw_tensor *tensors,
                                  size_t n_tensors, const dw_publish_options *options,
                                  dw_repair_report *report, dw_error *err);

/* ---- sharded, with DW_RECEIPTS_CALLER ------------------------------------------- */

/* Every rank, after dw_publisher_publish: waits until its part is uploaded and gives the
 * receipt; the bytes live until the next publish. The caller brings all to rank 0. */
DW_API dw_status dw_publisher_receipt(dw_publisher *publisher, uint64_t ticket,
                                      const void **bytes, size_t *n_bytes, dw_error *err);

/* Rank 0: commits the version out of all ranks' receipts, in any order. Gives the outcome
 * as bytes for the other ranks, also where it failed. */
DW_API dw_status dw_publisher_commit(dw_publisher *publisher, uint64_t ticket,
                                     const void *const *receipts, const size_t *n_bytes,
                                     size_t n_receipts, const void **outcome,
                                     size_t *n_outcome, dw_error *err);

/* The other ranks: take the outcome; the baseline moves, or stays. */
DW_API dw_status dw_publisher_settle(dw_publisher *publisher, uint64_t ticket,
                                     const void *outcome, size_t n_outcome,
                                     dw_error *err);

#ifdef __cplusplus
}
#endif

#endif
