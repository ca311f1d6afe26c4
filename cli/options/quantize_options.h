/* Options of the verbs that quantise: --quantize and the options that go with it. */
#ifndef CLI_QUANTIZE_OPTIONS_H
#define CLI_QUANTIZE_OPTIONS_H

#include <deltawire/quantize.h>

#include "command_line.h"

enum {
    CLI_OPT_QUANTIZE = 2048,
    CLI_OPT_QUANTIZE_KEEP,
    CLI_OPT_QUANTIZE_ALSO,
    CLI_OPT_QUANTIZE_F32
};

/* Belongs in a verb's table of options, before CLI_COMMON_OPTIONS. */
#define CLI_QUANTIZE_OPTIONS                                                             \
    {"quantize", required_argument, NULL, CLI_OPT_QUANTIZE},                             \
        {"quantize-keep", required_argument, NULL, CLI_OPT_QUANTIZE_KEEP},               \
        {"quantize-also", required_argument, NULL, CLI_OPT_QUANTIZE_ALSO},               \
    {                                                                                    \
        "quantize-from-f32", no_argument, NULL, CLI_OPT_QUANTIZE_F32                     \
    }

#define CLI_QUANTIZE_HELP                                                                \
    "  --quantize SCHEME    quantise the weights: fp8-block, fp8-row or int8-row; "      \
    "engines\n"                                                                          \
    "                       load the result directly. A stream has one scheme\n"         \
    "  --quantize-keep GLOB tensors that stay as they are; may be repeated\n"            \
    "  --quantize-also GLOB tensors that are quantised too; may be repeated\n"           \
    "  --quantize-from-f32  quantise F32 weights as they are, not rounded to BF16 "      \
    "first\n"

#define CLI_MAX_PATTERNS 64

typedef struct cli_quantize {
    const char *scheme; /* as given, or NULL */
    const char *keep[CLI_MAX_PATTERNS];
    const char *also[CLI_MAX_PATTERNS];
    dw_quant_options options;
} cli_quantize;

/* Handles an option of the table above; false if OPTION is not in it. */
bool cli_quantize_option(cli_quantize *q, const cli_session *s, int option);

/* The options for the library, which point into Q; NULL if --quantize was not given. A
 * wrong one is a usage error. */
const dw_quant_options *cli_quantize_read(cli_quantize *q, const cli_session *s);

#endif
