/* Streams: the versions of a model in a store, read and looked after.
 *
 * publish.h writes versions, follow.h brings weights to them; here is what remains: the
 * log, checking all of it, folding, collecting, copying. docs/PROTOCOL.md says how a
 * stream lies in its store.
 *
 * A handle belongs to one thread at a time. The store must outlive it.
 */
#ifndef DELTAWIRE_STREAM_H
#define DELTAWIRE_STREAM_H

#include "deltawire/digest.h"
#include "deltawire/error.h"
#include "deltawire/progress.h"
#include "deltawire/sign.h"
#include "deltawire/store.h"
#include "deltawire/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_stream dw_stream;

#define DW_LATEST     UINT64_MAX /* the newest version, whichever that is */
#define DW_NO_VERSION UINT64_MAX /* none: before the first */

/* Whose records are believed. With no keys everything is, but a signature that is there
 * must still be good. Borrowed for the call. */
typedef struct dw_trust {
    const uint8_t (*keys)[DW_PUBLIC_KEY_BYTES];
    size_t n_keys;
    const char *stream; /* the id that the stream must have: a key may have signed others
                           too. NULL: any, but a directory stays with the stream that its
                           weights are from */
} dw_trust;

/* ---- reading ------------------------------------------------------------------ */

/* Opens the stream at the root of STORE; DW_NOT_FOUND where there is none. TRUST may be
 * NULL. */
DW_API dw_status dw_stream_open(dw_stream **out, dw_store *store, const dw_trust *trust,
                                dw_error *err);
DW_API void dw_stream_close(dw_stream *stream);

/* 32 hexadecimal digits. */
DW_API const char *dw_stream_id(const dw_stream *stream);

/* Names, types and shapes; data is NULL. */
DW_API const dw_tensor *dw_stream_tensors(const dw_stream *stream, size_t *n_tensors);

/* Whether several writers are kept apart (PROTOCOL.md, section 10). */
DW_API bool dw_stream_single_writer(const dw_stream *stream);

/* The newest committed version; DW_NOT_FOUND where there is none yet. DW_CORRUPT if it
 * cannot be said, because a commit below a newer one is missing. */
DW_API dw_status dw_stream_head(dw_stream *stream, uint64_t *version, dw_error *err);

/* DW_CORRUPT if one of the newest 1,000 commits is missing, or latest.json names one that
 * is not there. What is missing below a restart or the floor is no fault. Lists these
 * commits; dw_stream_verify checks all of them. */
DW_API dw_status dw_stream_check_log(dw_stream *stream, dw_error *err);

/* DW_CORRUPT if the last search for the newest version found that latest.json names a
 * newer one, which is missing. A follower's poll is such a search, too. Reads nothing. */
DW_API dw_status dw_stream_check_lost(const dw_stream *stream, dw_error *err);

/* The lowest version that is still kept: 0, or what a collection left. */
DW_API dw_status dw_stream_floor(dw_stream *stream, uint64_t *version, dw_error *err);

typedef enum dw_content {
    DW_CONTENT_DELTA = 0,
    DW_CONTENT_ANCHOR = 1, /* the whole model */
    DW_CONTENT_BASE = 2,   /* nothing: both sides have the checkpoint */
    DW_CONTENT_FORK = 3,   /* nothing: a version of another stream */
} dw_content;

/* Strings live until the next call with the same stream. */
typedef struct dw_version_info {
    uint64_t version;
    dw_content content;
    uint64_t epoch;
    const char *created; /* RFC 3339 */
    const char *step;
    const char *notes;
    dw_digest state;
    uint64_t n_changed;
    uint64_t n_objects;
    uint64_t n_bytes; /* of the objects */
    bool is_signed;
    uint8_t key[DW_PUBLIC_KEY_BYTES];
    const char *base;           /* BASE: what it is, for people; else NULL */
    const uint8_t *base_sha256; /* BASE: the SHA-256 of its tensors, of 32 bytes; NULL:
                                   the record has none, and a checkpoint that somebody
                                   made to have the same digest would be taken for it */
    const char *fork_url;       /* FORK; else NULL */
    uint64_t fork_version;
    uint64_t suspect_from; /* the writer's baseline was found damaged before this version:
                              those from SUSPECT_FROM up to the one before may not be the
                              trainer's weights. This one is. 0: none */
    bool restart; /* DELTA: made by dw_stream_repair; only its anchor leads to it */
    /* For people: the version of the library that wrote it, and the name of the writer's
     * machine (of rank 0, if there were several). Without control characters. "": not
     * recorded. A writer can put any text here, so decide nothing by it. */
    const char *library;
    const char *host;
} dw_version_info;

