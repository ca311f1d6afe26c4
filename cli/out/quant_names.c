#include "quant_names.h"

#include <string.h>

/* Whether the name of a tensor, or of a slice NAME[FIRST:END], ends so. */
static bool ends_in(const char *name, const char *end)
{
    const size_t n_end = strlen(end);
    size_t n = strlen(name);
    const char *slice = n > 0 && name[n - 1] == ']' ? strrchr(name, '[') : NULL;
    if (slice)
        n = (size_t)(slice - name);
    return n > n_end && strncmp(name + n - n_end, end, n_end) == 0;
}

bool cli_is_scale(const char *name, dw_dtype dtype)
{
    return dtype == DW_F32 && (ends_in(name, "_scale") || ends_in(name, "_scale_inv"));
}

bool cli_is_quantized(dw_dtype dtype)
{
    return dtype == DW_F8_E4M3 || dtype == DW_I8;
}

dw_quant_scheme cli_find_scheme(const dw_tensor *tensors, size_t n_tensors)
{
    bool has_blocks = false, has_rows = false, has_fp8 = false, has_int8 = false;
    for (size_t i = 0; i < n_tensors; i++) {
        const dw_tensor *t = &tensors[i];
        has_fp8 |= t->dtype == DW_F8_E4M3;
        has_int8 |= t->dtype == DW_I8;
        if (cli_is_scale(t->name, t->dtype))
            *(ends_in(t->name, "_scale_inv") ? &has_blocks : &has_rows) = true;
    }
    if (has_blocks && has_fp8 && !has_rows && !has_int8)
        return DW_QUANT_FP8_BLOCK;
    if (has_rows && !has_blocks && has_fp8 != has_int8)
        return has_fp8 ? DW_QUANT_FP8_ROW : DW_QUANT_INT8_ROW;
    return DW_QUANT_NONE;
}
