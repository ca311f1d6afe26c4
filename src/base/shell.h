/* Runs a user's command by sh -c and waits for it. */
#ifndef DW_BASE_SHELL_H
#define DW_BASE_SHELL_H

#include <stdbool.h>

#include "base/bytes.h"
#include "deltawire/base.h"

typedef struct dw_shell_end {
    bool began;          /* there was a process */
    bool timed_out;      /* it was killed at the limit */
    int code;            /* exit code; -1: ended by SIGNAL */
    int signal;          /* 0: none */
    char last_line[256]; /* of its standard error */
} dw_shell_end;

/* Runs COMMAND. EXTRA, NAME=VALUE strings with a NULL at the end, is added to this
 * process's environment. The command leads a process group of its own and reads
 * /dev/null. Its output is appended to OUTPUT, up to DW_SHELL_OUTPUT bytes, or goes to
 * this process's standard error if OUTPUT is NULL; its standard error is read here. After
 * LIMIT_MS the group gets SIGTERM, and two seconds later SIGKILL.
 *
 * DW_OK: it ran and ended, with any result. DW_IO, DW_NO_MEMORY: it could not be run. */
#define DW_SHELL_OUTPUT (64u << 10)

dw_status dw_shell_run(const char *command, char *const *extra, unsigned limit_ms,
                       dw_writer *output, dw_shell_end *end, dw_error *err);

#endif
