#include "engine_options.h"

#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "secret_file.h"

void cli_engines_init(cli_engines *e)
{
    *e = (cli_engines){.check_every = 5};
}

static unsigned parse_ms(const cli_session *s, const char *option)
{
    return (unsigned)(1000 * cli_parse_seconds(s, option, optarg)) + 1;
}

bool cli_engines_option(cli_engines *e, const cli_session *s, int option)
{
    switch (option) {
    case CLI_OPT_ENGINE:
        if (e->n == DW_MAX_ENGINES)
            cli_usage_error(s, "--engine: at most %d", DW_MAX_ENGINES);
        e->specs[e->n++] = optarg;
        break;
    case CLI_OPT_PAUSE:
        e->options.shell_pause = optarg;
        break;
    case CLI_OPT_APPLY:
        e->options.shell_apply = optarg;
        break;
    case CLI_OPT_RESUME:
        e->options.shell_resume = optarg;
        break;
    case CLI_OPT_ENGINE_TOKEN:
        e->token_path = optarg;
        break;
    case CLI_OPT_ENGINE_TIMEOUT:
        e->options.apply_ms = parse_ms(s, "--engine-timeout");
        break;
    case CLI_OPT_ENGINE_PATIENCE:
        e->patience_ms = parse_ms(s, "--engine-patience");
        break;
    case CLI_OPT_ENGINE_CHECK:
        e->check_every = parse_ms(s, "--engine-check") / 1000.0;
        break;
    default:
        return false;
    }
    return true;
}

static bool has_exec(const cli_engines *e)
{
    for (size_t i = 0; i < e->n; i++)
        if (strcmp(e->specs[i], "exec") == 0)
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
    if ((e->token_path || e->patience_ms) && e->n == 0)
        cli_usage_error(s, "there is no --engine");
}

int cli_engines_open(cli_engines *e, const cli_session *s)
{
    dw_error err;
    e->options.struct_bytes = sizeof e->options;
    check_usage(e, s);
    dw_status status = DW_OK;
    if (e->token_path) {
        status = cli_secret_file_read(&e->token, e->token_path, &err);
        e->options.token = e->token;
    }
    for (size_t i = 0; status == DW_OK && i < e->n; i++)
        status = dw_engine_open(&e->engines[i], e->specs[i], &e->options, &err);
    return status == DW_OK ? 0 : cli_fail(s, &err, "--engine", NULL);
}

void cli_engines_close(cli_engines *e)
{
    for (size_t i = 0; i < e->n; i++)
        dw_engine_close(e->engines[i]);
    free(e->token);
}
