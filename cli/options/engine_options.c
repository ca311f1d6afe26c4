#include "engine_options.h"

#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "secret_file.h"

_Static_assert(CLI_MAX_LIST <= DW_MAX_ENGINES, "each --engine has a place");

const cli_option cli_engine_options[] = {
    {CLI_OPTION(LIST, cli_engines, specs, "engine", "SPEC",
                "an engine that serves the weights, and is paused while they change; "
                "repeatable: vllm=URL, sglang=URL, exec")},
    {CLI_OPTION(
        TEXT, cli_engines, options.shell_pause, "pause", "CMD",
        "exec: run by sh -c before the weights change; docs/OPERATIONS.md has the "
        "environment")},
    {CLI_OPTION(TEXT, cli_engines, options.shell_apply, "apply", "CMD",
                "exec: run to load the new weights")},
    {CLI_OPTION(TEXT, cli_engines, options.shell_resume, "resume", "CMD",
                "exec: run when they are loaded")},
    {CLI_OPTION(TEXT, cli_engines, token_path, "engine-token-file", "FILE",
                "send the token in FILE to the engines")},
    {CLI_OPTION(MS, cli_engines, options.apply_ms, "engine-timeout", "S",
                "how long an engine may take for an update (600)")},
    {CLI_OPTION(
        MS, cli_engines, patience_ms, "engine-patience", "S",
        "leave an engine behind that does not answer for S seconds; it loads the "
        "newest version when it answers (10 for vLLM and SGLang; no limit for one "
        "that has ended or could read a mix)")},
    {0},
};

static bool has_exec(const cli_engines *e)
{
    for (size_t i = 0; i < e->specs.n; i++)
        if (strcmp(e->specs.items[i], "exec") == 0)
            return true;
    return false;
}

static void check_usage(const cli_engines *e, const cli_session *s)
{
    const dw_engine_options *o = &e->options;
    const bool has_commands = o->shell_pause || o->shell_apply || o->shell_resume;
    if (has_commands && !has_exec(e))
        cli_usage_error(s, "--pause, --apply and --resume need --engine exec");
    if (has_exec(e) && !o->shell_apply)
        cli_usage_error(s, "--engine exec needs --apply CMD");
    if ((e->token_path || e->patience_ms) && e->specs.n == 0)
        cli_usage_error(s, "there is no --engine");
}

int cli_engines_open(cli_engines *e, const cli_session *s)
{
    dw_error err;
    check_usage(e, s);
    dw_status status = DW_OK;
    if (e->token_path) {
        status = cli_secret_file_read(&e->token, e->token_path, &err);
        e->options.token = e->token;
    }
    for (size_t i = 0; status == DW_OK && i < e->specs.n; i++)
        status = dw_engine_open(&e->engines[i], e->specs.items[i], &e->options, &err);
    return status == DW_OK ? 0 : cli_fail(s, &err, "--engine", NULL);
}

void cli_engines_close(cli_engines *e)
{
    for (size_t i = 0; i < e->specs.n; i++)
        dw_engine_close(e->engines[i]);
    free(e->token);
}
