/* A trainer and an engine that share only a bucket: the trainer publishes a version after
 * each step, and the engine follows. Here both are in one process; they need not know
 * each other.
 *
 *     publish_and_follow [URL]      file:///tmp/stream, s3://bucket/run-7, ...
 */
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deltawire/deltawire.h>

enum { N = 1 << 20, N_STEPS = 3 };

static float trained[N]; /* the trainer's weights */
static float served[N];  /* the engine's */

static const uint64_t shape[] = {N};

static dw_tensor tensor_of(float *weights)
{
    return (dw_tensor){"model.weight", DW_F32, 1, shape, N * sizeof(float), weights, 0, NULL};
}

/* ---- the trainer ---- */

static dw_status train(dw_publisher *publisher, unsigned step, dw_error *err)
{
    for (size_t i = step; i < N; i += 100)
        trained[i] *= 1.0001f;
    char name[16];
    snprintf(name, sizeof name, "%u", step);
    const dw_publish_note note = {.struct_bytes = sizeof note, .step = name};
    uint64_t ticket;
    dw_publish_report report;
    dw_status status = dw_publisher_publish(publisher, &ticket, &note, err);
    /* The next step may begin once the weights have been read (dw_publisher_captured);
     * diff, upload and commit go on in the background. */
    if (status == DW_OK)
        status = dw_publisher_wait(publisher, ticket, UINT_MAX, NULL, &report, err);
    if (status == DW_OK)
        printf("trainer: step %u is version %" PRIu64 ", %" PRIu64 " changes in %" PRIu64
               " bytes\n",
               step, report.version, report.n_changed, report.n_bytes);
    return status;
}

/* ---- the engine ---- */

static dw_status update(dw_follower *follower, dw_error *err)
{
    uint64_t newest, staged = 0;
    dw_status status = dw_follower_poll(follower, &newest, err);
    while (status == DW_OK && dw_follower_version(follower) != newest) {
        /* the engine keeps serving while this fetches, decodes and proves */
        status = dw_follower_stage(follower, newest, &staged, NULL, err);
        /* pause the engine here */
        if (status == DW_OK)
            status = dw_follower_apply(follower, err);
        /* resume it here */
        if (status == DW_OK)
            status = dw_follower_finish(follower, err);
        if (status == DW_OK)
            printf("engine:  serves version %" PRIu64 "\n", staged);
    }
    return status;
}

static dw_status run(dw_store *store, dw_error *err)
{
    const dw_tensor weights = tensor_of(trained), memory = tensor_of(served);
    dw_publisher *publisher = NULL;
    dw_follower *follower = NULL;
    dw_status status = dw_publisher_open(&publisher, store, &weights, 1, NULL, err);
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = &memory;
    options.n_tensors = 1;
    if (status == DW_OK)
        status = dw_follower_open(&follower, store, &options, err);
    for (unsigned step = 1; status == DW_OK && step <= N_STEPS; step++) {
        status = train(publisher, step, err);
        if (status == DW_OK)
            status = update(follower, err);
    }
    if (status == DW_OK && memcmp(trained, served, sizeof trained) != 0) {
        *err = (dw_error){.where = "model.weight",
                          .text = "the engine's weights are NOT the trainer's"};
        status = err->code = DW_CORRUPT;
    }
    if (status == DW_OK)
        puts("the engine's weights are exactly the trainer's");
    dw_follower_close(follower);
    dw_publisher_close(publisher);
    return status;
}

int main(int argc, char **argv)
{
    if (argc > 2 || (argc > 1 && argv[1][0] == '-')) {
        const bool is_help = argc == 2 && strcmp(argv[1], "--help") == 0;
        fprintf(is_help ? stdout : stderr, "usage: %s [URL]\n", argv[0]);
        return is_help ? 0 : 2;
    }
    dw_error err = {0};
    dw_store *store = NULL;
    for (size_t i = 0; i < N; i++)
        trained[i] = (float)(rand() % 2001 - 1000) / 1000.0f;
    dw_status status =
        dw_store_open(&store, argc > 1 ? argv[1] : "mem:example", NULL, &err);
    if (status == DW_OK)
        status = run(store, &err);
    if (status != DW_OK)
        fprintf(stderr, "%s: %s\n", err.where, err.text);
    dw_store_close(store);
    return status == DW_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
