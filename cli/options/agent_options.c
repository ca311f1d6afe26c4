#include "agent_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "json_out.h"
#include "secret_file.h"

const cli_option cli_agent_rows[] = {
    {CLI_OPTION(TEXT, cli_agent_options, token_file, "token-file", "FILE",
                "require the token in this file (Authorization: Bearer)")},
    {CLI_OPTION(TEXT, cli_agent_options, agent.tls_cert, "tls-cert", "FILE",
                "speak HTTPS, with this certificate in PEM, and --tls-key")},
    {CLI_OPTION(TEXT, cli_agent_options, agent.tls_key, "tls-key", "FILE",
                "the key of the certificate")},
    {CLI_OPTION(FLAG, cli_agent_options, agent.plain, "plain", NULL,
                "listen elsewhere than on loopback without TLS")},
    {0},
};

void cli_agent_options_check(const cli_agent_options *options, const cli_session *s)
{
    const dw_agent_options *agent = &options->agent;
    if (cli_any_given(cli_agent_rows, options) && !agent->listen)
        cli_usage_error(s, "--token-file, --tls-cert, --tls-key and --plain go with "
                           "--listen");
    if (!agent->tls_cert != !agent->tls_key)
        cli_usage_error(s, "--tls-cert and --tls-key go together");
}

static void report_url(const cli_session *s, const char *url)
{
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", "listening");
        cli_json_text(object, "url", url);
        cli_json_event(object);
    } else if (!s->quiet) {
        fprintf(stderr, "listening at %s\n", url);
    }
}

int cli_agent_start(dw_agent **out, const cli_agent_options *options,
                    const cli_session *s)
{
    dw_error err;
    char *token = NULL;
    dw_agent_options agent = options->agent;
    dw_status status = DW_OK;
    *out = NULL;
    if (!agent.listen)
        return 0;
    if (options->token_file) {
        status = cli_secret_file_read(&token, options->token_file, &err);
        agent.token = token;
    }
    if (status == DW_OK)
        status = dw_agent_start(out, &agent, &err);
    free(token);
    if (status != DW_OK)
        return cli_fail(s, &err, agent.listen, "deltawire %s --help", s->verb);
    report_url(s, dw_agent_url(*out));
    return 0;
}
