/* Names of schemes, and options. */
#include <string.h>

#include "base/options.h"
#include "deltawire/publish.h"

static const char *const names[] = {
    [DW_QUANT_NONE] = "none",
    [DW_QUANT_FP8_BLOCK] = "fp8-block",
    [DW_QUANT_FP8_ROW] = "fp8-row",
    [DW_QUANT_INT8_ROW] = "int8-row",
};

enum { N_SCHEMES = sizeof names / sizeof names[0] };

const char *dw_quant_scheme_name(dw_quant_scheme scheme)
{
    return (size_t)scheme < N_SCHEMES ? names[scheme] : "?";
}

bool dw_quant_scheme_from_name(dw_quant_scheme *out, const char *name)
{
    for (size_t i = 0; i < N_SCHEMES; i++)
        if (strcmp(names[i], name) == 0) {
            *out = (dw_quant_scheme)i;
            return true;
        }
    return false;
}
