/* Options of the verbs that quantise: --quantize and the options that go with it. */
#ifndef CLI_QUANTIZE_OPTIONS_H
#define CLI_QUANTIZE_OPTIONS_H

#include <deltawire/publish.h>

#include "command_line.h"

typedef struct cli_quantize {
    const char *scheme; /* as given, or NULL */
    cli_list keep;
    cli_list also;
    bool from_f32;
    dw_quant_options options;
} cli_quantize;

extern const cli_option cli_quantize_options[]; /* of a cli_quantize */

/* The options for the library, which point into Q; NULL if --quantize was not given. A
 * wrong one is a usage error. */
const dw_quant_options *cli_quantize_read(cli_quantize *q, const cli_session *s);

#endif
