/* Engines on the command line: --engine SPEC and the options that go with it. */
#ifndef CLI_ENGINE_OPTIONS_H
#define CLI_ENGINE_OPTIONS_H

#include "engine/rollout.h"

#include "command_line.h"

#define CLI_ENGINE_HELP                                                                  \
    "  --engine SPEC        an engine that serves the weights, and is paused while "     \
    "they\n"                                                                             \
    "                       change; repeatable: vllm=URL, sglang=URL, exec\n"            \
    "  --pause CMD  --apply CMD  --resume CMD\n"                                         \
    "                       exec: commands for sh -c; docs/OPERATIONS.md has\n"          \
    "                       their environment\n"                                         \
    "  --engine-token-file F  send the token in F to the engines\n"                      \
    "  --engine-timeout S   how long an engine may take for an update (600)\n"           \
    "  --engine-patience S  leave an engine behind that does not answer for S seconds\n" \
    "                       (10 for vLLM and SGLang; none if it could read a mix)\n"     \
    "  --engine-check S     check the engines every S seconds (5)\n"

enum {
    CLI_OPT_ENGINE = 1536,
    CLI_OPT_PAUSE,
    CLI_OPT_APPLY,
    CLI_OPT_RESUME,
    CLI_OPT_ENGINE_TOKEN,
    CLI_OPT_ENGINE_TIMEOUT,
    CLI_OPT_ENGINE_PATIENCE,
    CLI_OPT_ENGINE_CHECK,
};

/* Belongs in a verb's table of options, before CLI_COMMON_OPTIONS. */
#define CLI_ENGINE_OPTIONS                                                               \
    {"engine", required_argument, NULL, CLI_OPT_ENGINE},                                 \
        {"pause", required_argument, NULL, CLI_OPT_PAUSE},                               \
        {"apply", required_argument, NULL, CLI_OPT_APPLY},                               \
        {"resume", required_argument, NULL, CLI_OPT_RESUME},                             \
        {"engine-token-file", required_argument, NULL, CLI_OPT_ENGINE_TOKEN},            \
        {"engine-timeout", required_argument, NULL, CLI_OPT_ENGINE_TIMEOUT},             \
        {"engine-patience", required_argument, NULL, CLI_OPT_ENGINE_PATIENCE},           \
    {                                                                                    \
        "engine-check", required_argument, NULL, CLI_OPT_ENGINE_CHECK                    \
    }

typedef struct cli_engines {
    const char *specs[DW_MAX_ENGINES];
    dw_engine *engines[DW_MAX_ENGINES];
    size_t n;
    dw_engine_options options;
    const char *token_path;
    char *token;
    unsigned patience_ms;
    double check_every; /* seconds */
} cli_engines;

void cli_engines_init(cli_engines *engines);

/* Handles an option of the table above, with its value in optarg; false if OPTION is not
 * in it. */
bool cli_engines_option(cli_engines *engines, const cli_session *s, int option);

/* Checks the options, and opens the engines. Returns 0, or the exit code of the error
 * it reported. */
int cli_engines_open(cli_engines *engines, const cli_session *s);
void cli_engines_close(cli_engines *engines);

#endif
