/* Measures the library's work on a CUDA device: `make bench-gpu`.
 *
 *     gpu_kernels [--device N] [--rounds N] [--json FILE] [MODEL...]
 *
 * A round encodes the step from one version of the weights to another, stages it against
 * the old weights, stores it, and takes the digest of the result. Times are medians of
 * rounds by the host's clock, from the call until it returns; one further round measures
 * each kernel by the device's. The result must be the new weights. Exit status 77: there
 * is no device.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cuda/cuda_digest.h"
#include "cuda/cuda_encode.h"
#include "cuda/cuda_stage.h"
#include "cuda/cuda.h"
#include "gpu_model.h"
#include "gpu_watch.h"
#include "measure.h"

enum { MAX_ROUNDS = 100 };

/* What a round takes, in ms. */
typedef enum figure { HELD, ENCODE, STAGE, PAUSE, DIGEST, FIGURES } figure;

static const struct {
    const char *text, *key;
} figures[FIGURES] = {
    {"compare: the new weights must stay", "held_ms"},
    {"compare to encoded bytes in host memory", "encode_ms"},
    {"decode to staged and proven on the device", "stage_ms"},
    {"pause: checked scatter with read-back", "pause_ms"},
    {"digest of all weights", "digest_ms"},
};

static const char *const kernels[] = {
#define NAME(constant, name, threads, argument) #name,
    DW_CUDA_EACH_KERNEL(NAME)
#undef NAME
};

typedef struct outcome {
    uint64_t n_changed;
    uint64_t n_encoded;
    double ms[FIGURES][MAX_ROUNDS];
    gpu_kernel_time kernels[DW_CUDA_KERNELS];
    int64_t host_bytes, pinned_bytes, device_bytes; /* peaks */
} outcome;

typedef struct bench {
    dw_cuda *c;
    unsigned n_rounds;
    FILE *json;
    gpu_model model;
    dw_digest *base_digests, *new_digests, *got;
    dw_encode_pair *pairs;
    dw_cuda_encoder *encoder;
    outcome out;
} bench;

static double now_ms(void)
{
    return 1e3 * bench_seconds();
}

/* The `run` of a dw_encode_device: the encoder has the results. */
static dw_status fetch(void *encoder, const dw_encode_job *job, dw_class_map *maps,
                       dw_encode_item *items, size_t n_items, dw_error *err)
{
    return dw_cuda_encoder_fetch(encoder, 0, maps, job->n_pairs, items, n_items, err);
}

static dw_status encode(dw_delta **out, bench *b, double ms[FIGURES], dw_error *err)
{
    const gpu_model *m = &b->model;
    dw_diff_options options;
    dw_diff_options_init(&options);
    for (size_t t = 0; t < m->n_tensors; t++)
        b->pairs[t] = (dw_encode_pair){
            .base = m->base[t], .next = m->next[t], .base_digest = b->base_digests[t]};
    dw_status status = b->encoder ? DW_OK
                                  : dw_cuda_encoder_open(&b->encoder, b->c, b->pairs,
                                                         m->n_tensors, 0, false, err);
    const double start = now_ms();
    if (status == DW_OK)
        status = dw_cuda_encoder_begin(b->encoder, NULL, err);
    if (status == DW_OK)
        status = dw_cuda_encoder_wait(b->encoder, err);
    ms[HELD] = now_ms() - start;
    if (status == DW_OK)
        status = dw_cuda_encoder_finish(b->encoder, err);
    ms[ENCODE] = now_ms() - start;
    if (status != DW_OK)
        return status;
    const dw_encode_device device = {fetch, b->encoder};
    dw_encode_job job = {.pairs = b->pairs,
                         .n_pairs = m->n_tensors,
                         .digests_known = true,
                         .device = &device};
    return dw_encode(out, &job, &options, err);
}

