/* Companion files in a follower's directory: which are ours.
 *
 * A directory may have files of its user too, and these are never touched. A file is ours
 * only if the record has its name, its size and its SHA-256 (weights/position.h). If the
 * user changed a file, put another in its place or made it a link, it is the user's.
 */
#ifndef DW_FOLLOW_INSTALLED_H
#define DW_FOLLOW_INSTALLED_H

#include "weights/position.h"

/* What is there under a name. */
typedef struct dw_look {
    bool exists;
    bool is_ours;   /* as the record has it */
    bool is_wanted; /* the bytes that the version has, whoever put them there */
} dw_look;

/* Looks at DIR/NAME. WANTED is the version's file, or NULL. A file of another size than
 * each that could be there is not read. */
dw_status dw_look_at(dw_look *out, const char *dir, const char *name,
                     const dw_installed *ours, const dw_file_entry *wanted,
                     dw_error *err);

#endif
