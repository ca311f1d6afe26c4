/* Sends the real trace through a store, step by step: from dw_publisher_publish to the
 * commit, and from there to the weights of a follower. Both sides have the base. */
#include <inttypes.h>
#include <stdio.h>

#include "measure.h"
#include "sync_bench.h"
#include "workload.h"

static void open_trace(bench_model *model, const char *dir, unsigned *n_steps)
{
    dw_error err = {0};
    *n_steps = bench_trace_steps(dir);
    sync_check(bench_model_open(model, dir, &err), &err);
}

static uint64_t count_requests(const dw_store *store)
{
    dw_store_counts counts;
    dw_store_get_counts(store, &counts);
    return counts.n_requests;
}

void sync_trace_publish(char **args)
{
    dw_error err = {0};
    bench_model model;
    unsigned n_steps;
    open_trace(&model, args[1], &n_steps);
    dw_store *store = sync_open_store(args[0]);
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.first = DW_FIRST_BASE;
    options.base_name = "rl-trace";
    dw_publisher *publisher;
    sync_check(dw_publisher_open(&publisher, store, model.tensors, model.n_tensors,
                                 &options, &err),
               &err);
    double seconds = 0;
    uint64_t n_bytes = 0, uploaded_us = 0, encoded_us = 0, n_requests = 0;
    printf("{\"sizes\": [");
    for (unsigned step = 1; step <= n_steps; step++) {
        sync_check(bench_model_step(&model, args[1], step, &err), &err);
        uint64_t n_before = count_requests(store);
        double start = bench_seconds();
        dw_publish_report report = sync_publish(publisher);
        seconds += bench_seconds() - start;
        n_requests += count_requests(store) - n_before;
        sync_drain(publisher);
        if (report.n_objects != 1)
            sync_die("a step of the trace takes more than one object");
        n_bytes += report.n_bytes;
        uploaded_us += report.times.us[DW_UPLOADED];
        encoded_us += report.times.us[DW_ENCODED];
        printf("%s%" PRIu64, step > 1 ? ", " : "", report.n_bytes);
    }
    printf("], \"n\": %u, \"n_bytes\": %" PRIu64 ", \"seconds\": %.4f, "
           "\"encoded_ms\": %.3f, \"uploaded_ms\": %.3f, \"n_requests\": %" PRIu64 "}\n",
           n_steps, n_bytes, seconds, 1e-3 * (double)encoded_us,
           1e-3 * (double)uploaded_us, n_requests);
    dw_publisher_close(publisher);
    dw_store_close(store);
    bench_model_release(&model);
}

void sync_trace_pull(char **args)
{
    dw_error err = {0};
    bench_model model;
    unsigned n_steps;
    open_trace(&model, args[1], &n_steps);
    dw_store *store = sync_open_store(args[0]);
    dw_follower *follower =
        sync_open_follower(store, model.tensors, model.n_tensors, false);
    double seconds = 0;
    uint64_t n_bytes = 0, fetch_ms = 0, stage_ms = 0;
    const uint64_t n_before = count_requests(store);
    for (unsigned step = 1; step <= n_steps; step++) {
        dw_follow_report report;
        double start = bench_seconds();
        sync_check(dw_follower_sync(follower, step, NULL, &report, &err), &err);
        seconds += bench_seconds() - start;
        n_bytes += report.n_bytes;
        fetch_ms += report.fetch_ms;
        stage_ms += report.stage_ms;
    }
    printf("{\"n\": %u, \"n_bytes\": %" PRIu64 ", \"seconds\": %.4f, \"fetch_ms\": "
           "%" PRIu64 ", \"stage_ms\": %" PRIu64 ", \"n_requests\": %" PRIu64 "}\n",
           n_steps, n_bytes, seconds, fetch_ms, stage_ms,
           count_requests(store) - n_before);
    dw_follower_close(follower);
    dw_store_close(store);
    bench_model_release(&model);
}
