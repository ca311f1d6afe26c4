#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deltawire/deltawire.h>

#include "bench.h"
#include "command_line.h"
#include "commands.h"
#include "delta_report.h"
#include "fail.h"
#include "json_out.h"
#include "path.h"
#include "print.h"

/* Late enough in a trace that its density is stable, at about 1.1 %. */
enum { TRACE_STEP = 10 };

static bool talking;

static void report_phase(const char *phase)
{
    if (talking)
        fprintf(stderr, "measuring: %s\n", phase);
}

static double gigabytes(double rate)
{
    return rate / 1e9;
}

static json_t *json_of(const bench_report *r)
{
    json_t *o = json_object(), *peers = json_array();
    cli_json_text(o, "version", dw_version());
    cli_json_text(o, "kernel", dw_kernel_name());
    cli_json_text(o, "weights", r->kind);
    cli_json_count(o, "weights_bytes", r->n_bytes);
    cli_json_count(o, "elements", r->n_elems);
    cli_json_count(o, "changed", r->n_changed);
    cli_json_real(o, "memcpy_bytes_per_second", r->copy_rate);
    cli_json_real(o, "encode_bytes_per_second", r->encode_rate);
    cli_json_real(o, "encode_to_memcpy", r->encode_rate / r->copy_rate);
    cli_json_real(o, "stage_bytes_per_second", r->stage_rate);
    cli_json_real(o, "stage_to_memcpy", r->stage_rate / r->copy_rate);
    cli_json_real(o, "digest_bytes_per_second", r->digest_rate);
    cli_json_real(o, "digest_to_memcpy", r->digest_rate / r->copy_rate);
    cli_json_real(o, "scatter_seconds", r->scatter_seconds);
    cli_json_count(o, "delta_bytes", r->delta_bytes);
    cli_json_real(o, "bits_a_change", cli_bits_a_change(r->delta_bytes, r->n_changed));
    cli_json_count(o, "encode_extra_memory_bytes", r->encode_memory);
    cli_json_count(o, "apply_extra_memory_bytes", r->apply_memory);
    cli_json_flag(o, "equal", r->equal);
    if (r->n_steps > 0) {
        cli_json_count(o, "trace_steps", r->n_steps);
        cli_json_real(o, "trace_bits_a_change",
                      cli_bits_a_change(r->step_bytes, r->step_changes));
    }
    for (unsigned i = 0; i < BENCH_PEERS; i++) {
        const bench_peer_result *p = &r->peers[i].result;
        json_t *peer = json_object();
        cli_json_text(peer, "name", r->peers[i].name);
        cli_json_count(peer, "bytes", p->n_bytes);
        cli_json_real(peer, "bits_a_change", cli_bits_a_change(p->n_bytes, r->n_changed));
        cli_json_real(peer, "encode_bytes_per_second",
                      (double)r->n_bytes / p->encode_seconds);
        cli_json_real(peer, "apply_bytes_per_second",
                      (double)r->n_bytes / p->apply_seconds);
        cli_json_flag(peer, "equal", p->equal);
        json_array_append_new(peers, peer);
    }
    json_object_set_new(o, "peers", peers);
    return o;
}

static void print_rate(const char *label, double rate, double copy_rate)
{
    printf("  %-36s %7.2f GB/s   %5.2f x memcpy\n", label, gigabytes(rate),
           rate / copy_rate);
}

static void print_method(const char *name, uint64_t n_bytes, const bench_report *r,
                         double encode_rate, double apply_rate, bool equal)
{
    char size[CLI_NUMBER_SIZE];
    printf("  %-36s %10s %7.2f %9.2f %9.2f   %s\n", name, cli_format_size(size, n_bytes),
           cli_bits_a_change(n_bytes, r->n_changed), gigabytes(encode_rate),
           gigabytes(apply_rate), equal ? "yes" : "NO");
}

