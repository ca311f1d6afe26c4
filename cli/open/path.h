/* Checks and makes paths that the user named. */
#ifndef CLI_PATH_H
#define CLI_PATH_H

#include <deltawire/base.h>

/* Fails if no file can be made or replaced at PATH. Called before long work, so that the
 * error comes first. */
dw_status cli_path_check_output(const char *path, dw_error *err);

/* Makes the directory and those above it that are missing. Only this user can read them.
 */
dw_status cli_path_make_directories(const char *path, dw_error *err);

#endif
