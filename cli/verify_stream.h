/* `deltawire verify` on a stream: the whole chain and every object. */
#ifndef CLI_VERIFY_STREAM_H
#define CLI_VERIFY_STREAM_H

#include <jansson.h>

#include "progress.h"
#include "store.h"

/* Opens, sweeps, reports and closes; returns the exit code. BASE, which may be NULL, is
 * the checkpoint that the versions of slime or SkyRL start from. */
int cli_verify_stream(cli_stream *stream, const cli_session *s, const char *base);

/* Where faults go: into a list for --json, else on stdout. */
typedef struct cli_verify_faults {
    cli_progress *bar; /* wiped before a line */
    json_t *list;      /* NULL: lines */
} cli_verify_faults;

/* A dw_fault_fn; CONTEXT is a cli_verify_faults. */
void cli_verify_fault(void *context, const dw_error *fault);
json_t *cli_verify_fault_json(const dw_error *fault);

#endif
