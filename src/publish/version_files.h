/* The companion files of the next version.
 *
 * A caller gives files with open or with a publish. They wait here until a version that
 * names them is committed, so a version that fails, is cancelled or is skipped loses
 * none. A version for which no files wait names those of its parent.
 *
 * Owner: `pending` the lock; the rest the owner of the baseline. While a job is under way
 * no call changes `wanted`.
 */
#ifndef DW_PUBLISH_VERSION_FILES_H
#define DW_PUBLISH_VERSION_FILES_H

#include "deltawire/publish.h"
#include "quant/quant.h"
#include "stream/record.h"

/* Copies of a caller's files. */
typedef struct dw_file_set {
    bool is_given;
    dw_file *items; /* ordered by name */
    size_t n;
} dw_file_set;

typedef struct dw_version_files {
    dw_file_set pending; /* for the next job */
    dw_file_set wanted;  /* for the next version */
    dw_file_list head;   /* what the commit with HEAD_SHA256 names */
    uint8_t head_sha256[DW_SHA256_BYTES];
    bool knows_head;
    bool is_sure; /* the objects of `head` were there since this publisher opened */
    bool renew;   /* store again what the parent has too: its objects may be lost */
    uint64_t n_stored_bytes; /* by the last attempt at a commit */
} dw_version_files;

/* Copies FILES, after it has checked that they can be published. */
dw_status dw_file_set_copy(dw_file_set *out, const dw_file *files, size_t n_files,
                           dw_error *err);
/* Adds to config.json, if it is in the set, how PLAN quantises; PLAN may be NULL.
 * DW_INVALID if it is no JSON object, or says so already. */
dw_status dw_file_set_quantize(dw_file_set *set, const dw_quant_plan *plan,
                               dw_error *err);
/* The files of COMMIT, which is in STREAM. */
dw_status dw_file_set_fetch(dw_file_set *out, dw_stream *stream,
                            const dw_commit_record *commit, dw_error *err);
void dw_file_set_release(dw_file_set *set);
/* Moves FROM to TO, unless FROM is not given. */
void dw_file_set_move(dw_file_set *to, dw_file_set *from);

void dw_version_files_close(dw_version_files *files);
/* Notes what COMMIT, which may become the parent, names. Takes its list. */
void dw_version_files_note(dw_version_files *files, dw_commit_record *commit);

/* Fills in the files of COMMIT, whose version and write id are set, and puts the objects
 * that its parent does not have. */
dw_status dw_version_files_store(dw_publisher *p, dw_commit_record *commit,
                                 dw_error *err);
/* COMMIT was committed: nothing waits any longer. Takes its list. */
void dw_version_files_committed(dw_version_files *files, dw_commit_record *commit);

#endif
