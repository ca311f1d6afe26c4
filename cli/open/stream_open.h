/* Opens stores and streams for the verbs: a URL, the options to reach it, and the trusted
 * keys. */
#ifndef CLI_STREAM_OPEN_H
#define CLI_STREAM_OPEN_H

#include <stdbool.h>

#include <deltawire/store.h>
#include <deltawire/stream.h>

#include "command_line.h"
#include "keys.h"

/* How to reach a store, of a dw_store_options; and a second one, but for its timeout. */
extern const cli_option cli_store_options[], cli_to_store_options[];

/* Whether TEXT names a stream rather than a file: by a scheme, or as a directory with a
 * stream, or another system's versions, in it. */
bool cli_is_stream(const char *text);

/* The directory of a store whose URL, from dw_store_url, is file://DIR; else NULL. */
const char *cli_store_path(const char *url);

/* Like dw_store_open, but an error always has a `where`. Callers must not put the URL
 * there: a URL that is refused for its secrets would be printed with them. */
dw_status cli_store_open_at(dw_store **out, const char *url,
                            const dw_store_options *options, dw_error *err);

/* Returns 0, or the exit code of the error it reported. */
int cli_store_open(dw_store **out, const cli_session *s, const char *url,
                   const dw_store_options *options);

/* Options for a stream that may be a fork. */
typedef struct cli_fork_opener {
    const char *url;
    const dw_store_options *options;
} cli_fork_opener;

/* Opens the store of the stream that a fork starts from; CONTEXT is a cli_fork_opener.
 * The two are usually in the same store, so the same options apply. But the URL comes
 * from a record: an endpoint or a profile is not passed to a store of another kind. */
dw_status cli_store_open_fork(void *context, dw_store **out, const char *url,
                              dw_error *err);

typedef struct cli_stream {
    const char *url;
    dw_store_options options;
    cli_keys keys;
    dw_store *store;
    dw_stream *stream;
} cli_stream;

/* How to reach it and whom to trust, of a cli_stream. */
extern const cli_option cli_stream_options[];

/* Opens the store and the stream at URL, with the trusted keys. Returns 0, or the exit
 * code of the error it reported. */
int cli_stream_open(cli_stream *stream, const cli_session *s);

/* Whether STORE holds versions of another system in place of a stream; *SYSTEM, which may
 * be NULL, takes its name. Only mirror reads them. */
bool cli_is_foreign(dw_store *store, const char **system);

/* Reports ERR, for which no stream could be opened in STORE, or that another system's
 * versions are there. Returns the exit code. */
int cli_open_fail(const cli_session *s, dw_store *store, const dw_error *err,
                  const char *url);

/* Closes both and frees the keys. */
void cli_stream_close(cli_stream *stream);

/* Reports ERR, an error of the stream at URL, and the command that helps best, if there
 * is one. Returns the exit code. */
int cli_stream_fail(const cli_session *s, const dw_error *err, const char *url);

#endif
