/* The safetensors parser on any bytes: it refuses them, or every tensor is inside them.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static volatile uint8_t touched;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    dw_safetensors file;
    dw_error err;
    if (dw_safetensors_parse(&file, bytes, n_bytes, "fuzz", &err) != DW_OK)
        return 0;
    uint64_t n_covered = file.data_start;
    for (size_t i = 0; i < file.n_tensors; i++) {
        const dw_tensor *t = &file.tensors[i];
        uint64_t expected;
        if (!dw_shape_size(t->dtype, t->n_dims, t->dims, NULL, &expected) ||
            expected != t->n_bytes)
            abort();
        const uint8_t *data = t->data;
        if (t->n_bytes > 0)
            touched = data[0] ^ data[t->n_bytes - 1];
        touched = (uint8_t)strlen(t->name);
        n_covered += t->n_bytes;
    }
    for (size_t i = 0; i < file.n_metadata; i++)
        touched = (uint8_t)strlen(file.metadata[i].value);
    if (n_covered != n_bytes)
        abort();
    dw_safetensors_release(&file);
    return 0;
}
