/* The options of verbs with an HTTP server, and the start of its agent. */
#ifndef CLI_AGENT_OPTIONS_H
#define CLI_AGENT_OPTIONS_H

#include <stdbool.h>

#include "agent/agent.h"

#include "command_line.h"

typedef struct cli_agent_options {
    dw_agent_options agent; /* `listen` NULL: no agent is wanted */
    const char *token_file;
} cli_agent_options;

extern const cli_option cli_agent_rows[]; /* of a cli_agent_options, but for --listen */

/* Call it after the last option. It is a usage error if --listen is missing but other
 * options of the table were given. */
void cli_agent_options_check(const cli_agent_options *options, const cli_session *s);

/* Reads the token, starts to answer, and prints the URL: a line on stderr, or with --json
 * an event {"event": "listening", "url": ...}. *OUT is NULL if no agent is wanted; the
 * functions of agent.h accept that. Returns 0, or the exit code of the error it reported.
 */
int cli_agent_start(dw_agent **out, const cli_agent_options *options,
                    const cli_session *s);

#endif
