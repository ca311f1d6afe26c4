/* safetensors: parses a header strictly, and writes one.
 *
 *     u64 little-endian header length
 *     header: JSON object, name -> {"dtype", "shape", "data_offsets"}, and
 *             "__metadata__" -> object of strings; padded with spaces
 *     tensor bytes, in offset order, with no hole and no overlap
 */
#ifndef DW_TENSOR_SAFETENSORS_H
#define DW_TENSOR_SAFETENSORS_H

#include "base/bytes.h"
#include "base/map.h"
#include "deltawire/checkpoint.h"

#define DW_SAFETENSORS_MAX_HEADER 100000000u /* as the stock library */

/* What to do with weights that PyTorch saved. */
#define DW_CONVERT_TORCH                                                                 \
    "Convert them in Python: safetensors.torch.save_file(torch.load(FILE), "             \
    "\"model.safetensors\"), or transformers' model.save_pretrained(DIR)"

#define DW_CONVERT_GGUF                                                                  \
    "Publish the safetensors files that it was made from, or convert it with "           \
    "transformers: from_pretrained(DIR, gguf_file=FILE).save_pretrained(OUT)"

typedef struct dw_safetensors {
    dw_tensor *tensors; /* in offset order; names and dims are owned by `arena` */
    size_t n_tensors;
    dw_pair *metadata; /* in file order */
    size_t n_metadata;
    uint64_t data_start; /* of the tensor bytes in the file */
    void *arena;
} dw_safetensors;

/* Checks the whole header of the file BYTES, and returns its tensors with pointers into
 * BYTES. PATH is for errors. Fails with DW_CORRUPT, or DW_UNSUPPORTED for an unknown
 * dtype or a file of another kind. */
dw_status dw_safetensors_parse(dw_safetensors *out, const uint8_t *bytes, size_t n_bytes,
                               const char *path, dw_error *err);
/* The same for a mapped file. The header is read safely: see base/map.h. */
dw_status dw_safetensors_map(dw_safetensors *out, const dw_map *map, const char *path,
                             dw_error *err);
void dw_safetensors_release(dw_safetensors *file);

/* The value of KEY in __metadata__, or NULL. */
const char *dw_safetensors_metadata(const dw_safetensors *file, const char *key);

/* The value of KEY as a number of RADIX 10 or 16: only digits, at most 64 bits. False if
 * it is missing or not such a number. */
bool dw_safetensors_number(const dw_safetensors *file, const char *key, int radix,
                           uint64_t *out);

/* The same for any text. */
bool dw_parse_number(const char *text, int radix, uint64_t *out);

/* For qsort over dw_tensor: the stock library's order of tensors in a file, types from
 * last to first, then names. */
int dw_safetensors_compare(const void *left, const void *right);

/* Appends length and header for tensors in the given order. Data pointers are not used.
 * The header is padded so that the data starts at a multiple of 8. */
dw_status dw_safetensors_header(dw_writer *out, const dw_tensor *tensors,
                                size_t n_tensors, const dw_pair *metadata,
                                size_t n_metadata, const char *path, dw_error *err);

#endif
