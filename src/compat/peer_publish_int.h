/* The internals of a publisher for peers.
 *
 *     peer_publish.c       open, close
 *     publish_version.c    one version: looked for, written, proven
 *     peer_baseline.c      the newest version in the store, kept as a directory
 *     publish_object.c     creates objects, removes those of a killed process
 *     publish_changes.c    finds and packs the changed tensors
 *     publish_trl.c, publish_slime.c     the two formats
 */
#ifndef DW_COMPAT_PEER_PUBLISH_INT_H
#define DW_COMPAT_PEER_PUBLISH_INT_H

#include "base/bytes.h"
#include "compat/payload.h"
#include "deltawire/checkpoint.h"
#include "compat/peer_publish.h"
#include "store/store.h"

struct dw_peer_publisher {
    dw_store *store;
    dw_peer_publish_options options; /* strings are copies */
    const dw_tensor *tensors;        /* the caller's */
    size_t n_tensors;
    size_t *order;   /* their indices, sorted by name */
    dw_tensor *next; /* [n_tensors] names ascending, with the data of the last
                        publish */

    /* the baseline (peer_baseline.c) */
    dw_peer *peer;            /* NULL while the store holds no version */
    dw_peer_replica *replica; /* NULL until something was read back */
    bool owns_dir;            /* options.baseline_dir is a temporary one */

    uint64_t newest; /* in the store, or DW_NO_VERSION */
    bool looked;     /* newest is up to date */

    /* the version that was begun but is not proven; DW_NO_VERSION: none */
    uint64_t unsure;
    bool written;   /* this handle wrote all its objects */
    bool disproven; /* the version that was read back is damaged, or has other weights */
    dw_digest unsure_state; /* of the weights that were written */
};

/* A version to write. */
typedef struct dw_peer_job {
    uint64_t version;
    uint64_t base_version; /* if there is a base */
    const dw_tensor *base; /* [n] names ascending; NULL: there is none */
    const dw_tensor *next; /* [n] the same names, types and shapes */
    size_t n;
    bool whole;
} dw_peer_job;

/* Fills NEXT: the tensors sorted by name, with their current data. */
void dw_peer_look_at_tensors(dw_peer_publisher *p);

/* ---- the baseline ---- */

/* The weights of the newest version; no tensors if there is none. Valid until the next
 * publish.
 */
const dw_tensor *dw_peer_publisher_baseline(const dw_peer_publisher *publisher,
                                            size_t *n_tensors);

/* Asks the store for its newest version. */
dw_status dw_peer_baseline_look(dw_peer_publisher *p, dw_error *err);

/* If the store has no version: checks that the directory can hold the baseline. */
dw_status dw_peer_baseline_check(dw_peer_publisher *p, dw_error *err);

/* Brings the baseline to the newest version, and checks that it is the same model. */
dw_status dw_peer_baseline_follow(dw_peer_publisher *p, dw_error *err);

/* Whether the newest version is damaged and the versions before it can be read. */
bool dw_peer_baseline_blames_newest(dw_peer_publisher *p);

/* Empties the baseline: the next follow reads everything back. */
void dw_peer_baseline_reset(dw_peer_publisher *p);

void dw_peer_baseline_release(dw_peer_publisher *p);

/* ---- objects ---- */

/* Creates an object and counts it. If the key is taken by an object with the same bytes,
 * that counts as success, because the first reply may have been lost. DW_CONFLICT if it
 * has other bytes. */
dw_status dw_peer_put(dw_peer_publisher *p, const char *key, const dw_source *source,
                      dw_peer_publish_report *report, dw_error *err);
dw_status dw_peer_put_text(dw_peer_publisher *p, const char *key, const dw_writer *text,
                           dw_peer_publish_report *report, dw_error *err);

/* Removes all objects under PREFIX, which belong to an unfinished version: its RECORD,
 * which is written last, does not exist. */
dw_status dw_peer_clear(dw_peer_publisher *p, const char *prefix, const char *record,
                        dw_error *err);

/* Writes a safetensors file under KEY. */
dw_status dw_peer_put_file(dw_peer_publisher *p, const char *key,
                           const dw_tensor *tensors, size_t n_tensors,
                           const dw_pair *metadata, size_t n_metadata,
                           dw_peer_publish_report *report, dw_error *err);

/* ---- changes ---- */

typedef struct dw_peer_changes {
    dw_tensor *base; /* the changed tensors, names ascending */
    dw_tensor *next;
    size_t n;
    uint64_t n_elems; /* changed elements */
} dw_peer_changes;

dw_status dw_peer_changes_find(dw_peer_changes *out, const dw_peer_job *job,
                               unsigned n_threads, dw_error *err);
void dw_peer_changes_release(dw_peer_changes *changes);

/* Some of the changed tensors, each as one zstd frame. */
typedef struct dw_peer_pack {
    dw_tensor *frames;                   /* [n] U8, under the tensors' own names */
    char (*checksums)[DW_CHECKSUM_TEXT]; /* [n] of the new tensors */
    size_t n;
    dw_writer *bytes; /* [n] the memory of the frames */
    uint64_t *dims;
} dw_peer_pack;

dw_status dw_peer_pack_make(dw_peer_pack *out, const dw_peer_changes *changes,
                            size_t first, size_t n,
                            const dw_peer_publish_options *options, dw_error *err);
void dw_peer_pack_release(dw_peer_pack *pack);

/* ---- the formats ---- */

/* The object that completes a version; TRL has two candidates. */
#define DW_PEER_RECORDS 2
#define DW_PEER_KEY     128

/* The largest version that names.c accepts. */
#define DW_PEER_MAX_VERSION 999999999999999u

size_t dw_peer_record_keys(char keys[DW_PEER_RECORDS][DW_PEER_KEY], dw_peer_format format,
                           uint64_t version);

dw_status dw_publish_trl(dw_peer_publisher *p, const dw_peer_job *job,
                         dw_peer_publish_report *report, dw_error *err);
dw_status dw_publish_slime(dw_peer_publisher *p, const dw_peer_job *job,
                           dw_peer_publish_report *report, dw_error *err);

#endif
