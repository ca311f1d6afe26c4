/* `deltawire inspect URL`: a version of a stream and its companion files. */
#ifndef CLI_INSPECT_STREAM_H
#define CLI_INSPECT_STREAM_H

#include "stream_open.h"

/* Shows VERSION, which may be DW_NEWEST, or writes its companion file NAME, if that is
 * not NULL, to stdout. Opens the stream, which the caller closes. Returns the exit code.
 */
int cli_inspect_stream(cli_stream *stream, const cli_session *s, uint64_t version,
                       const char *name);

#endif