/* Encodes, stages and stores once. MS takes the figures. */
static dw_status run_step(bench *b, double ms[FIGURES], dw_error *err)
{
    const gpu_model *m = &b->model;
    dw_delta *delta = NULL;
    dw_cuda_stage *stage = NULL;
    dw_stage_result result;
    dw_apply_options options;
    dw_apply_options_init(&options);
    options.base_digests = b->base_digests;
    double start;
    dw_status status = encode(&delta, b, ms, err);
    if (status == DW_OK) {
        const dw_piece *last = &delta->pieces[delta->n_pieces - 1];
        b->out.n_changed = delta->info.n_changed;
        b->out.n_encoded = last->offset + last->n_bytes;
        start = now_ms();
        status = dw_cuda_stage_open(&stage, &result, b->c, delta, m->base, m->n_tensors,
                                    &options, err);
        ms[STAGE] = now_ms() - start;
    }
    if (status == DW_OK) {
        start = now_ms();
        status = dw_cuda_stage_apply(stage, err);
        ms[PAUSE] = now_ms() - start;
    }
    if (status == DW_OK) {
        start = now_ms();
        status = dw_cuda_digest_tensors(b->got, b->c, m->base, m->n_tensors, err);
        ms[DIGEST] = now_ms() - start;
    }
    for (size_t t = 0; status == DW_OK && t < m->n_tensors; t++)
        if (b->got[t] != b->new_digests[t])
            status = dw_fail_tensor(err, DW_CORRUPT, m->name, m->base[t].name,
                                    "is not what it should have become");
    dw_cuda_stage_close(stage);
    dw_delta_close(delta);
    return status;
}

/* After a step: nothing differs any more. */
static dw_status check_equal(bench *b, dw_error *err)
{
    dw_delta *delta = NULL;
    double ms[FIGURES];
    memcpy(b->base_digests, b->new_digests, b->model.n_tensors * sizeof *b->base_digests);
    dw_status status = encode(&delta, b, ms, err);
    if (status == DW_OK && delta->info.n_changed != 0)
        status = dw_fail(err, DW_CORRUPT, b->model.name,
                         "%" PRIu64 " weights are not what they should have become",
                         delta->info.n_changed);
    dw_delta_close(delta);
    return status;
}

static dw_status measure(bench *b, dw_error *err)
{
    const gpu_model *m = &b->model;
    outcome *out = &b->out;
    double ms[FIGURES];
    dw_status status =
        dw_cuda_digest_tensors(b->base_digests, b->c, m->base, m->n_tensors, err);
    if (status == DW_OK)
        status = dw_cuda_digest_tensors(b->new_digests, b->c, m->next, m->n_tensors, err);
    /* the first step shows what memory it takes */
    if (status == DW_OK) {
        gpu_watch_reset();
        const gpu_memory before = gpu_watch_memory();
        bench_peak *peak = bench_peak_start();
        status = run_step(b, ms, err);
        const gpu_memory after = gpu_watch_memory();
        out->host_bytes = (int64_t)bench_peak_stop(peak);
        out->pinned_bytes = after.pinned_peak - before.pinned;
        out->device_bytes = after.device_peak - before.device;
    }
    for (unsigned r = 0; status == DW_OK && r < b->n_rounds; r++) {
        status = gpu_model_refill(&b->model, err);
        if (status == DW_OK)
            status = run_step(b, ms, err);
        for (unsigned k = 0; k < FIGURES; k++)
            out->ms[k][r] = ms[k];
    }
    if (status == DW_OK)
        status = gpu_model_refill(&b->model, err);
    if (status == DW_OK)
        status = dw_cuda_enter(b->c, err);
    if (status != DW_OK)
        return status;
    gpu_watch_kernels();
    status = run_step(b, ms, err);
    gpu_watch_times(out->kernels);
    dw_cuda_leave(b->c);
    return status == DW_OK ? check_equal(b, err) : status;
}

/* ---- output ---- */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const bench *b, bool is_first)
{
    const outcome *o = &b->out;
    const gpu_model *m = &b->model;
    printf("\n%s: %zu tensors, %" PRIu64 " elements, %" PRIu64 " changed, %" PRIu64
           " bytes encoded\n",
           m->name, m->n_tensors, m->n_elems, o->n_changed, o->n_encoded);
    fprintf(b->json,
            "%s{\"model\": \"%s\", \"elements\": %" PRIu64 ", \"changed\": %" PRIu64
            ", \"encoded_bytes\": %" PRIu64 ", \"rounds\": %u",
            is_first ? "" : ",\n", m->name, m->n_elems, o->n_changed, o->n_encoded,
            b->n_rounds);
    for (unsigned k = 0; k < FIGURES; k++) {
        double ms[MAX_ROUNDS];
        memcpy(ms, o->ms[k], sizeof ms);
        qsort(ms, b->n_rounds, sizeof ms[0], ascending);
        printf("  %-44s %9.3f ms   (%.3f to %.3f)\n", figures[k].text,
               ms[b->n_rounds / 2], ms[0], ms[b->n_rounds - 1]);
        fprintf(b->json, ", \"%s\": %.4f", figures[k].key, ms[b->n_rounds / 2]);
    }
    printf("  %-44s %9.1f MiB, and %.1f pinned\n", "additional host memory",
           (double)o->host_bytes / 1048576, (double)o->pinned_bytes / 1048576);
    printf("  %-44s %9.1f MiB\n", "additional memory of the device",
           (double)o->device_bytes / 1048576);
    fprintf(b->json,
            ", \"host_bytes\": %" PRId64 ", \"pinned_bytes\": %" PRId64
            ", \"device_bytes\": %" PRId64 ", \"kernels_ms\": {",
            o->host_bytes, o->pinned_bytes, o->device_bytes);
    const char *comma = "";
    for (unsigned k = 0; k < DW_CUDA_KERNELS; k++) {
        if (o->kernels[k].n_launches == 0 || o->kernels[k].ms < 0)
            continue;
        printf("  %-44s %9.3f ms   (%u launches)\n", kernels[k], o->kernels[k].ms,
               o->kernels[k].n_launches);
        fprintf(b->json, "%s\"%s\": %.4f", comma, kernels[k], o->kernels[k].ms);
        comma = ", ";
    }
    fprintf(b->json, "}}");
    fflush(stdout);
}

