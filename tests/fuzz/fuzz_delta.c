/* The delta reader on any bytes, then staging against a small model: the bytes are
 * refused, or every store is inside the tensors. Seals and checksums would stop the
 * fuzzer early, so the first byte chooses the layer to test:
 *
 *     0  the rest is a file as it is (TRL's layouts have no seal)
 *     1  u16 n | n bytes of index | blocks: put into a container with seal, counts and
 *        checksums made right
 *     2  dtype | u8 n | a block for dw_class_decode
 *     3  dtype | u8 n | a block for dw_packed_decode
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "codec/delta.h"
#include "codec/patch.h"
#include "deltawire/deltawire.h"
#include "keep_large_blocks.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

/* ---- the model ---- */

enum { N = 60, N_TENSORS = 5 };

static uint8_t data[N_TENSORS][N * 8];
static const uint64_t dims[] = {6, 10}, none[] = {0};

static void make_model(dw_tensor out[N_TENSORS])
{
    static const dw_dtype dtypes[] = {DW_BF16, DW_U8, DW_F32, DW_I64};
    static const char *const names[] = {"a", "b", "c", "d"};
    for (size_t t = 0; t < 4; t++) {
        for (size_t i = 0; i < sizeof data[t]; i++)
            data[t][i] = (uint8_t)(i * 37 + (i & 2) * 60);
        out[t] = (dw_tensor){.name = names[t],
                             .dtype = dtypes[t],
                             .n_dims = 2,
                             .dims = dims,
                             .n_bytes = N * dw_dtype_bits(dtypes[t]) / 8,
                             .data = data[t]};
    }
    out[4] = (dw_tensor){"e", DW_F16, 1, none, 0, NULL, 0, NULL};
}

static void use_delta(const uint8_t *bytes, size_t n_bytes)
{
    dw_tensor tensors[N_TENSORS];
    dw_delta *delta;
    dw_patch *patch;
    dw_error err;
    void *aligned = malloc(n_bytes + !n_bytes); /* the exact size, 8-byte aligned */
    memcpy(aligned, bytes, n_bytes);
    make_model(tensors);
    if (dw_delta_open_bytes(&delta, aligned, n_bytes, "fuzz", &err) == DW_OK) {
        dw_delta_info info;
        dw_delta_tensor_info t;
        dw_delta_get_info(delta, &info);
        for (size_t i = 0; i < info.n_tensors; i++)
            dw_delta_tensor(delta, i, &t);
        dw_apply_options options = {.struct_bytes = sizeof options, .n_threads = 1};
        if (dw_delta_stage(&patch, delta, tensors, N_TENSORS, &options, &err) == DW_OK) {
            for (size_t i = 0; i < patch->n_segments; i++) {
                const dw_segment *s = &patch->segments[i];
                for (uint32_t k = 0; k < s->n; k++)
                    if (s->first + s->positions[k] >= N)
                        abort();
            }
            if (dw_patch_apply(patch, tensors, N_TENSORS, 1, &err) != DW_OK)
                abort();
            dw_patch_free(patch);
        }
        dw_delta_close(delta);
    }
    free(aligned);
}

/* ---- containers with valid seals and checksums ---- */

/* Sets the checksum of every entry that can be read; returns the sum of their counts. */
static uint64_t fix_index(uint8_t *index, size_t n_index, const uint8_t *blocks,
                          size_t n_blocks)
{
    dw_reader r = dw_reader_of(index, n_index), b = dw_reader_of(blocks, n_blocks);
    uint64_t n_changed = 0;
    while (dw_reader_left(&r) > 0 && !r.failed && !b.failed) {
        dw_read_varint(&r);
        dw_read_bytes(&r, dw_read_varint(&r));
        dw_dtype dtype = (dw_dtype)dw_read_u8(&r);
        uint64_t n_dims = dw_read_varint(&r), shape[DW_MAX_DIMS], n;
        if (r.failed || n_dims > DW_MAX_DIMS)
            break;
        for (uint64_t d = 0; d < n_dims; d++)
            shape[d] = dw_read_varint(&r);
        uint64_t changed = dw_read_varint(&r);
        dw_read_bytes(&r, 16);
        const uint8_t *checksum = dw_read_bytes(&r, 8);
        dw_read_varint(&r);
        if (!checksum || r.failed ||
            !dw_shape_size(dtype, (uint32_t)n_dims, shape, NULL, &n))
            break;
        unsigned width = dw_dtype_element(dtype).width;
        const uint8_t *start = b.at;
        for (uint64_t i = dw_block_count(n / width, width); i > 0 && !r.failed; i--)
            dw_read_bytes(&b, dw_read_varint(&r) >> 2);
        dw_store64(index + (checksum - index), XXH64(start, (size_t)(b.at - start), 0));
        n_changed += changed;
    }
    return n_changed;
}

