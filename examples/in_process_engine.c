/* An engine in this process: the weights are its own memory, and a function call pauses
 * it. A trainer publishes while a thread answers requests. Each request reads all weights
 * and must find one version, never a mix.
 *
 *     in_process_engine [URL]       mem:example, file:///tmp/stream, s3://bucket/run-7
 */
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deltawire/deltawire.h>

enum { N = 1 << 18, N_STEPS = 20 };

static float trained[N], served[N];
static _Atomic(dw_digest) versions[N_STEPS + 1]; /* the expected digests */
static const uint64_t shape[] = {N};

static dw_tensor tensor_of(float *weights)
{
    return (dw_tensor){"model.weight",    DW_F32,  1, shape,
                       N * sizeof(float), weights, 0, NULL};
}

/* ---- the engine: requests go through a gate ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed;
    unsigned n_inside;
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, true, 0};

static atomic_bool is_over;
static unsigned n_requests, n_mixes; /* used by the serving thread until it is joined */

static void answer_request(void)
{
    const dw_digest digest = dw_digest_bytes(served, sizeof served);
    bool is_version = false;
    for (size_t i = 0; i <= N_STEPS; i++)
        is_version = is_version || versions[i] == digest;
    n_requests++;
    n_mixes += !is_version;
}

static void *serve(void *unused)
{
    (void)unused;
    while (!is_over) {
        pthread_mutex_lock(&gate.lock);
        while (gate.closed && !is_over)
            pthread_cond_wait(&gate.changed, &gate.lock);
        gate.n_inside += !is_over;
        pthread_mutex_unlock(&gate.lock);
        if (is_over)
            break;
        answer_request();
        pthread_mutex_lock(&gate.lock);
        gate.n_inside--;
        pthread_cond_broadcast(&gate.changed);
        pthread_mutex_unlock(&gate.lock);
    }
    return NULL;
}

/* When this returns, no request reads weights. */
static void pause_engine(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.closed = true;
    while (gate.n_inside > 0)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static void resume_engine(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.closed = false;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

/* ---- the trainer, and the follower ---- */

static dw_status train(dw_publisher *publisher, size_t step, dw_error *err)
{
    uint64_t ticket;
    for (size_t i = step; i < N; i += 50)
        trained[i] *= 1.0001f;
    versions[step] = dw_digest_bytes(trained, sizeof trained);
    dw_status status = dw_publisher_publish(publisher, &ticket, NULL, err);
    return status == DW_OK
               ? dw_publisher_wait(publisher, ticket, UINT_MAX, NULL, NULL, err)
               : status;
}

/* The four phases. If an apply fails, the weights may be a mix: the engine stays paused,
 * and the next sync makes them whole. */
static dw_status sync_engine(dw_follower *follower, dw_error *err)
{
    uint64_t version, newest;
    dw_status status = dw_follower_poll(follower, &newest, err);
    if (status == DW_OK) /* the engine serves while this fetches and proves */
        status = dw_follower_stage(follower, DW_NEWEST, &version, NULL, err);
    if (status == DW_OK)
        status = dw_follower_prepare(follower, err);
    if (status != DW_OK)
        return status;
    pause_engine();
    status = dw_follower_apply(follower, err);
    if (status != DW_OK)
        return status;
    resume_engine();
    status = dw_follower_finish(follower, err);
    if (status == DW_OK)
        printf("version %" PRIu64 "\n", dw_follower_version(follower));
    return status;
}

static dw_status run(dw_store *store, dw_error *err)
{
    const dw_tensor weights = tensor_of(trained), memory = tensor_of(served);
    dw_publisher *publisher = NULL;
    dw_follower *follower = NULL;
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = &memory;
    options.n_tensors = 1;
    versions[0] = dw_digest_bytes(trained, sizeof trained);
    dw_status status = dw_publisher_open(&publisher, store, &weights, 1, NULL, err);
    if (status == DW_OK)
        status = dw_follower_open(&follower, store, &options, err);
    for (size_t step = 1; status == DW_OK && step <= N_STEPS; step++) {
        status = train(publisher, step, err);
        if (status == DW_OK)
            status = sync_engine(follower, err);
    }
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
    pthread_t thread;
    for (size_t i = 0; i < N; i++)
        trained[i] = (float)(rand() % 2001 - 1000) / 1000.0f;
    if (pthread_create(&thread, NULL, serve, NULL) != 0)
        return EXIT_FAILURE;
    dw_status status =
        dw_store_open(&store, argc > 1 ? argv[1] : "mem:example", NULL, &err);
    if (status == DW_OK)
        status = run(store, &err);
    if (status != DW_OK)
        fprintf(stderr, "%s: %s\n", err.where, err.text);
    is_over = true;
    pthread_mutex_lock(&gate.lock);
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
    pthread_join(thread, NULL);
    printf("%u requests, %u of them saw a mix\n", n_requests, n_mixes);
    dw_store_close(store);
    return status == DW_OK && n_mixes == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
