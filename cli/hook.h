/* The user's own command, run after a version. */
#ifndef CLI_HOOK_H
#define CLI_HOOK_H

#include <deltawire/error.h>

#include "options.h"

/* Runs COMMAND through sh -c with EXTRA, strings NAME=VALUE that end with NULL, set in
 * its environment besides this process's own, and waits for it. A signal that asks this
 * process to stop is passed on. It reads from /dev/null. With --json its standard output
 * goes to the standard error. Sets *STATUS as waitpid does. */
dw_status cli_hook_run(const cli_session *s, const char *command, char *const *extra,
                       int *status, dw_error *err);

/* "exit code 3", "signal 9". Returns OUT. */
const char *cli_hook_fate(char out[32], int status);

#endif