static void use_parts(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes < 2)
        return;
    size_t n_index = dw_load16(bytes);
    n_index = n_index > n_bytes - 2 ? n_bytes - 2 : n_index;
    const uint64_t n_index_64 = n_index, n_blocks = n_bytes - 2 - n_index;
    uint8_t *index = malloc(n_index + 1);
    memcpy(index, bytes + 2, n_index);
    const uint8_t *blocks = bytes + 2 + n_index;
    char changed[24], seal[17];
    snprintf(changed, sizeof changed, "%" PRIu64,
             fix_index(index, n_index, blocks, (size_t)n_blocks));
    const dw_pair metadata[] = {
        {"format", "deltawire/1"}, {"base_version", "1"}, {"new_version", "2"},
        {"base_digest", "0"},      {"new_digest", "0"},   {"changed", changed},
        {"elements", "240"},       {"tensors", "5"},      {"seal", "0000000000000000"}};
    const dw_tensor parts[] = {
        {"index", DW_U8, 1, &n_index_64, n_index_64, NULL, 0, NULL},
        {"blocks", DW_U8, 1, &n_blocks, n_blocks, NULL, 0, NULL}};
    dw_writer w = {0};
    if (dw_safetensors_header(&w, parts, 2, metadata, 9, "fuzz", NULL) != DW_OK)
        abort();
    dw_write_bytes(&w, index, n_index);
    snprintf(seal, sizeof seal, "%016" PRIx64, XXH64(w.bytes + 8, w.n_bytes - 8, 0));
    for (size_t i = 8; i + 24 < w.n_bytes; i++)
        if (memcmp(w.bytes + i, "\"seal\":\"", 8) == 0) {
            memcpy(w.bytes + i + 8, seal, 16);
            break;
        }
    dw_write_bytes(&w, blocks, (size_t)n_blocks);
    use_delta(w.bytes, w.n_bytes);
    dw_writer_release(&w);
    free(index);
}

/* ---- blocks ---- */

static void use_block(const uint8_t *bytes, size_t n_bytes, bool packed)
{
    static dw_class_scratch *classes;
    static dw_packed_scratch *planes;
    if (!classes) {
        classes = dw_class_scratch_new();
        planes = dw_packed_scratch_new();
    }
    if (n_bytes < 2)
        return;
    const dw_element element = dw_dtype_element((dw_dtype)(bytes[0] % DW_DTYPE_COUNT));
    const uint32_t n = bytes[1];
    const size_t n_data = (size_t)n * element.width;
    uint8_t *old = malloc(n_data + 1), *exact = malloc(n_bytes);
    for (size_t i = 0; i < n_data; i++)
        old[i] = (uint8_t)(i * 37 + (i & 2) * 60);
    memcpy(exact, bytes + 2, n_bytes - 2);
    if (packed) {
        dw_packed_decode(old, planes, exact, n_bytes - 2, n, element);
    } else {
        dw_class_map map = dw_class_map_choose(old, n, element);
        dw_note note = dw_note_at(0);
        dw_decoded d;
        if (dw_class_decode(&d, classes, exact, n_bytes - 2, old, n, element, &map,
                            &note))
            for (size_t i = 0; i < d.n_changes; i++)
                if (d.positions[i] >= n || (i && d.positions[i] <= d.positions[i - 1]))
                    abort();
    }
    free(old);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes == 0)
        return 0;
    switch (bytes[0] & 3) {
    case 0:
        use_delta(bytes + 1, n_bytes - 1);
        break;
    case 1:
        use_parts(bytes + 1, n_bytes - 1);
        break;
    default:
        use_block(bytes + 1, n_bytes - 1, bytes[0] & 1);
    }
    return 0;
}
