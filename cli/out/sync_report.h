/* The report of a sync: what it took to bring a directory to a version. */
#ifndef CLI_SYNC_REPORT_H
#define CLI_SYNC_REPORT_H

#include <jansson.h>

#include <deltawire/follow.h>

#include "command_line.h"

/* Adds the members `from`, `version`, `steps` and so on. */
void cli_sync_report_json(json_t *object, const dw_follow_report *report, double seconds);

/* Adds what was done with companion files: `files_installed` and so on. */
void cli_sync_files_json(json_t *object, const dw_follower *follower,
                         const dw_follow_report *report);

/* Warns of each file of the user's that is in the place of one of the version's. LIST is
 * as in cli_warn. */
void cli_warn_kept(const cli_session *s, const dw_follower *follower, json_t *list);

/* Warns if N, how often weights were found damaged, is not 0. LIST is as in cli_warn. */
void cli_warn_healed(const cli_session *s, const char *into, uint64_t n, json_t *list);

/* Warns if N, how many patches were removed that the state file did not name, is not 0.
 */
void cli_warn_stray(const cli_session *s, const char *into, uint64_t n, json_t *list);

/* Prints "version 12 from 10: 2 steps, 4 objects, 1.2 MB in 0.213 s" on stdout. */
void cli_sync_report_line(const dw_follow_report *report, double seconds);

/* Reports that N files of the weights in INTO were links and are private copies now.
 * Prints nothing if N is 0. */
void cli_report_private(const cli_session *s, const char *into, uint64_t n);

#endif
