#include "peer_options.h"

#include <string.h>

const cli_option cli_peer_rows[] = {
    {CLI_OPTION(TEXT, cli_peer_options, trl, "trl", "v1|v3", "TRL: the layout (v3)")},
    {CLI_OPTION(TEXT, cli_peer_options, codec, "codec", "CODEC",
                "TRL: gap, or raw, which is all that v1 has; slime: xor, or overwrite")},
    {CLI_OPTION(
        NUMBER, cli_peer_options, whole_every, "whole-every", "N",
        "TRL, slime: the whole model if N divides the version; TRL: 20, in v1 10; "
        "slime: never")},
    {0},
};

/* The index of TEXT among two names, or a usage error. */
static int choose(const cli_session *s, const char *option, const char *text,
                  const char *first, const char *second)
{
    if (strcmp(text, first) != 0 && strcmp(text, second) != 0)
        cli_usage_error(s, "%s: '%s' is neither %s nor %s", option, text, first, second);
    return strcmp(text, first) == 0 ? 0 : 1;
}

static void read_trl(dw_foreign_options *out, const cli_peer_options *o,
                     const cli_session *s)
{
    if (o->trl && choose(s, "--trl", o->trl, "v1", "v3") == 0) {
        out->trl_layout = 1;
        out->trl_codec = DW_CODEC_RAW;
    }
    if (o->codec)
        out->trl_codec = choose(s, "--codec", o->codec, "gap", "raw") == 0 ? DW_CODEC_GAP
                                                                           : DW_CODEC_RAW;
    if (out->trl_layout == 1 && out->trl_codec == DW_CODEC_GAP)
        cli_usage_error(s, "--trl v1 has no codec gap: take v3");
}

dw_foreign_options cli_peer_options_read(const cli_peer_options *o, const cli_session *s,
                                         const dw_format *format)
{
    dw_foreign_options out = {.n_threads = s->n_threads,
                              .whole_every = o->whole_every,
                              .trl_layout = 3,
                              .trl_codec = DW_CODEC_GAP};
    const bool is_trl = format == dw_format_named("trl");
    if (!is_trl && o->trl)
        cli_usage_error(s, "--trl: %s has no such choice", dw_format_name(format));
    if (is_trl)
        read_trl(&out, o, s);
    else if (o->codec)
        out.overwrite = choose(s, "--codec", o->codec, "xor", "overwrite") == 1;
    return out;
}
