/* Measures quantised models: `make bench-quantised`.
 *
 *     quant_bench SCHEME N-BYTES N-THREADS N-ROUNDS JSON-FILE [TRACE]
 *
 * Prints the bytes of each step of the trace, quantised and not, and how fast weights are
 * quantised, compared and encoded. Only tensors that the scheme quantises count. Rates
 * are bytes of the source.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "quant_bench.h"

typedef struct output {
    FILE *json;
    quant_step sum;
    unsigned n_steps;
} output;

static double percent(uint64_t n, uint64_t of)
{
    return of ? 100.0 * (double)n / (double)of : 0;
}

static double bits_each(uint64_t bytes, uint64_t changes)
{
    return changes ? 8.0 * (double)bytes / (double)changes : 0;
}

static double ratio(uint64_t a, uint64_t b)
{
    return b ? (double)a / (double)b : 0;
}

static void print_row(const char *label, const quant_step *s, unsigned n_steps)
{
    const uint64_t n = n_steps ? n_steps : 1;
    printf("%-6s %8.3f %% %10" PRIu64 " %6.2f %8.4f %% %8.4f %% %9" PRIu64
           " %6.2f %8.2f\n",
           label, percent(s->bf16_changed, s->n_elems), s->bf16_bytes / n,
           bits_each(s->bf16_bytes, s->bf16_changed), percent(s->changed, s->n_elems),
           percent(s->scales_changed, s->n_scales), s->bytes / n,
           bits_each(s->bytes, s->changed + s->scales_changed),
           ratio(s->bf16_bytes, s->bytes));
}

static void write_json(FILE *json, const quant_step *s)
{
    fprintf(json,
            "{\"elements\": %" PRIu64 ", \"bf16_changed\": %" PRIu64
            ", \"bf16_bytes\": %" PRIu64 ", \"changed\": %" PRIu64
            ", \"scales_changed\": %" PRIu64 ", \"bytes\": %" PRIu64 "}",
            s->n_elems, s->bf16_changed, s->bf16_bytes, s->changed, s->scales_changed,
            s->bytes);
}

static void take_step(void *context, unsigned i, const quant_step *s)
{
    output *o = context;
    char label[16];
    o->sum.n_elems += s->n_elems;
    o->sum.n_scales += s->n_scales;
    o->sum.bf16_changed += s->bf16_changed;
    o->sum.bf16_bytes += s->bf16_bytes;
    o->sum.changed += s->changed;
    o->sum.scales_changed += s->scales_changed;
    o->sum.bytes += s->bytes;
    o->n_steps++;
    snprintf(label, sizeof label, "%u", i);
    print_row(label, s, 1);
    fprintf(o->json, "%s", i > 1 ? ", " : "");
    write_json(o->json, s);
}

static void print_rate(FILE *json, const char *label, const char *key, quant_rate rate,
                       quant_rate copy)
{
    printf("%-36s %6.2f GB/s, %5.2f of memcpy; %6.2f GB a CPU second, %5.2f of memcpy\n",
           label, rate.wall / 1e9, rate.wall / copy.wall, rate.cpu / 1e9,
           rate.cpu / copy.cpu);
    fprintf(json, ", \"%s_rate\": %.0f, \"%s_cpu_rate\": %.0f", key, rate.wall, key,
            rate.cpu);
}

static dw_status print_steps(output *o, const quant_options *options, dw_error *err)
{
    if (!options->trace)
        return DW_OK;
    printf(
        "step      changed      bytes   bits      fp8/int8    scales     bytes   bits  "
        "smaller\n");
    fprintf(o->json, ", \"steps\": [");
    dw_status status = quant_measure_steps(options, take_step, o, err);
    fprintf(o->json, "]");
    if (status != DW_OK)
        return status;
    print_row("mean", &o->sum, o->n_steps);
    return DW_OK;
}

static dw_status print_speed(output *o, const quant_options *options, dw_error *err)
{
    quant_speed s;
    dw_status status = quant_measure_speed(&s, options, err);
    if (status != DW_OK)
        return status;
    printf("\n%s, %" PRIu64 " bytes of bf16 weights, %u threads, kernels %s\n", s.kind,
           s.n_bytes, options->n_threads, dw_kernel_name());
    print_rate(o->json, "memcpy, one thread", "copy", s.copy, s.copy);
    print_rate(o->json, "quantise, one thread", "quantise_1", s.quantise_1, s.copy);
    print_rate(o->json, "quantise", "quantise", s.quantise, s.copy);
    print_rate(o->json, "quantise, compare and encode", "encode", s.encode, s.copy);
    print_rate(o->json, "publish, to memory", "publish", s.publish, s.copy);
    print_rate(o->json, "compare and encode the bf16 weights", "bf16", s.bf16, s.copy);
    return DW_OK;
}

int main(int argc, char **argv)
{
    dw_error err = {0};
    char line[DW_ERROR_LINE_SIZE];
    if (argc < 6 || argc > 7) {
        fprintf(stderr, "usage: quant_bench SCHEME N-BYTES N-THREADS N-ROUNDS JSON-FILE "
                        "[TRACE]\n");
        return 2;
    }
    quant_options options = {.trace = argc == 7 ? argv[6] : NULL,
                             .n_bytes = strtoull(argv[2], NULL, 10),
                             .n_threads = (unsigned)strtoul(argv[3], NULL, 10),
                             .n_rounds = (unsigned)strtoul(argv[4], NULL, 10)};
    output o = {.json = fopen(argv[5], "w")};
    if (!dw_quant_scheme_from_name(&options.scheme, argv[1]) || !o.json) {
        fprintf(stderr, "quant_bench: no scheme '%s', or no file '%s'\n", argv[1],
                argv[5]);
        return 2;
    }
    fprintf(o.json, "{\"scheme\": \"%s\"", dw_quant_scheme_name(options.scheme));
    dw_status status = print_steps(&o, &options, &err);
    if (status == DW_OK)
        status = print_speed(&o, &options, &err);
    fprintf(o.json, "}\n");
    if (fclose(o.json) != 0 || status != DW_OK) {
        fprintf(stderr, "quant_bench: %s\n", dw_error_line(&err, line));
        return 1;
    }
    return 0;
}
