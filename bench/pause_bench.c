/* Measures how long an engine is paused for a version: `make bench-pause`.
 *
 *     pause_bench STORE-URL DIR ENGINE-SPEC N-VERSIONS N-BYTES [TRACE]
 *
 * Two versions of a model alternate in a trainer's memory. Each is published, followed
 * into DIR and taken over by the engine, as `deltawire follow` does. Prints a line of
 * JSON for each step, and leaves DIR at the last version.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deltawire/publish.h>
#include "engine/rollout.h"

#include "measure.h"
#include "workload.h"

static void check(dw_status status, const dw_error *err)
{
    if (status == DW_OK)
        return;
    fprintf(stderr, "pause_bench: %s: %s\n", err->where, err->text);
    exit(1);
}

static void print_step(void *context, const dw_rollout_step *h)
{
    const bench_workload *w = context;
    if (h->from == DW_NO_VERSION)
        return;
    printf("{\"version\": %" PRIu64 ", \"elements\": %" PRIu64 ", \"changed\": %" PRIu64
           ", \"bytes\": %" PRIu64 ", \"fetch_us\": %" PRIu64 ", \"decode_us\": %" PRIu64
           ", \"pause_us\": %" PRIu64 ", \"scatter_us\": %" PRIu64
           ", \"update_us\": %" PRIu64 ", \"resume_us\": %" PRIu64
           ", \"finish_us\": %" PRIu64 ", \"stopped_us\": %" PRIu64 "}\n",
           h->version, w->n_bytes / 2, h->n_changed, h->n_bytes, h->fetch_us,
           h->decode_us, h->pause_us, h->scatter_us, h->update_us, h->resume_us,
           h->finish_us, h->stopped_us);
    fflush(stdout);
}

static dw_publisher *open_publisher(dw_store *store, bench_workload *w)
{
    dw_error err = {0};
    dw_publisher *publisher;
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.fold_every = 0; /* not measured here */
    check(dw_publisher_open(&publisher, store, w->base, w->n_tensors, &options, &err),
          &err);
    return publisher;
}

static void publish(dw_publisher *publisher, bench_workload *w, const dw_tensor *next)
{
    dw_error err = {0};
    dw_publish_report report;
    uint64_t ticket;
    for (size_t i = 0; i < w->n_tensors; i++)
        memcpy(w->base[i].data, next[i].data, next[i].n_bytes);
    check(dw_publisher_publish(publisher, &ticket, NULL, &err), &err);
    check(dw_publisher_wait(publisher, ticket, 600000, NULL, &report, &err), &err);
    check(dw_publisher_drain(publisher, &err), &err);
}

static dw_rollout *open_rollout(dw_store *store, const char *dir, dw_engine **engine,
                                bench_workload *w)
{
    dw_error err = {0};
    dw_rollout *rollout;
    dw_follow_options follow;
    dw_rollout_options options;
    dw_follow_options_init(&follow);
    follow.into = dir;
    options = (dw_rollout_options){0};
    options.engines = engine;
    options.n_engines = 1;
    options.watch = (dw_rollout_watch){.step = print_step, .context = w};
    check(dw_rollout_open(&rollout, store, &follow, &options, &err), &err);
    return rollout;
}

static bool is_equal(dw_rollout *rollout, const bench_workload *w)
{
    size_t n;
    const dw_tensor *tensors = dw_follower_tensors(dw_rollout_follower(rollout), &n);
    for (size_t i = 0; i < w->n_tensors; i++) {
        size_t t = 0;
        while (t < n && strcmp(tensors[t].name, w->base[i].name) != 0)
            t++;
        if (t == n || memcmp(tensors[t].data, w->base[i].data, w->base[i].n_bytes) != 0)
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    dw_error err = {0};
    bench_workload w;
    dw_store *store;
    dw_engine *engine;
    if (argc < 6 || argc > 7) {
        fputs("usage: pause_bench STORE-URL DIR ENGINE-SPEC N-VERSIONS N-BYTES "
              "[TRACE]\n",
              stderr);
        return 2;
    }
    const unsigned n_versions = (unsigned)strtoul(argv[4], NULL, 10);
    const uint64_t n_bytes = strtoull(argv[5], NULL, 10);
    check(argc == 7 ? bench_workload_trace(&w, argv[6], 10, n_bytes, &err)
                    : bench_workload_synthetic(&w, n_bytes, &err),
          &err);
    check(dw_store_open(&store, argv[1], NULL, &err), &err);
    check(dw_engine_open(&engine, argv[3], NULL, &err), &err);
    dw_publisher *publisher = open_publisher(store, &w);
    dw_rollout *rollout = open_rollout(store, argv[2], &engine, &w);
    check(dw_rollout_sync(rollout, DW_NEWEST, NULL, &err), &err);
    /* the engine is started when there is a version to serve */
    puts("{\"ready\": true}");
    fflush(stdout);
    if (getchar() == EOF)
        return 1;
    check(dw_rollout_check(rollout, &err), &err);
    for (unsigned i = 0; i < n_versions; i++) {
        publish(publisher, &w, i % 2 ? w.old : w.new_);
        check(dw_rollout_sync(rollout, DW_NEWEST, NULL, &err), &err);
        if (!dw_rollout_is_serving(rollout)) {
            err = dw_rollout_engine(rollout, 0)->error;
            check(DW_UNAVAILABLE, &err);
        }
    }
    printf("{\"equal\": %s}\n", is_equal(rollout, &w) ? "true" : "false");
    dw_rollout_close(rollout);
    dw_publisher_close(publisher);
    dw_engine_close(engine);
    dw_store_close(store);
    bench_workload_release(&w);
    return 0;
}
