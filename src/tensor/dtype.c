#include "tensor/dtype.h"

#include <string.h>

typedef struct dtype_row {
    const char *name;
    uint8_t bits;
    uint8_t width;
    uint8_t mantissa_bits; /* of sign-magnitude floats; 0 for other types */
    uint8_t rank;
} dtype_row;

/* F8_E8M0 has no sign bit and no mantissa: it is a number from 0 to 255. */
static const dtype_row rows[DW_DTYPE_COUNT] = {
    [DW_BOOL] = {"BOOL", 8, 1, 0, 0},
    [DW_U8] = {"U8", 8, 1, 0, 4},
    [DW_I8] = {"I8", 8, 1, 0, 5},
    [DW_U16] = {"U16", 16, 2, 0, 12},
    [DW_I16] = {"I16", 16, 2, 0, 11},
    [DW_U32] = {"U32", 32, 4, 0, 16},
    [DW_I32] = {"I32", 32, 4, 0, 15},
    [DW_U64] = {"U64", 64, 8, 0, 21},
    [DW_I64] = {"I64", 64, 8, 0, 20},
    [DW_F16] = {"F16", 16, 2, 10, 13},
    [DW_BF16] = {"BF16", 16, 2, 7, 14},
    [DW_F32] = {"F32", 32, 4, 23, 17},
    [DW_F64] = {"F64", 64, 8, 52, 19},
    [DW_F8_E4M3] = {"F8_E4M3", 8, 1, 3, 7},
    [DW_F8_E5M2] = {"F8_E5M2", 8, 1, 2, 6},
    [DW_F8_E8M0] = {"F8_E8M0", 8, 1, 0, 8},
    [DW_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8, 1, 3, 9},
    [DW_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8, 1, 2, 10},
    [DW_F6_E2M3] = {"F6_E2M3", 6, 1, 0, 2},
    [DW_F6_E3M2] = {"F6_E3M2", 6, 1, 0, 3},
    [DW_F4] = {"F4", 4, 1, 0, 1},
    [DW_C64] = {"C64", 64, 4, 23, 18},
};

static bool is_dtype(dw_dtype dtype)
{
    return (unsigned)dtype < DW_DTYPE_COUNT;
}

const char *dw_dtype_name(dw_dtype dtype)
{
    return is_dtype(dtype) ? rows[dtype].name : "?";
}

bool dw_dtype_from_name(dw_dtype *out, const char *name)
{
    for (unsigned i = 0; i < DW_DTYPE_COUNT; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            *out = (dw_dtype)i;
            return true;
        }
    }
    return false;
}

unsigned dw_dtype_bits(dw_dtype dtype)
{
    return is_dtype(dtype) ? rows[dtype].bits : 0;
}

bool dw_shape_size(dw_dtype dtype, uint32_t n_dims, const uint64_t *dims,
                   uint64_t *n_elems, uint64_t *n_bytes)
{
    if (!is_dtype(dtype) || n_dims > DW_MAX_DIMS)
        return false;
    uint64_t elems = 1;
    for (uint32_t i = 0; i < n_dims; i++)
        if (__builtin_mul_overflow(elems, dims[i], &elems))
            return false;
    uint64_t bits;
    if (__builtin_mul_overflow(elems, (uint64_t)rows[dtype].bits, &bits) || bits % 8 != 0)
        return false;
    if (n_elems)
        *n_elems = elems;
    if (n_bytes)
        *n_bytes = bits / 8;
    return true;
}

dw_element dw_dtype_element(dw_dtype dtype)
{
    const dtype_row *row = &rows[dtype];
    bool is_float = row->mantissa_bits > 0;
    return (dw_element){
        .width = row->width,
        .is_float = is_float,
        .exponent_shift = is_float ? row->mantissa_bits : row->width * 8u,
    };
}

uint64_t dw_tensor_units(const dw_tensor *tensor)
{
    return tensor->n_bytes / rows[tensor->dtype].width;
}

unsigned dw_dtype_rank(dw_dtype dtype)
{
    return is_dtype(dtype) ? rows[dtype].rank : 0;
}
