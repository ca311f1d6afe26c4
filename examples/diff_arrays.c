/* A trainer's step: compares two versions of the weights in memory and saves the changes
 * as a delta.
 *
 *     diff_arrays [DELTA]        writes DELTA, or step-1.safetensors
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deltawire/deltawire.h>

enum { ROWS = 1024, COLUMNS = 512 };

/* An optimizer's step at a small learning rate: one weight in a hundred changes, mostly
 * to the next BF16 number. */
static void train(uint16_t *weights, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (rand() % 100 == 0)
            weights[i] = (uint16_t)(weights[i] + (rand() % 2 ? 1 : -1));
}

int main(int argc, char **argv)
{
    if (argc > 2 || (argc > 1 && argv[1][0] == '-')) {
        const bool is_help = argc == 2 && strcmp(argv[1], "--help") == 0;
        fprintf(is_help ? stdout : stderr, "usage: %s [DELTA]\n", argv[0]);
        return is_help ? 0 : 2;
    }
    const char *path = argc > 1 ? argv[1] : "step-1.safetensors";
    const size_t n_bytes = (size_t)ROWS * COLUMNS * sizeof(uint16_t);
    uint16_t *published = malloc(n_bytes), *weights = malloc(n_bytes);
    if (!published || !weights)
        return 1;
    for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i++) /* 2^-1 to 2^-7, either sign */
        weights[i] = (uint16_t)((rand() & 0x807f) | (0x7e - rand() % 7) << 7);
    memcpy(published, weights, n_bytes); /* the engines' weights: version 0 */
    train(weights, (size_t)ROWS * COLUMNS);

    /* A tensor borrows its bytes: the library reads the arrays in place. */
    const uint64_t shape[] = {ROWS, COLUMNS};
    const dw_tensor base = {"model.weight", DW_BF16,   2, shape,
                            n_bytes,        published, 0, NULL};
    const dw_tensor next = {"model.weight", DW_BF16, 2, shape, n_bytes, weights, 0, NULL};

    dw_diff_options options;
    dw_diff_options_init(&options);
    options.base_version = 0;
    options.new_version = 1;
    dw_delta *delta;
    dw_error err;
    int failed = dw_delta_diff(&delta, &base, &next, 1, &options, &err) != DW_OK ||
                 dw_delta_save(delta, path, &err) != DW_OK;
    if (failed) {
        fprintf(stderr, "%s: %s\n", err.where, err.text);
    } else {
        dw_delta_info info;
        dw_delta_get_info(delta, &info);
        printf("%s: %" PRIu64 " of %" PRIu64 " weights changed, %" PRIu64
               " bytes for %zu (%.2f bits a change)\n",
               path, info.n_changed, info.n_model_elems, info.n_bytes, n_bytes,
               8.0 * (double)info.n_bytes / (double)info.n_changed);
        /* only now that version 1 is saved: if the save had failed, the next delta would
         * cover both steps */
        memcpy(published, weights, n_bytes);
    }
    dw_delta_close(delta);
    free(published);
    free(weights);
    return failed;
}
