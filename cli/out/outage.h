/* Errors that a long-running verb survives. Each is reported once, not at every try. The
 * tries become less frequent. The recovery is reported too. */
#ifndef CLI_OUTAGE_H
#define CLI_OUTAGE_H

#include <deltawire/base.h>

#include "command_line.h"

typedef struct cli_outage {
    const char *subject; /* the URL or the directory, for messages */
    double max_wait;     /* wait between two tries, seconds; 0: 60 */
    unsigned n_tries;    /* since it began; 0: there is none */
    dw_error reported;
} cli_outage;

/* Counts a failed try, and reports its error if it is a new one. */
void cli_outage_add(cli_outage *outage, const cli_session *s, const dw_error *err);

/* Seconds to wait before the next try: 1, 2, 4, up to 60, and never above `max_wait`. */
double cli_outage_wait(const cli_outage *outage);

/* Sleeps until then; a signal ends it. */
void cli_outage_sleep(const cli_outage *outage);

/* Reports the recovery, if there was an outage. */
void cli_outage_end(cli_outage *outage, const cli_session *s);

/* One JSON event {"event": EVENT, "code": ..., "where": ..., "text": ...} on stdout, or
 * one line on stderr. */
void cli_report_error(const cli_session *s, const char *event, const char *fallback,
                      const dw_error *err);

#endif
