/* The inside of a stream handle: reading records with every check that one record and its
 * neighbours allow (docs/PROTOCOL.md, section 4).
 */
#ifndef DW_STREAM_STREAM_H
#define DW_STREAM_STREAM_H

#include "deltawire/stream.h"
#include "stream/record.h"
#include "stream/transfer.h"

struct dw_stream {
    dw_store *store; /* borrowed */
    dw_stream_record record;
    uint8_t (*trust)[DW_PUBLIC_KEY_BYTES];
    size_t n_trust;
    uint64_t head; /* the highest version seen, or DW_NO_VERSION */

    /* of the search for the newest version (head.c) */
    uint64_t evidence; /* what the hint or a list named last, or DW_NO_VERSION */
    uint64_t lost;     /* the hint names it, but it is missing; or DW_NO_VERSION */
    bool large_hint;
    uint64_t rare_ms; /* when the large hint or a list was last read; 0: never */

    /* lent to the caller until its next call */
    dw_commit_record shown;
    dw_file_info *files; /* those of `shown` */
    dw_blob file;        /* the bytes of one */
    dw_edge *shortcuts;
    char held_by[80];        /* why a collection kept more than asked for */
    char ahead[DW_KEY_TEXT]; /* a follower's record that a collection reports */
};

/* What a writer asks of a stream. */
typedef struct dw_stream_spec {
    const dw_tensor *tensors; /* names and shapes */
    size_t n_tensors;
    dw_quantized quantized;
    bool single_writer;
    const dw_sign_key *key; /* or NULL */
} dw_stream_spec;

/* Creates stream.json, or opens the one that is there: DW_MISMATCH if that is for another
 * model, or quantised in another way. */
dw_status dw_stream_create(dw_stream **out, dw_store *store, const dw_stream_spec *spec,
                           const dw_trust *trust, dw_error *err);

/* DW_MISMATCH if the stream is for another model, or quantised in another way. */
dw_status dw_stream_check_spec(const dw_stream *stream, const dw_stream_spec *spec,
                               dw_error *err);

/* DW_UNTRUSTED unless the record was signed by a trusted key, if there are any such keys.
 */
dw_status dw_stream_check_seal(const dw_stream *stream, const dw_record_seal *seal,
                               const char *where, dw_error *err);

/* DW_UNTRUSTED unless the bytes end in the signature of a trusted key, if there are any
 * such keys. Nothing is parsed. That the signature is good is for the parse, which looks
 * at no member before. */
dw_status dw_stream_check_signer(const dw_stream *stream, const void *bytes,
                                 size_t n_bytes, const char *where, dw_error *err);

/* Reads and checks one record; DW_NOT_FOUND if it is not there. The caller releases
 * it. Object keys, covers and trust are checked; the chain is the caller's. */
dw_status dw_stream_read_commit(dw_stream *stream, uint64_t version,
                                dw_commit_record *out, dw_error *err);
dw_status dw_stream_read_shortcut(dw_stream *stream, uint64_t version, uint64_t from,
                                  dw_shortcut_record *out, dw_error *err);
dw_status dw_stream_read_epoch(dw_stream *stream, uint64_t epoch, dw_epoch_record *out,
                               dw_error *err);

/* Whether a failure is the store's as a whole, or the caller's, rather than that of
 * something in the stream. */
bool dw_stream_stops(dw_status status);

/* Whether a record with that outcome is missing, damaged or not to be trusted: others may
 * lead around it. */
bool dw_stream_passes_over(dw_status status);

/* The hint. Its version is DW_NO_VERSION if it is missing, damaged or another stream's.
 */
dw_status dw_stream_read_latest(dw_stream *stream, dw_latest_record *out, dw_error *err);

/* DW_UNTRUSTED unless CHILD follows PARENT: its number, hash and epoch. */
dw_status dw_stream_check_child(const dw_stream *stream, const dw_commit_record *parent,
                                const dw_commit_record *child, dw_error *err);

