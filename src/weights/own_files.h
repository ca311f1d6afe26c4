/* Whether the files of a checkpoint belong to it only.
 *
 * Stores go through the maps of files that were opened by their names. A file that has
 * another name, or that is reached through a symbolic link, belongs to others too: a
 * snapshot in the Hugging Face cache consists of links to files that other snapshots
 * share. A file that its name does not lead to any more was replaced or removed, and
 * stores to it are lost.
 */
#ifndef DW_WEIGHTS_OWN_FILES_H
#define DW_WEIGHTS_OWN_FILES_H

#include "tensor/checkpoint.h"

typedef enum dw_ownership {
    DW_FILES_OWN,      /* regular, one name, and that name leads to the open file */
    DW_FILES_SHARED,   /* a link, or a file with several names */
    DW_FILES_REPLACED, /* the name leads to another file, or to nothing */
} dw_ownership;

/* Judges the files that are open, so that no race is left between the check and the
 * stores. If the result is not DW_FILES_OWN, ERR is filled: a DW_CONFLICT that names the
 * file. */
dw_ownership dw_files_judge(const dw_checkpoint *ckpt, dw_error *err);

/* Puts a private copy in the place of each shared file. CKPT still maps the old files:
 * open it again. Adds the number of copies to *N_COPIED. */
dw_status dw_files_make_own(const dw_checkpoint *ckpt, uint64_t *n_copied, dw_error *err);

/* Removes the files by their names. */
dw_status dw_files_remove(const dw_checkpoint *ckpt, dw_error *err);

#endif
