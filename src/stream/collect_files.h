/* Which objects of companion files a collection may remove. */
#ifndef DW_STREAM_COLLECT_FILES_H
#define DW_STREAM_COLLECT_FILES_H

#include "stream/listing.h"

/* Marks (1) the objects of FILES that may go if the stream begins at FLOOR, and clears
 * the marks of the others. HEAD must have been read after FILES was listed.
 *
 * The commits that name an object follow each other without a gap, from the version in
 * its name on. So one of a version up to FLOOR is needed only if the commit of FLOOR
 * names it. One of a later version is needed if its own commit names it; that is read
 * only if several attempts at the version left objects. Above HEAD everything stays. */
dw_status dw_collect_mark_files(dw_listing *files, dw_stream *stream, uint64_t floor,
                                uint64_t head, dw_error *err);

#endif