/* Whether the shortcut leads to the very version that was committed. */
bool dw_shortcut_agrees(const dw_shortcut_record *shortcut,
                        const dw_commit_record *commit);

/* The newest version, walking up from KNOWN (DW_NO_VERSION: from the hint, or a list).
 * Two small requests if KNOWN is the newest. DW_NOT_FOUND if the stream has none.
 * DW_CORRUPT, and HEAD set, if a version is missing below a newer one, HEAD. */
dw_status dw_stream_find_head(dw_stream *stream, uint64_t known, uint64_t *head,
                              dw_error *err);

/* DW_CORRUPT: version MISSING is not there, but version NEWER is. */
dw_status dw_stream_fail_hole(const dw_stream *stream, uint64_t missing, uint64_t newer,
                              dw_error *err);
/* Returns DW_NOT_FOUND, for a commit that is not there. If VERSION is above the newest
 * version, ERR says so; otherwise it stays as it is. Asks the store only if ERR is not
 * NULL and VERSION is above every version seen. */
dw_status dw_stream_fail_absent(dw_stream *stream, uint64_t version, dw_error *err);
/* The newest version above VERSION that needs none of the versions below it: a restart or
 * the floor, with its anchor. Holes below it are history. DW_NO_VERSION: there is none.
 */
dw_status dw_stream_find_restart(dw_stream *stream, uint64_t version, uint64_t *restart,
                                 dw_error *err);
/* DW_CORRUPT if one of the newest 1,000 versions up to HEAD is missing. Lists them. */
dw_status dw_stream_check_newest(dw_stream *stream, uint64_t head, dw_error *err);
/* DW_CORRUPT if the hint names a version that is not there. A writer
 * checks this before the next version, which would get the number of a lost one. */
dw_status dw_stream_check_hint(dw_stream *stream, dw_error *err);
/* DW_CORRUPT: the object KEY names VERSION, which is not there. */
dw_status dw_stream_fail_lost(const dw_stream *stream, const char *key, uint64_t version,
                              dw_error *err);

/* Finds the newest version from KNOWN on, and reads its commit. */
dw_status dw_stream_read_head(dw_stream *stream, uint64_t known, dw_commit_record *out,
                              dw_error *err);

/* DW_CORRUPT if STORE, which has no stream.json, has records of a stream. A new stream
 * must not be made over them: nobody could read either of the two. */
dw_status dw_stream_check_vacant(dw_store *store, dw_error *err);

/* One step of a route, as its commit or shortcut describes it. */
typedef struct dw_route_step {
    uint64_t from; /* DW_NO_VERSION: from nothing */
    uint64_t to;
    dw_digest state;
    uint8_t commit_sha256[DW_SHA256_BYTES]; /* of version TO */
    uint8_t from_sha256[DW_SHA256_BYTES];   /* of version FROM's commit */
    dw_content content; /* DELTA or ANCHOR; BASE, FORK for version 0 */
    dw_objects objects;
    dw_fork fork;
    char *base;
    uint8_t base_sha256[DW_SHA256_BYTES];
    uint64_t epoch;
} dw_route_step;

/* Reads the records behind EDGE: for a shortcut also the commit it leads to, which it
 * must agree with. COMMIT is that commit if the caller has read it, else NULL: parts of
 * it are moved to OUT, and the caller still releases it. */
dw_status dw_route_step_read(dw_route_step *out, dw_stream *stream, const dw_edge *edge,
                             dw_commit_record *commit, dw_error *err);
void dw_route_step_release(dw_route_step *step);

/* ---- collect.c ---- */

/* What a collection that keeps N_KEEP versions finds: its floor, and the one that it
 * would have if every version had an anchor. Nothing is checked or removed. */
dw_status dw_collect_floor(dw_stream *stream, uint64_t n_keep, uint64_t *floor,
                           uint64_t *wanted, dw_error *err);

#endif
