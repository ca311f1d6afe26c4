/* The user's own command for each version that arrives. */
#ifndef CLI_AFTER_VERSION_H
#define CLI_AFTER_VERSION_H

#include <deltawire/stream.h>

#include "command_line.h"

typedef struct cli_command {
    const char *text;  /* --exec; NULL: none */
    double limit;      /* --exec-timeout, seconds */
    bool is_due;       /* it has not succeeded for the current version */
    unsigned n_failed; /* runs for that version */
} cli_command;

#define CLI_COMMAND_LIMIT 600.0

/* Notes that a new version arrived: the command must run for it. */
void cli_command_set_due(cli_command *command);

/* Runs COMMAND for the version that DIR is at now, with DELTAWIRE_VERSION and so on in
 * its environment. If it exits with 0, it is no longer due. Anything else is
 * DW_UNAVAILABLE: the caller runs it again later. A command that ends because a signal
 * stops this process is DW_CANCELLED. */
dw_status cli_after_version(const cli_session *s, cli_command *command, const char *dir,
                            dw_stream *stream, uint64_t version, dw_error *err);

/* For a COMMAND that failed for the version of --until: prints ERR and returns the exit
 * code. */
int cli_command_fail(const cli_session *s, const dw_error *err);

#endif
