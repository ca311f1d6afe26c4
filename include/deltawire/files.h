/* Companion files: the small files that belong to a model, such as config.json and those
 * of a tokenizer.
 *
 * A version can carry them (docs/PROTOCOL.md, section 2): at most 1,024 files, together
 * at most 64 MiB. Their names have no path. dw_publish_options and dw_publish_note take
 * them; a follower installs them in its directory together with the weights. This header
 * collects them from a directory and reads them from a stream.
 */
#ifndef DELTAWIRE_FILES_H
#define DELTAWIRE_FILES_H

#include <string.h>

#include "deltawire/base.h"
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

/* ---- the files of a directory --------------------------------------------------- */

/* Which files of a directory to take: the usual names (docs/deltawire.1 lists them
 * under publish, --with) and those that match WITH, less those that match WITHOUT. The
 * patterns are those of fnmatch(3), for names without a path. They never take weights,
 * hidden files or those of deltawire. */
typedef struct dw_companion_rules {
    size_t struct_bytes; /* set by dw_companion_rules_init */
    const char *const *with;
    size_t n_with;
    const char *const *without;
    size_t n_without;
    bool no_defaults; /* only what matches WITH */
} dw_companion_rules;

static inline void dw_companion_rules_init(dw_companion_rules *rules)
{
    memset(rules, 0, sizeof *rules);
    rules->struct_bytes = sizeof *rules;
}

typedef struct dw_companions dw_companions;

/* Reads the files of DIR that the rules take into memory. Links to files are followed, as
 * caches of Hugging Face consist of them. Directories are passed over, unless WITH has
 * the very name. Anything else that is no regular file is an error: DW_NOT_FOUND if a
 * link leads nowhere or a name of WITH is not there, otherwise DW_INVALID. DW_STALE if a
 * file changes or vanishes while it is read, or its name ends in .json and it is empty or
 * ends too early. DW_INVALID if it cannot become JSON, if a name has control characters,
 * or if there are too many files or bytes. */
DW_API dw_status dw_companions_load(dw_companions **out, const char *dir,
                                    const dw_companion_rules *rules, dw_error *err);
DW_API void dw_companions_close(dw_companions *companions);

/* The files, ordered by name. They live as long as COMPANIONS. */
DW_API const dw_file *dw_companions_files(const dw_companions *companions,
                                          size_t *n_files);

/* ---- the files of a version ------------------------------------------------------ */

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

/* ---- the files that a follower installed ----------------------------------------- */

#ifdef __cplusplus
}
#endif

#endif
