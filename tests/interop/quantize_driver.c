/* Quantises a checkpoint, for test_quantize.py:
 *
 *     quantize_driver SCHEME IN OUT [f32] [keep=GLOB] [convert=GLOB] [config=FILE]
 *
 * IN is a checkpoint, OUT the file that takes the quantised one. With `config`
 * it prints FILE with its quantization_config instead, and writes nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deltawire/deltawire.h"
#include "quant/quant.h"

enum { MAX_PATTERNS = 16 };

typedef struct arguments {
    dw_quant_options options;
    const char *keep[MAX_PATTERNS], *convert[MAX_PATTERNS];
    const char *config;
} arguments;

static void check(dw_status status, const dw_error *err)
{
    char line[DW_ERROR_LINE_SIZE];
    if (status == DW_OK)
        return;
    fprintf(stderr, "%s: %s\n", dw_status_name(status), dw_error_line(err, line));
    exit(1);
}

static void parse(arguments *a, int argc, char **argv)
{
    dw_quant_options_init(&a->options);
    a->options.keep = a->keep;
    a->options.convert = a->convert;
    if (argc < 4 || !dw_quant_scheme_from_name(&a->options.scheme, argv[1]))
        exit(2);
    for (int i = 4; i < argc; i++)
        if (strcmp(argv[i], "f32") == 0)
            a->options.from_f32 = true;
        else if (strncmp(argv[i], "keep=", 5) == 0 && a->options.n_keep < MAX_PATTERNS)
            a->keep[a->options.n_keep++] = argv[i] + 5;
        else if (strncmp(argv[i], "convert=", 8) == 0 &&
                 a->options.n_convert < MAX_PATTERNS)
            a->convert[a->options.n_convert++] = argv[i] + 8;
        else if (strncmp(argv[i], "config=", 7) == 0)
            a->config = argv[i] + 7;
        else
            exit(2);
}

static void print_config(const char *path, const dw_quant_plan *plan)
{
    static char text[1 << 20];
    dw_error err = {0};
    dw_writer w = {0};
    FILE *f = fopen(path, "r");
    const size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f)
        fclose(f);
    check(dw_quant_config(&w, text, n, plan, path, &err), &err);
    fwrite(w.bytes, 1, w.n_bytes, stdout);
    dw_writer_release(&w);
}

/* The rows of one weight, in calls of a few units. */
static void quantise(const dw_quant_plan *plan, size_t i, const dw_tensor *source,
                     dw_tensor *tensors)
{
    dw_error err = {0};
    const dw_quant_entry *e = &plan->entries[i];
    const uint64_t n_rows = e->n_matrices * e->n_rows;
    const uint64_t width = source->dtype == DW_F32 ? 4 : 2;
    for (uint64_t row = 0, end; row < n_rows; row = end) {
        end = dw_quant_unit_end(plan, i, row);
        for (int more = 0; more < 2 && end < n_rows; more++)
            end = dw_quant_unit_end(plan, i, end);
        check(
            dw_quant_rows(
                plan, i, (const uint8_t *)source->data + row * e->n_columns * width, row,
                end - row, (uint8_t *)tensors[i].data + row * e->n_columns,
                (float *)tensors[e->partner].data + dw_quant_scales_before(plan, i, row),
                &err),
            &err);
    }
}

int main(int argc, char **argv)
{
    arguments a = {0};
    dw_error err = {0};
    dw_checkpoint *in;
    dw_quant_plan *plan;
    size_t n;
    parse(&a, argc, argv);
    check(dw_checkpoint_open(&in, argv[2], DW_CHECKPOINT_READ, &err), &err);
    const dw_tensor *source = dw_checkpoint_tensors(in, &n);
    check(dw_quant_plan_make(&plan, source, n, NULL, &a.options, &err), &err);
    if (a.config) {
        print_config(a.config, plan);
        return 0;
    }
    dw_tensor *tensors = calloc(plan->n_entries, sizeof *tensors);
    for (size_t i = 0; i < plan->n_entries; i++) {
        tensors[i] = plan->entries[i].tensor;
        tensors[i].data = malloc(tensors[i].n_bytes + 1);
    }
    for (size_t i = 0; i < plan->n_entries; i++) {
        const dw_quant_entry *e = &plan->entries[i];
        if (e->role == DW_QUANT_COPY)
            memcpy(tensors[i].data, source[e->source].data, tensors[i].n_bytes);
        else if (e->role == DW_QUANT_WEIGHT)
            quantise(plan, i, &source[e->source], tensors);
    }
    check(dw_checkpoint_write(argv[3], tensors, plan->n_entries, NULL, &err), &err);
    return 0;
}
