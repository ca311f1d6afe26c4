/* The companion files of the version that a follower goes to, in its directory.
 *
 * They are fetched before the first weight changes, and installed before the weights
 * become the version: whoever sees the model sees its configuration. A kill in between
 * leaves the files of one version with the weights of another; the next sync looks at
 * both. Only the version where a sync stops counts, not those on the route to it.
 */
#ifndef DW_FOLLOW_FOLLOW_FILES_H
#define DW_FOLLOW_FOLLOW_FILES_H

#include "stream/record.h"
#include "weights/companion_files.h"

typedef enum dw_follow_files_state {
    DW_FILES_UNKNOWN,   /* no version's files are known */
    DW_FILES_KNOWN,     /* those of VERSION are, and the directory may lack some */
    DW_FILES_FETCHED,   /* what it lacks is staged */
    DW_FILES_INSTALLED, /* it has them, or keeps the user's */
} dw_follow_files_state;

typedef struct dw_follow_files {
    dw_follow_files_state state;
    uint64_t version;
    dw_file_list list;        /* of VERSION */
    dw_commit_record *commit; /* of VERSION, until its step takes it; or NULL */
    dw_companion_dir *dir;    /* NULL until it is needed */
    char **kept; /* the paths of files of the user's, in place of those of VERSION */
    size_t n_kept;
} dw_follow_files;

#endif
