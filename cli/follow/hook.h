/* The user's own command, run after a version. */
#ifndef CLI_HOOK_H
#define CLI_HOOK_H

#include <deltawire/base.h>

#include "command_line.h"

typedef struct cli_hook_end {
    int status; /* as waitpid has it */
    bool timed_out;
} cli_hook_end;

/* Runs COMMAND through sh -c with EXTRA, strings NAME=VALUE that end with NULL, set in
 * its environment besides this process's own, and waits for it. A signal that asks this
 * process to stop is passed on. It reads from /dev/null. With --json its standard output
 * goes to the standard error. After LIMIT seconds its process group gets SIGTERM, and two
 * seconds later SIGKILL. */
dw_status cli_hook_run(const cli_session *s, const char *command, char *const *extra,
                       double limit, cli_hook_end *end, dw_error *err);

/* "exit code 3", "signal 9", "timeout". Returns OUT. */
const char *cli_hook_fate(char out[32], const cli_hook_end *end);

#endif
