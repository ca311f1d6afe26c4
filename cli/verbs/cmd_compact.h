/* Folds and anchors, made by `compact` and beside `publish --watch`. */
#ifndef CLI_CMD_COMPACT_H
#define CLI_CMD_COMPACT_H

#include <deltawire/stream.h>

#include "command_line.h"

/* The span of --fold N|none. */
unsigned cli_parse_fold(const cli_session *s, const char *text);
double cli_parse_factor(const cli_session *s, const char *text);

/* Makes what is due, and goes on as versions come, until PROGRESS stops it.
 * What fails is reported, and tried again. QUIET: what is made is not printed. */
void cli_compact_watch(dw_store *store, const dw_compact_options *options,
                       const cli_session *s, const char *url, bool quiet,
                       const dw_progress *progress);

#endif
