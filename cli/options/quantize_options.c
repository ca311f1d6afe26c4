#include "quantize_options.h"

static void add_pattern(const cli_session *s, const char *name, const char **list,
                        size_t *n)
{
    if (*n == CLI_MAX_PATTERNS)
        cli_usage_error(s, "%s: at most %d patterns", name, CLI_MAX_PATTERNS);
    list[(*n)++] = optarg;
}

bool cli_quantize_option(cli_quantize *q, const cli_session *s, int option)
{
    switch (option) {
    case CLI_OPT_QUANTIZE:
        q->scheme = optarg;
        return true;
    case CLI_OPT_QUANTIZE_KEEP:
        add_pattern(s, "--quantize-keep", q->keep, &q->options.n_keep);
        return true;
    case CLI_OPT_QUANTIZE_ALSO:
        add_pattern(s, "--quantize-also", q->also, &q->options.n_convert);
        return true;
    case CLI_OPT_QUANTIZE_F32:
        q->options.from_f32 = true;
        return true;
    default:
        return false;
    }
}

const dw_quant_options *cli_quantize_read(cli_quantize *q, const cli_session *s)
{
    dw_quant_options *o = &q->options;
    if (!q->scheme) {
        if (o->n_keep > 0 || o->n_convert > 0 || o->from_f32)
            cli_usage_error(s, "--quantize-keep, --quantize-also and --quantize-from-f32 "
                               "go only with --quantize");
        return NULL;
    }
    const dw_quant_options given = *o;
    dw_quant_options_init(o);
    if (!dw_quant_scheme_from_name(&o->scheme, q->scheme) || o->scheme == DW_QUANT_NONE)
        cli_usage_error(s, "--quantize: '%s' is none of %s, %s, %s", q->scheme,
                        dw_quant_scheme_name(DW_QUANT_FP8_BLOCK),
                        dw_quant_scheme_name(DW_QUANT_FP8_ROW),
                        dw_quant_scheme_name(DW_QUANT_INT8_ROW));
    o->keep = q->keep;
    o->n_keep = given.n_keep;
    o->convert = q->also;
    o->n_convert = given.n_convert;
    o->from_f32 = given.from_f32;
    return o;
}
