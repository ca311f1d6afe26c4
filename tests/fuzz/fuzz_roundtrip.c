/* Any two versions of a tensor: diff, encode, open and apply give the second one, in
 * every codec.
 *
 *     dtype | codec | u16 n | seed of the old data | changes: u8 skip, u8 how
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "deltawire/deltawire.h"
#include "keep_large_blocks.h"
#include "tensor/dtype.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static dw_status gather(void *context, const void *bytes, size_t n_bytes, dw_error *err)
{
    (void)err;
    dw_write_bytes(context, bytes, n_bytes);
    return DW_OK;
}

/* Weights of few exponents, or plain bytes, depending on the seed. */
static void fill(uint8_t *data, size_t n_bytes, unsigned width, uint8_t seed)
{
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < n_bytes; i++) {
        x = x * 1664525u + 1013904223u;
        data[i] = seed % 4 == 0 ? seed : (uint8_t)(x >> 24);
        if (seed % 4 > 1 && i % width == width - 1)
            data[i] = (uint8_t)(0x3c + (data[i] & 0x83)); /* sign and exponent */
    }
}

static void change(uint8_t *data, size_t n_bytes, unsigned width, const uint8_t *how,
                   size_t n_how)
{
    size_t at = 0;
    for (size_t i = 0; i + 1 < n_how; i += 2) {
        at += (size_t)how[i] * width;
        if (at + width > n_bytes)
            at %= width;
        if (at + width > n_bytes)
            return;
        uint8_t op = how[i + 1];
        data[at + op % width] = (uint8_t)(op & 0x80 ? data[at + op % width] + op
                                                    : data[at + op % width] ^ op);
        if (op == 0xff) /* all from here on */
            for (; at < n_bytes; at++)
                data[at] = (uint8_t)(data[at] * 5 + at);
        at += width;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes < 5)
        return 0;
    const dw_dtype dtype = (dw_dtype)(bytes[0] % DW_DTYPE_COUNT);
    static const struct {
        dw_codec codec;
        unsigned layout;
    } forms[] = {
        {DW_CODEC_CLASS, 0}, {DW_CODEC_GAP, 3}, {DW_CODEC_RAW, 1}, {DW_CODEC_RAW, 3}};
    const uint64_t dims[] = {(uint64_t)(dw_load16(bytes + 2) % 5000) & ~3ull};
    dw_tensor base = {"weight", dtype, 1, dims, 0, NULL, 0, NULL};
    if (!dw_shape_size(dtype, 1, dims, NULL, &base.n_bytes))
        return 0;
    const unsigned width = dw_dtype_element(dtype).width;
    const size_t n = (size_t)base.n_bytes;
    uint8_t *old = malloc(n + 1), *new_ = malloc(n + 1);
    fill(old, n, width, bytes[4]);
    memcpy(new_, old, n);
    change(new_, n, width, bytes + 5, n_bytes - 5);
    dw_tensor next = base;
    base.data = old;
    next.data = new_;

    dw_diff_options options;
    dw_diff_options_init(&options);
    options.codec = forms[bytes[1] % 4].codec;
    options.trl_layout = forms[bytes[1] % 4].layout;
    options.n_threads = 1;
    dw_delta *delta, *again;
    dw_error err;
    dw_status status = dw_delta_diff(&delta, &base, &next, 1, &options, &err);
    if (status == DW_OK) {
        dw_writer w = {0};
        dw_apply_options apply = {.struct_bytes = sizeof apply, .n_threads = 1};
        if (dw_delta_write(delta, gather, &w, &err) != DW_OK ||
            dw_delta_open_bytes(&again, w.bytes, w.n_bytes, "fuzz", &err) != DW_OK ||
            dw_delta_apply(again, &base, 1, &apply, &err) != DW_OK ||
            memcmp(old, new_, n) != 0)
            abort();
        if (options.codec == DW_CODEC_CLASS && w.n_bytes > n + 700)
            abort(); /* at most a header and the tensor itself */
        dw_writer_release(&w);
        dw_delta_close(again);
        dw_delta_close(delta);
    } else if (status != DW_UNSUPPORTED || options.codec == DW_CODEC_CLASS) {
        abort();
    }
    free(old);
    free(new_);
    return 0;
}
