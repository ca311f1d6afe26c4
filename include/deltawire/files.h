/* Companion files: the small files that belong to a model, such as config.json and those
 * of a tokenizer. Experimental.
 *
 * A version can carry them (docs/PROTOCOL.md, section 2): at most 1,024 files, together
 * at most 64 MiB. Their names have no path. dw_publish_options and dw_publish_note take
 * them; a follower installs them in its directory together with the weights. This header
 * reads them from a stream.
 */
#ifndef DELTAWIRE_FILES_H
#define DELTAWIRE_FILES_H

#include "deltawire/error.h"
#include "deltawire/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A file to publish. Borrowed. */
typedef struct dw_file {
    const char *name;
    const void *bytes; /* may be NULL if there are none */
    uint64_t n_bytes;
} dw_file;

/* A file of a version. */
typedef struct dw_file_info {
    const char *name;
    uint64_t n_bytes;
    uint8_t sha256[32];
    uint64_t version; /* that stored these bytes first */
} dw_file_info;

/* The files of a version, ordered by name. IS_GIVEN is false if the version says nothing
 * about files, so that a reader leaves those it has; it may be NULL. The array lives
 * until the next call with the same stream. */
DW_API dw_status dw_stream_files(dw_stream *stream, uint64_t version,
                                 const dw_file_info **files, size_t *n_files,
                                 bool *is_given, dw_error *err);

/* Fetches a file of a version, and checks its size and SHA-256. DW_NOT_FOUND if the
 * version has no file of that name, or if a collection removed it. The bytes live until
 * the next call with the same stream. */
DW_API dw_status dw_stream_read_file(dw_stream *stream, uint64_t version,
                                     const char *name, const void **bytes,
                                     uint64_t *n_bytes, dw_error *err);

#ifdef __cplusplus
}
#endif

#endif