DW_API dw_status dw_stream_version(dw_stream *stream, uint64_t version,
                                   dw_version_info *out, dw_error *err);

/* A way to reach a version: from another, or from nothing (DW_NO_VERSION: an anchor). */
typedef struct dw_edge {
    uint64_t from;
    uint64_t to;
    uint64_t n_bytes;
    uint64_t n_objects;
} dw_edge;

/* The edges that are there besides the commits themselves: folded deltas and anchors, by
 * `to`. The array lives until the next call with the same stream. */
DW_API dw_status dw_stream_ways(dw_stream *stream, const dw_edge **ways, size_t *n_ways,
                                dw_error *err);
/* The same for versions FIRST to LAST. Reads only the records of these ways. */
DW_API dw_status dw_stream_ways_to(dw_stream *stream, uint64_t first, uint64_t last,
                                   const dw_edge **ways, size_t *n_ways, dw_error *err);

/* The cheapest way from version FROM (DW_NO_VERSION: from nothing) to version TO, which
 * must be committed: its edges in the order of travel. DW_NOT_FOUND if no way leads
 * there. The array lives until the next call with the same stream. */
DW_API dw_status dw_stream_route(dw_stream *stream, uint64_t from, uint64_t to,
                                 const dw_edge **edges, size_t *n_edges, dw_error *err);

typedef struct dw_follower_info {
    const char *id;
    uint64_t version; /* DW_NO_VERSION: none yet */
    const char *host;
    const char *status;  /* "following", "fetching", "error", "stopped" */
    const char *message; /* what is wrong; may be empty */
    const char *time;    /* of the report, RFC 3339 */
} dw_follower_info;

typedef void (*dw_follower_fn)(void *context, const dw_follower_info *follower);

/* Hands every follower that reports to FN. */
DW_API dw_status dw_stream_followers(dw_stream *stream, dw_follower_fn fn, void *context,
                                     dw_error *err);

/* ---- looking after ------------------------------------------------------------ */

/* Whether the checkpoint at PATH is the one behind a version 0 that was not uploaded:
 * DW_MISMATCH if it has another state digest, DW_UNTRUSTED if it has another SHA-256,
 * DW_INVALID if version 0 has no such checkpoint. */
DW_API dw_status dw_stream_check_base(dw_stream *stream, const char *path,
                                      unsigned n_threads, dw_error *err);

typedef struct dw_verify_report {
    uint64_t n_versions;
    uint64_t n_ways;
    uint64_t n_objects;
    uint64_t n_bytes;
    uint64_t n_unnamed; /* objects that no record names: leftovers of failed attempts */
    uint64_t n_orphans; /* objects whose own record is missing or damaged, as a fault
                           says: they are needed once the record is restored */
    uint64_t n_faults;
    uint64_t n_left;       /* damaged or missing records and objects of versions below the
                              newest       restart, which nobody needs: no faults */
    uint64_t suspect_from; /* the newest versions that may not be the trainer's weights,
                              up to SUSPECT_END - 1 (dw_version_info); 0: none */
    uint64_t suspect_end;
} dw_verify_report;

/* Takes a fault; the sweep goes on. */
typedef void (*dw_fault_fn)(void *context, const dw_error *fault);

/* Reads every record and every object above the floor: formats, signatures, the chain of
 * hashes, epochs, sizes, SHA-256, and that every delta opens and names its versions. With
 * faults it returns the code of the first, whose text says what to do. FN and PROGRESS
 * may be NULL. */
DW_API dw_status dw_stream_verify(dw_stream *stream, dw_fault_fn fn, void *context,
                                  const dw_progress *progress, dw_verify_report *report,
                                  dw_error *err);

