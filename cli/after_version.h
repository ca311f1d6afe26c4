/* The user's own command for each version that arrives. */
#ifndef CLI_AFTER_VERSION_H
#define CLI_AFTER_VERSION_H

#include <deltawire/stream.h>

#include "options.h"

/* Runs COMMAND for the version that DIR is at now, with DELTAWIRE_VERSION and so on in
 * its environment, and tells how it ended where that was badly. Nothing that goes wrong
 * here is a reason to stop. */
void cli_after_version(const cli_session *s, const char *command, const char *dir,
                       dw_stream *stream, uint64_t version);

/* The same where there is no stream to ask: STEP and STATE are what is told of it. */
void cli_after_weights(const cli_session *s, const char *command, const char *dir,
                       uint64_t version, const char *step, const char *state);

#endif
