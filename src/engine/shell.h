/* A command of the user's, run through sh -c and waited for. */
#ifndef DW_ENGINE_SHELL_H
#define DW_ENGINE_SHELL_H

#include <stdbool.h>

#include "deltawire/error.h"

typedef struct dw_shell_end {
    bool began;          /* there was a process */
    bool timed_out;      /* it had to be ended */
    int code;            /* exit code; -1: ended by SIGNAL */
    int signal;          /* 0: none */
    char last_line[256]; /* of its standard error, without control bytes at its end */
} dw_shell_end;

/* Runs COMMAND with EXTRA, strings NAME=VALUE that end with NULL, in its environment
 * besides this process's own. It is the leader of a process group, reads /dev/null, and
 * what it prints goes to this process's standard error; its own standard error is read
 * here. After LIMIT_MS the group is ended: SIGTERM, and two seconds later SIGKILL.
 *
 * DW_OK: it ran and ended in some way. DW_IO, DW_NO_MEMORY: it could not be run. */
dw_status dw_shell_run(const char *command, char *const *extra, unsigned limit_ms,
                       dw_shell_end *end, dw_error *err);

#endif