typedef struct dw_replay_options {
    const char *spool_dir; /* takes a copy of the model; NULL: TMPDIR */
    const char *base;      /* the checkpoint behind a version 0 that was not uploaded */
    /* opens the store of a stream that this one forks from; NULL: dw_store_open */
    dw_status (*open_store)(void *context, dw_store **out, const char *url,
                            dw_error *err);
    void *open_context;
    unsigned n_threads; /* 0: all cores */
    dw_progress progress;
} dw_replay_options;

typedef struct dw_replay_report {
    uint64_t n_decoded; /* versions that decode */
    uint64_t first;     /* the first of them; DW_NO_VERSION: none could be begun from */
    uint64_t n_left;    /* versions that a later restart left behind */
    uint64_t n_faults;
} dw_replay_report;

/* Decodes every version above the floor from the one before it, as a follower would, and
 * finds the versions that dw_stream_verify cannot: whole objects that lead to other
 * weights than the commit names. Versions that a restart left behind are no faults. With
 * faults it returns the code of the first, whose text names the version. OPTIONS, FN and
 * REPORT may be NULL. */
DW_API dw_status dw_stream_replay(dw_store *store, const dw_trust *trust,
                                  const dw_replay_options *options, dw_fault_fn fn,
                                  void *context, dw_replay_report *report, dw_error *err);

typedef struct dw_squash_options {
    uint64_t from;        /* DW_NO_VERSION: an anchor of TO */
    uint64_t to;          /* DW_LATEST: the head */
    const char *work_dir; /* a directory with room for two copies of the model; NULL: a
                             temporary one in TMPDIR */
    const char *base;     /* the checkpoint behind a version 0 that was not uploaded */
    uint64_t max_object_bytes; /* 0: the default */
    const dw_sign_key *sign_key;
    unsigned n_threads;
    dw_progress progress;
} dw_squash_options;

/* Adds a way to a version: a folded delta or an anchor. DW_CONFLICT where it is there
 * already. WAY may be NULL. */
DW_API dw_status dw_stream_squash(dw_stream *stream, const dw_squash_options *options,
                                  dw_edge *way, dw_error *err);

typedef struct dw_collect_options {
    uint64_t n_keep; /* keep the newest so many versions reachable; at least 1 */
    bool dry_run;    /* only say what would go */
    void (*removed)(void *context, const char *key, uint64_t n_bytes); /* may be NULL */
    void *context;
    dw_progress progress;
} dw_collect_options;

typedef struct dw_collect_report {
    uint64_t floor; /* versions below it are gone */
    uint64_t old_floor;
    uint64_t n_objects; /* removed, or to be removed */
    uint64_t n_bytes;
    const char *held_by; /* what keeps the floor from being higher: "anchor", "follower
                            ID", "keep"; lives until the next call */
    uint64_t bad_anchor; /* the lowest version whose anchor could not be the floor,
                            because its bytes are not that version; DW_NO_VERSION: none */
} dw_collect_report;

/* Removes what no kept version and no listed follower needs. May run beside publishers,
 * followers and other collectors. Before anything is removed, the anchor at the new floor
 * is read whole and compared with its version. If it is bad, an older anchor is tried; if
 * there is none, nothing is removed and the call fails with DW_CORRUPT. */
DW_API dw_status dw_stream_collect(dw_stream *stream, const dw_collect_options *options,
                                   dw_collect_report *report, dw_error *err);

/* Takes a follower off the list, so that it holds nothing back. */
DW_API dw_status dw_stream_forget_follower(dw_stream *stream, const char *id,
                                           dw_error *err);

typedef struct dw_copy_report {
    uint64_t n_objects; /* copied now */
    uint64_t n_bytes;
    uint64_t n_present; /* there already */
    uint64_t head;
} dw_copy_report;

/* Mirrors the stream to another store: all records and objects above the floor, checked
 * on the way, commits last and in order, so that followers of the mirror see whole
 * versions alone. Called again it copies what is new. */
DW_API dw_status dw_stream_copy(dw_stream *stream, dw_store *to,
                                const dw_progress *progress, dw_copy_report *report,
                                dw_error *err);

#ifdef __cplusplus
}
#endif

#endif