static dw_status run_model(bench *b, const char *name, bool is_first, dw_error *err)
{
    memset(&b->out, 0, sizeof b->out);
    dw_status status = gpu_model_open(&b->model, b->c, name, err);
    if (status != DW_OK)
        return status;
    const size_t n = b->model.n_tensors;
    b->base_digests = calloc(n, sizeof *b->base_digests);
    b->new_digests = calloc(n, sizeof *b->new_digests);
    b->got = calloc(n, sizeof *b->got);
    b->pairs = calloc(n, sizeof *b->pairs);
    status = b->base_digests && b->new_digests && b->got && b->pairs
                 ? measure(b, err)
                 : dw_fail_memory(err, name);
    if (status == DW_OK)
        print(b, is_first);
    free(b->base_digests);
    free(b->new_digests);
    free(b->got);
    free(b->pairs);
    dw_cuda_encoder_close(b->encoder);
    b->encoder = NULL;
    gpu_model_close(&b->model);
    return status;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: gpu_kernels [--device N] [--rounds N] [--json FILE] "
            "[MODEL...]\nmodels: %s; otherwise 0.6b and 7.6b\n",
            gpu_model_names);
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"device", required_argument, NULL, 'd'},
                                            {"rounds", required_argument, NULL, 'r'},
                                            {"json", required_argument, NULL, 'j'},
                                            {0}};
    static char *all[] = {"0.6b", "7.6b"};
    bench b = {.n_rounds = 7};
    uint32_t device = 0;
    const char *path = "/dev/null";
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (o == 'd')
            device = (uint32_t)strtoul(optarg, NULL, 10);
        else if (o == 'r')
            b.n_rounds = (unsigned)strtoul(optarg, NULL, 10);
        else if (o == 'j')
            path = optarg;
        else
            return usage();
    }
    if (b.n_rounds == 0 || b.n_rounds > MAX_ROUNDS)
        return usage();
    dw_cuda_report report;
    dw_error err = {0};
    char line[DW_ERROR_LINE_SIZE];
    dw_cuda_look(&report);
    if (report.n_devices == 0) {
        fprintf(stderr, "gpu_kernels: no CUDA device: %s\n", report.fault);
        return 77;
    }
    b.json = fopen(path, "w");
    if (!b.json) {
        perror(path);
        return 1;
    }
    dw_cuda_device about;
    dw_status status = dw_cuda_describe(&about, device, &err);
    if (status == DW_OK)
        status = dw_cuda_open(&b.c, device, NULL, &err);
    if (status == DW_OK) {
        printf("device: %s; medians of %u rounds\n", about.name, b.n_rounds);
        fprintf(b.json, "{\"device\": \"%s\", \"models\": [\n", about.name);
        gpu_watch_start(b.c);
        char **models = optind < argc ? argv + optind : all;
        const int n = optind < argc ? argc - optind : 2;
        for (int i = 0; status == DW_OK && i < n; i++)
            status = run_model(&b, models[i], i == 0, &err);
        fprintf(b.json, "]}\n");
        gpu_watch_stop();
        dw_cuda_close(b.c);
    }
    const bool is_written = fclose(b.json) == 0;
    if (status != DW_OK)
        fprintf(stderr, "gpu_kernels: %s\n", dw_error_line(&err, line));
    return status == DW_OK && is_written ? 0 : 1;
}
