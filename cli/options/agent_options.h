/* The options of verbs with an HTTP server, and the start of its agent. */
#ifndef CLI_AGENT_OPTIONS_H
#define CLI_AGENT_OPTIONS_H

#include <stdbool.h>

#include "agent/agent.h"

#include "command_line.h"

enum {
    CLI_OPT_LISTEN = 1280,
    CLI_OPT_TOKEN_FILE,
    CLI_OPT_TLS_CERT,
    CLI_OPT_TLS_KEY,
    CLI_OPT_PLAIN,
};

/* Belongs in a verb's table of options, before CLI_COMMON_OPTIONS. */
#define CLI_AGENT_OPTIONS                                                                \
    {"listen", required_argument, NULL, CLI_OPT_LISTEN},                                 \
        {"token-file", required_argument, NULL, CLI_OPT_TOKEN_FILE},                     \
        {"tls-cert", required_argument, NULL, CLI_OPT_TLS_CERT},                         \
        {"tls-key", required_argument, NULL, CLI_OPT_TLS_KEY},                           \
    {                                                                                    \
        "plain", no_argument, NULL, CLI_OPT_PLAIN                                        \
    }

/* Their lines in a verb's help. The line of --listen comes before, because its default
 * differs. */
#define CLI_AGENT_HELP                                                                   \
    "  --token-file F       require the token in this file (Authorization: Bearer)\n"    \
    "  --tls-cert F  --tls-key F   speak HTTPS, with these PEM files\n"                  \
    "  --plain              listen elsewhere than on loopback without TLS\n"

typedef struct cli_agent_options {
    dw_agent_options agent; /* `listen` NULL: no agent is wanted */
    const char *token_file;
} cli_agent_options;

void cli_agent_options_init(cli_agent_options *options);

/* Handles an option of the table above; false if OPTION is not in it. */
bool cli_agent_option(cli_agent_options *options, int option);

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
