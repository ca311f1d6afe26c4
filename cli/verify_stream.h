/* `deltawire verify` on a stream: the whole chain and every object. */
#ifndef CLI_VERIFY_STREAM_H
#define CLI_VERIFY_STREAM_H

#include "store.h"

/* Opens, sweeps, reports and closes; returns the exit code. */
int cli_verify_stream(cli_stream *stream, const cli_session *s);

#endif
