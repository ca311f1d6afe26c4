/* The companion files of the version that a follower goes to, in its directory.
 *
 * They are fetched before the first weight changes, and installed before the weights
 * become the version: whoever sees the model sees its configuration. A kill in between
 * leaves the files of one version with the weights of another; the next sync looks at
 * both. Only the version where a sync stops counts, not those on the route to it.
 *
 *     fetch     compare the directory with the version; write what it lacks and may be
 *               replaced to temporary files in .deltawire
 *     install   the record names also the new files; each gets its name; ours that the
 *               version does not have are removed; the record names only what is there
 *
 * A crash during an install leaves each file old or new, and the record names both, so
 * nothing that we made is taken for the user's. The next open removes temporary files.
 */
#ifndef DW_FOLLOW_FOLLOW_FILES_H
#define DW_FOLLOW_FOLLOW_FILES_H

#include "follow/installed.h"
#include "stream/record.h"

typedef enum dw_follow_files_state {
    DW_FILES_UNKNOWN,   /* no version's files are known */
    DW_FILES_KNOWN,     /* those of VERSION are, and the directory may lack some */
    DW_FILES_FETCHED,   /* what it lacks is in temporary files */
    DW_FILES_INSTALLED, /* it has them, or keeps the user's */
} dw_follow_files_state;

typedef struct dw_follow_files {
    dw_follow_files_state state;
    uint64_t version;
    dw_file_list list;        /* of VERSION */
    dw_commit_record *commit; /* of VERSION, until its step takes it; or NULL */
    dw_installed ours;        /* as in the record */
    dw_look *looks;           /* [list.n], from FETCHED on */
    bool *fetched;            /* [list.n]: there is a temporary file */
    char **kept; /* the paths of files of the user's, in place of those of VERSION */
    size_t n_kept;
} dw_follow_files;

#endif
