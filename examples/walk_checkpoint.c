/* Lists the tensors of a checkpoint: name, type, shape, bytes.
 *
 *     walk_checkpoint model.safetensors
 *     walk_checkpoint DIRECTORY
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <deltawire/deltawire.h>

int main(int argc, char **argv)
{
    if (argc != 2 || argv[1][0] == '-') {
        const bool is_help = argc == 2 && strcmp(argv[1], "--help") == 0;
        fprintf(is_help ? stdout : stderr, "usage: %s CHECKPOINT\n", argv[0]);
        return is_help ? 0 : 2;
    }
    dw_checkpoint *ckpt;
    dw_error err;
    if (dw_checkpoint_open(&ckpt, argv[1], DW_CHECKPOINT_READ, &err) != DW_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.text);
        return 1;
    }
    size_t n_tensors;
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n_tensors);
    for (size_t i = 0; i < n_tensors; i++) {
        const dw_tensor *t = &tensors[i];
        printf("%s\t%s\t[", t->name, dw_dtype_name(t->dtype));
        for (uint32_t d = 0; d < t->n_dims; d++)
            printf("%s%" PRIu64, d == 0 ? "" : ", ", t->dims[d]);
        printf("]\t%" PRIu64 "\n", t->n_bytes);
    }
    dw_checkpoint_close(ckpt);
    return 0;
}
