#include "peer_options.h"

#include <string.h>

bool cli_peer_option(cli_peer_options *options, int option)
{
    const char **place = option == CLI_OPT_AS            ? &options->as
                         : option == CLI_OPT_TRL         ? &options->trl
                         : option == CLI_OPT_CODEC       ? &options->codec
                         : option == CLI_OPT_CHECKSUM    ? &options->checksum
                         : option == CLI_OPT_WHOLE_EVERY ? &options->whole_every
                         : option == CLI_OPT_MAX_SHARD   ? &options->max_shard
                                                         : NULL;
    if (place)
        *place = optarg;
    return place != NULL;
}

bool cli_peer_options_given(const cli_peer_options *o)
{
    return o->trl || o->codec || o->checksum || o->whole_every || o->max_shard;
}

/* The index of TEXT among two names, or a usage error. */
static int choose(const cli_session *s, const char *option, const char *text,
                  const char *first, const char *second)
{
    if (strcmp(text, first) != 0 && strcmp(text, second) != 0)
        cli_usage_error(s, "%s: '%s' is neither %s nor %s", option, text, first, second);
    return strcmp(text, first) == 0 ? 0 : 1;
}

static void refuse(const cli_session *s, const char *option, const char *value,
                   dw_peer_format format)
{
    if (value)
        cli_usage_error(s, "%s: %s has no such choice", option,
                        dw_peer_format_name(format));
}

static void read_trl(dw_peer_publish_options *out, const cli_peer_options *o,
                     const cli_session *s)
{
    refuse(s, "--checksum", o->checksum, DW_PEER_TRL);
    refuse(s, "--max-shard", o->max_shard, DW_PEER_TRL);
    if (o->trl)
        out->trl_layout = choose(s, "--trl", o->trl, "v1", "v3") == 0 ? 1 : 3;
    if (out->trl_layout == 1)
        out->trl_codec = DW_CODEC_RAW;
    if (o->codec)
        out->trl_codec = choose(s, "--codec", o->codec, "gap", "raw") == 0 ? DW_CODEC_GAP
                                                                           : DW_CODEC_RAW;
    if (out->trl_layout == 1 && out->trl_codec == DW_CODEC_GAP)
        cli_usage_error(s, "--trl v1 has no codec gap: take v3");
}

static void read_slime(dw_peer_publish_options *out, const cli_peer_options *o,
                       const cli_session *s)
{
    if (o->codec)
        out->delta = choose(s, "--codec", o->codec, "xor", "overwrite") == 0
                         ? DW_PEER_XOR
                         : DW_PEER_OVERWRITE;
    if (o->checksum)
        out->checksum = choose(s, "--checksum", o->checksum, "xxh3-128", "adler32") == 0
                            ? DW_PEER_XXH3_128
                            : DW_PEER_ADLER32;
}

dw_peer_publish_options cli_peer_options_read(const cli_peer_options *o,
                                              const cli_session *s, dw_peer_format format)
{
    dw_peer_publish_options out;
    dw_peer_publish_options_init(&out, format);
    if (format != DW_PEER_TRL)
        refuse(s, "--trl", o->trl, format);
    if (format == DW_PEER_TRL)
        read_trl(&out, o, s);
    else
        read_slime(&out, o, s);
    if (o->whole_every) {
        uint64_t n = cli_parse_count(s, "--whole-every", o->whole_every);
        if (n > 1000000000)
            cli_usage_error(s, "--whole-every: at most 1000000000");
        out.whole_every = (unsigned)n;
    }
    if (o->max_shard)
        out.max_shard_bytes = cli_parse_scaled(s, "--max-shard", o->max_shard);
    out.n_threads = s->n_threads;
    return out;
}
