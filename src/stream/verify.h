/* A sweep over a whole stream.
 *
 *     verify.c         the records, and whether they agree
 *     verify_edge.c    the objects behind one record, faults and what to do about them
 *     verify_object.c  one object
 *     verify_files.c   companion files
 */
#ifndef DW_STREAM_VERIFY_H
#define DW_STREAM_VERIFY_H

#include "stream/listing.h"
#include "stream/stream.h"

/* A commit whose record is good. Others must agree with it. */
typedef struct dw_seen {
    uint64_t version;
    uint8_t sha256[DW_SHA256_BYTES];
    dw_digest state;
    bool restart;
    bool is_broken; /* its own objects are damaged or missing */
} dw_seen;

typedef struct dw_sweep {
    dw_stream *stream;
    dw_fault_fn fn;
    void *context;
    const dw_progress *progress;
    dw_verify_report report;
    dw_error first; /* fault */

    uint64_t floor;
    uint64_t restart; /* the newest; 0: none. What is below it is not needed */
    uint64_t end;     /* above the newest version, be it there or lost */
    uint64_t about;   /* the version that is looked at; DW_NO_VERSION: none */
    dw_listing objects;
    dw_listing files; /* marked: a commit names it */
    dw_listing commits;
    dw_listing shortcuts; /* marked: the record was read */
    dw_seen *seen;        /* ascending */
    size_t n_seen;
    size_t n_room;

    uint64_t n_done; /* bytes of objects */
    uint64_t n_total;
} dw_sweep;

/* Takes the result of a check of KEY: a fault is reported, and the sweep goes on. What is
 * damaged or missing of a version below the newest restart is only counted. */
dw_status dw_sweep_note(dw_sweep *w, dw_status status, const char *key,
                        const char *advice, const dw_error *found, dw_error *err);
dw_status dw_sweep_note_record(dw_sweep *w, dw_status status, const char *key,
                               const dw_error *found, dw_error *err);

/* The commit of VERSION, if it is good. */
const dw_seen *dw_sweep_find(const dw_sweep *w, uint64_t version);

/* Whether the objects behind EDGE may be gone for a collection's sake. */
bool dw_sweep_below_floor(uint64_t floor, const dw_edge *edge);

/* One that is missing may have been collected since the sweep began. */
dw_status dw_sweep_look_at_floor(dw_sweep *w, const dw_edge *edge, bool *collected,
                                 dw_error *err);

/* Checks the companion files of COMMIT, whose record is KEY. PARENT, the commit before,
 * is NULL if it is not known. */
dw_status dw_sweep_files(dw_sweep *w, const dw_commit_record *commit,
                         const dw_commit_record *parent, const char *key, dw_error *err);
/* Counts the objects of companion files that no commit names. */
void dw_sweep_count_files(dw_sweep *w);

/* Checks all objects behind EDGE, which the record KEY names. */
dw_status dw_sweep_objects(dw_sweep *w, const dw_edge *edge, const char *key,
                           const dw_objects *objects, dw_digest state, dw_error *err);

#endif
