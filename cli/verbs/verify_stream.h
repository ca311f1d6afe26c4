/* `deltawire verify` on a stream: the whole chain and every object. */
#ifndef CLI_VERIFY_STREAM_H
#define CLI_VERIFY_STREAM_H

#include <jansson.h>

#include "progress_bar.h"
#include "stream_open.h"

typedef struct cli_verify_options {
    const char *base; /* the checkpoint behind a version 0 that is not in the stream; or
                         NULL */
    bool no_decode;   /* check only records and objects */
    const char *work; /* takes a copy of the model; NULL: TMPDIR */
} cli_verify_options;

extern const cli_option cli_verify_rows[]; /* of a cli_verify_options */

/* Opens, checks, decodes, reports and closes. Returns the exit code. */
int cli_verify_stream(cli_stream *stream, const cli_session *s,
                      const cli_verify_options *options);

/* Takes faults: collected for --json, otherwise printed on stdout. */
typedef struct cli_verify_faults {
    cli_progress *bar; /* wiped before a line */
    json_t *list;      /* NULL: lines */
    uint64_t n;
    dw_error first;
} cli_verify_faults;

/* A dw_fault_fn; CONTEXT is a cli_verify_faults. */
void cli_verify_fault(void *context, const dw_error *fault);

/* Prints the ERR that ended a verify, and returns its exit code. If ERR is a fault that
 * was printed already, prints only the number of faults. */
int cli_verify_fail(const cli_session *s, const cli_verify_faults *faults,
                    const dw_error *err, const char *url);

#endif