static void print_report(const bench_report *r, unsigned n_threads)
{
    char size[CLI_NUMBER_SIZE], count[CLI_NUMBER_SIZE], changed[CLI_NUMBER_SIZE];
    printf("deltawire %s, kernel %s, ", dw_version(), dw_kernel_name());
    if (n_threads)
        printf("%u threads\n", n_threads);
    else
        printf("all cores\n");
    printf("weights: %s, %s, %s elements, %s changed (%.2f %%)\n\n", r->kind,
           cli_format_size(size, r->n_bytes), cli_format_count(count, r->n_elems),
           cli_format_count(changed, r->n_changed),
           100 * cli_ratio((double)r->n_changed, (double)r->n_elems));
    print_rate("memcpy, one thread", r->copy_rate, r->copy_rate);
    print_rate("diff + encode + update the base", r->encode_rate, r->copy_rate);
    print_rate("decode to a staged list, verified", r->stage_rate, r->copy_rate);
    print_rate("digest of all weights", r->digest_rate, r->copy_rate);
    printf("  %-36s %7.1f ms\n", "scatter of the staged list", 1e3 * r->scatter_seconds);
    printf("  %-36s %7.1f MiB beyond the delta\n", "memory, diff + encode",
           (double)r->encode_memory / (1 << 20));
    printf("  %-36s %7.1f MiB\n", "memory, decode + apply",
           (double)r->apply_memory / (1 << 20));
    if (r->n_steps > 0)
        printf("  %-36s %7.3f bits a change, %u steps, files whole\n",
               "class on the trace", cli_bits_a_change(r->step_bytes, r->step_changes),
               r->n_steps);
    double apply_seconds = (double)r->n_bytes / r->stage_rate + r->scatter_seconds;
    printf("\n  %-36s %10s %7s %9s %9s   equal\n", "way", "bytes", "bits", "encode",
           "apply");
    printf("  %-36s %10s %7s %9s %9s\n", "", "", "/change", "GB/s", "GB/s");
    print_method("deltawire class", r->delta_bytes, r, r->encode_rate,
                 (double)r->n_bytes / apply_seconds, r->equal);
    for (unsigned i = 0; i < BENCH_PEERS; i++) {
        const bench_peer_result *p = &r->peers[i].result;
        print_method(r->peers[i].name, p->n_bytes, r,
                     (double)r->n_bytes / p->encode_seconds,
                     (double)r->n_bytes / p->apply_seconds, p->equal);
    }
}

/* Prints the table even if the file cannot be written, because the run took long. */
static int present(const bench_report *r, const char *json_file, const cli_session *s)
{
    dw_error err;
    json_t *object = json_of(r);
    dw_status status = json_file ? cli_json_save(object, json_file, &err) : DW_OK;
    if (!s->json)
        print_report(r, s->n_threads);
    else if (status == DW_OK)
        cli_json_print(json_incref(object));
    json_decref(object);
    return status == DW_OK ? 0 : cli_fail(s, &err, json_file, NULL);
}

typedef struct arguments {
    bench_options bench;
    const char *json_file;
} arguments;

static int run(cli_session *s)
{
    arguments a = {.bench = {.n_bytes = 512000000, .step = TRACE_STEP, .n_rounds = 5}};
    cli_parse(s, &a);
    if (a.bench.n_rounds == 0)
        cli_usage_error(s, "--rounds must be above zero");
    a.bench.n_threads = s->n_threads;
    talking = !s->quiet && !s->json;
    bench_report report;
    dw_error err;
    if (a.json_file && cli_path_check_output(a.json_file, &err) != DW_OK)
        return cli_fail(s, &err, a.json_file, NULL);
    if (bench_run(&report, &a.bench, report_phase, &err) != DW_OK)
        return cli_fail(s, &err, a.bench.trace, NULL);
    int exit_code = present(&report, a.json_file, s);
    if (exit_code != 0)
        return exit_code;
    bool all_equal = report.equal;
    for (unsigned i = 0; i < BENCH_PEERS; i++)
        all_equal &= report.peers[i].result.equal;
    return all_equal ? 0 : CLI_EXIT_FAILURE;
}

static const cli_option options[] = {
    {CLI_OPTION(TEXT, arguments, bench.trace, "trace", "DIR",
                "a real trace (base/, deltas/step_000001.safetensors, ...), repeated up "
                "to the size; without it, synthetic weights")},
    {CLI_OPTION(SIZE, arguments, bench.n_bytes, "size", "BYTES",
                "of the weights (512M)")},
    {CLI_OPTION(NUMBER, arguments, bench.n_rounds, "rounds", "N",
                "the best of N rounds counts (5)")},
    {CLI_OPTION(TEXT, arguments, json_file, "json-file", "FILE",
                "also write the JSON to FILE")},
    {0},
};

const cli_verb cli_verb_bench = {
    .name = "bench",
    .summary = "measure sizes and speeds",
    .usage = "[--trace DIR] [--size BYTES] [--rounds N] [--json-file FILE]",
    .about =
        "Measures this machine: finding, coding, decoding and storing the changes of one "
        "training step, beside memcpy and the methods of others, all in one run. Rates "
        "are bytes of weights a second; the best of N rounds counts. Digests of the base "
        "are kept from step to step, as a trainer and a follower keep them. Three "
        "versions "
        "of the weights must fit in memory.",
    .examples = "  deltawire bench --threads 2\n"
                "  deltawire bench --trace ../shared/data/rl-trace --size 1200M "
                "--json-file b.json\n",
    .options = options,
    .run = run,
};
