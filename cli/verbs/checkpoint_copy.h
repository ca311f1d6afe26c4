/* A copy of a checkpoint. It has a temporary name while it is worked on, and gets its own
 * when it is complete.
 *
 *     a file        its bytes
 *     a directory   every regular file in it, and the files that symbolic links point to;
 *                   no sub-directories, and no patch files of an apply
 *     an index      the directory it is in
 */
#ifndef CLI_CHECKPOINT_COPY_H
#define CLI_CHECKPOINT_COPY_H

#include <deltawire/checkpoint.h>

#include "progress_bar.h"

typedef struct cli_copy {
    char *temporary;  /* file or directory beside the destination; NULL until it is made,
                         and once it is committed */
    char *checkpoint; /* the path to open */
    bool is_directory;
} cli_copy;

/* Copies CKPT, which was opened as SOURCE. Refuses an existing destination. A failure
 * leaves nothing behind. Only files that were made here are removed. */
dw_status cli_copy_make(cli_copy *out, const char *source, const dw_checkpoint *ckpt,
                        const char *destination, cli_progress *progress, dw_error *err);

/* Syncs and renames. A failure leaves the copy to cli_copy_discard. */
dw_status cli_copy_commit(cli_copy *copy, const char *destination, dw_error *err);

/* Removes the copy, unless it is committed, and frees. */
void cli_copy_discard(cli_copy *copy);

#endif
