#include "quantize_options.h"

const cli_option cli_quantize_options[] = {
    {CLI_OPTION(TEXT, cli_quantize, scheme, "quantize", "SCHEME",
                "quantise the weights: fp8-block, fp8-row or int8-row; engines load the "
                "result directly. A stream has one scheme")},
    {CLI_OPTION(LIST, cli_quantize, keep, "quantize-keep", "GLOB",
                "tensors that stay as they are; may be repeated")},
    {CLI_OPTION(LIST, cli_quantize, also, "quantize-also", "GLOB",
                "tensors that are quantised too; may be repeated")},
    {CLI_OPTION(FLAG, cli_quantize, from_f32, "quantize-from-f32", NULL,
                "quantise F32 weights as they are, not rounded to BF16 first")},
    {0},
};

const dw_quant_options *cli_quantize_read(cli_quantize *q, const cli_session *s)
{
    dw_quant_options *o = &q->options;
    if (!q->scheme) {
        if (cli_any_given(cli_quantize_options, q))
            cli_usage_error(s, "--quantize-keep, --quantize-also and --quantize-from-f32 "
                               "go only with --quantize");
        return NULL;
    }
    dw_quant_options_init(o);
    if (!dw_quant_scheme_from_name(&o->scheme, q->scheme) || o->scheme == DW_QUANT_NONE)
        cli_usage_error(s, "--quantize: '%s' is none of %s, %s, %s", q->scheme,
                        dw_quant_scheme_name(DW_QUANT_FP8_BLOCK),
                        dw_quant_scheme_name(DW_QUANT_FP8_ROW),
                        dw_quant_scheme_name(DW_QUANT_INT8_ROW));
    o->keep = q->keep.items;
    o->n_keep = q->keep.n;
    o->convert = q->also.items;
    o->n_convert = q->also.n;
    o->from_f32 = q->from_f32;
    return o;
}
