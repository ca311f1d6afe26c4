/* Taking a stream over from another writer (docs/PROTOCOL.md, section 3).
 *
 * The fence keeps two writers apart in any case. This is for people: a job that is
 * started twice by mistake should not end the one that runs.
 */
#ifndef DW_PUBLISH_TAKEOVER_H
#define DW_PUBLISH_TAKEOVER_H

#include "publish/commits.h"

/* Returns when it is certain that the writer that claimed EPOCH, the newest, writes no
 * more, or that it may be taken over from. DW_CONFLICT if it goes on. */
dw_status dw_writer_await(dw_publisher *p, uint64_t epoch, dw_error *err);

#endif
