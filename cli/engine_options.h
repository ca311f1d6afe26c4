/* Engines on the command line: --engine SPEC and what goes with it. */
#ifndef CLI_ENGINE_OPTIONS_H
#define CLI_ENGINE_OPTIONS_H

#include <deltawire/rollout.h>

#include "options.h"

#define CLI_ENGINE_HELP                                                                  \
    "  --engine SPEC        an engine that serves the weights, and is paused while "     \
    "they\n"                                                                             \
    "                       change; repeatable: vllm=URL, sglang=URL, exec\n"            \
    "  --pause CMD  --apply CMD  --resume CMD\n"                                         \
    "                       exec: commands for sh -c; see docs/ENGINES.md for their\n"   \
    "                       environment\n"                                               \
    "  --engine-token-file F  send the token in F to the engines\n"                      \
    "  --engine-timeout S   wait so long for an engine to take an update over (600)\n"   \
    "  --engine-patience S  do without an engine that is away for so long; default: "    \
    "wait\n"                                                                             \
    "  --engine-loaded      the engines were started from DIR as it is now: do not "     \
    "make\n"                                                                             \
    "                       them load it again\n"                                        \
    "  --engine-check S     look after the engines so often (5)\n"

/* Their codes, from FIRST on, of which there are CLI_N_ENGINE_OPTIONS. */
enum {
    CLI_ENGINE_SPEC,
    CLI_ENGINE_PAUSE,
    CLI_ENGINE_APPLY,
    CLI_ENGINE_RESUME,
    CLI_ENGINE_TOKEN,
    CLI_ENGINE_TIMEOUT,
    CLI_ENGINE_PATIENCE,
    CLI_ENGINE_LOADED,
    CLI_ENGINE_CHECK,
    CLI_N_ENGINE_OPTIONS
};

/* A line of a verb's table of options. */
#define CLI_ENGINE_OPTIONS(FIRST)                                                        \
    {"engine", required_argument, NULL, (FIRST) + CLI_ENGINE_SPEC},                      \
        {"pause", required_argument, NULL, (FIRST) + CLI_ENGINE_PAUSE},                  \
        {"apply", required_argument, NULL, (FIRST) + CLI_ENGINE_APPLY},                  \
        {"resume", required_argument, NULL, (FIRST) + CLI_ENGINE_RESUME},                \
        {"engine-token-file", required_argument, NULL, (FIRST) + CLI_ENGINE_TOKEN},      \
        {"engine-timeout", required_argument, NULL, (FIRST) + CLI_ENGINE_TIMEOUT},       \
        {"engine-patience", required_argument, NULL, (FIRST) + CLI_ENGINE_PATIENCE},     \
        {"engine-loaded", no_argument, NULL, (FIRST) + CLI_ENGINE_LOADED},               \
    {                                                                                    \
        "engine-check", required_argument, NULL, (FIRST) + CLI_ENGINE_CHECK              \
    }

typedef struct cli_engines {
    const char *specs[DW_MAX_ENGINES];
    dw_engine *engines[DW_MAX_ENGINES];
    size_t n;
    dw_engine_options options;
    const char *token_path;
    char *token;
    unsigned patience_ms;
    bool loaded;
    double check_every; /* seconds */
} cli_engines;

void cli_engines_init(cli_engines *engines);

/* Takes the option CODE, counted from 0, with its value in optarg. */
void cli_engines_option(cli_engines *engines, const cli_session *s, int code);

/* Checks what belongs together, and opens them. Returns 0, or the exit code of the error
 * it reported. */
int cli_engines_open(cli_engines *engines, const cli_session *s);
void cli_engines_close(cli_engines *engines);

#endif
