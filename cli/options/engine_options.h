/* Engines on the command line: --engine SPEC and the options that go with it. */
#ifndef CLI_ENGINE_OPTIONS_H
#define CLI_ENGINE_OPTIONS_H

#include "engine/rollout.h"

#include "command_line.h"

typedef struct cli_engines {
    cli_list specs;
    dw_engine *engines[CLI_MAX_LIST];
    dw_engine_options options;
    const char *token_path;
    char *token;
    unsigned patience_ms;
} cli_engines;

extern const cli_option cli_engine_options[]; /* of a cli_engines */

/* Checks the options, and opens the engines. Returns 0, or the exit code of the error
 * it reported. */
int cli_engines_open(cli_engines *engines, const cli_session *s);
void cli_engines_close(cli_engines *engines);

#endif
