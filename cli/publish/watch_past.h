/* Finds the checkpoints in a directory that a stream already has when a watch begins.
 *
 * A checkpoint was published if the stream has a version of its step that is younger than
 * its files. If the files are the younger ones, they were written again by a trainer that
 * went back to an older checkpoint, or they are copies: then the weights decide.
 */
#ifndef CLI_WATCH_PAST_H
#define CLI_WATCH_PAST_H

#include <deltawire/stream.h>

#include "watch_dir.h"

/* After a scan: marks the checkpoints that need no publishing as done. HEAD is the
 * stream's. Reads records back to the oldest checkpoint. */
dw_status cli_watch_past(cli_watch *watch, dw_stream *stream, uint64_t head,
                         dw_error *err);

#endif
