/* Trouble that passes: what a verb that never ends does about errors. Each is told once,
 * not at every try; the tries come less and less often; and that it is over is told too.
 */
#ifndef CLI_OUTAGE_H
#define CLI_OUTAGE_H

#include <deltawire/error.h>

#include "options.h"

typedef struct cli_outage {
    const char *subject; /* for the lines: the URL or the directory */
    double max_wait;     /* wait between two tries, seconds; 0: 60 */
    unsigned n_tries;    /* since it began; 0: there is none */
    dw_error reported;
} cli_outage;

/* Takes an error: tells it where it is a new one. */
void cli_outage_add(cli_outage *outage, const cli_session *s, const dw_error *err);

/* Seconds to wait before the next try: 1, 2, 4, up to 60, and never above `longest`. */
double cli_outage_wait(const cli_outage *outage);

/* Sleeps so long; a signal ends it. */
void cli_outage_sleep(const cli_outage *outage);

/* Tells that it is over, where there was any. */
void cli_outage_end(cli_outage *outage, const cli_session *s);

/* One JSON event {"event": EVENT, "code": ..., "where": ..., "text": ...} on stdout, or
 * one line on stderr. */
void cli_report_error(const cli_session *s, const char *event, const char *fallback,
                      const dw_error *err);

#endif
