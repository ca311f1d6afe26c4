/* The directory of deltawire's own files beside weights: DIR/.deltawire. Everything that
 * is ours in a directory, except weights and companion files, lies in it, and nothing
 * else does: no name of a companion file begins with a dot (stream/record_files.h).
 *
 *     state.json      which version the weights are, and which companion files are ours
 *                     (position.h)
 *     control         the control block (control.h)
 *     highest.json    the commit of the highest version (follow/follow_history.c)
 *     staged, patch   of a checkpoint with an index (target_files.h)
 *     NAME.staged, NAME.patch     of a checkpoint that is the file NAME
 *     engine-*        of engines that prepare patches by themselves (engine/ready.h)
 *     baseline, folds             of a publisher (publish/)
 *     *.tmp-*         files under construction, those of weights and companion files too
 *
 * A user's file or link of this name is refused, and a link is never followed.
 */
#ifndef DW_WEIGHTS_OWN_DIR_H
#define DW_WEIGHTS_OWN_DIR_H

#include <stdbool.h>

#include "deltawire/base.h"

#define DW_OWN_DIR ".deltawire"

/* Makes the directory in DIR if it is not there. DW_CONFLICT if something else has its
 * name. */
dw_status dw_own_dir_make(const char *dir, dw_error *err);

/* DW_CONFLICT if something else has its name. It may be missing. */
dw_status dw_own_dir_check(const char *dir, dw_error *err);

/* DIR/.deltawire/NAME; dw_free. NULL when out of memory. */
char *dw_own_path(const char *dir, const char *name);

/* Sets *VIA, for dw_new_file_open_via, to the name of PATH's file in the own directory of
 * its directory, which is made; dw_free. */
dw_status dw_own_via(char **via, const char *path, dw_error *err);

/* Removes temporary files in it that killed processes left. The caller has the lock of
 * DIR. */
void dw_own_dir_tidy(const char *dir);

#endif
