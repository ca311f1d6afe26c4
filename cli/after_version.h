/* The user's own command for each version that arrives. */
#ifndef CLI_AFTER_VERSION_H
#define CLI_AFTER_VERSION_H

#include <deltawire/stream.h>

#include "options.h"

typedef struct cli_command {
    const char *text; /* --exec; NULL: none */
    double limit;     /* --exec-timeout, seconds */
} cli_command;

#define CLI_COMMAND_LIMIT 600.0

/* Runs COMMAND for the version that DIR is at now, with DELTAWIRE_VERSION and so on in
 * its environment. Anything but exit code 0 is told, and an error, which is no reason to
 * stop. */
dw_status cli_after_version(const cli_session *s, const cli_command *command,
                            const char *dir, dw_stream *stream, uint64_t version,
                            dw_error *err);

/* The same where there is no stream to ask: STEP and STATE are what is told of it. */
dw_status cli_after_weights(const cli_session *s, const cli_command *command,
                            const char *dir, uint64_t version, const char *step,
                            const char *state, dw_error *err);

#endif
