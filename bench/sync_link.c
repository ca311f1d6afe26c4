/* A trainer and a follower, each in a process of its own, perhaps behind a slow link: the
 * times when a version was published and staged. The clock is CLOCK_MONOTONIC, which all
 * processes of a machine share. The trainer takes a step for each line on stdin. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "measure.h"
#include "sync_bench.h"

enum { POLL_MS = 100, TIMEOUT_MS = 120000 };

void sync_link_trainer(char **args)
{
    dw_error err = {0};
    size_t n_tensors;
    synth_run *run = sync_new_run(strtoull(args[1], NULL, 10));
    const dw_tensor *tensors = synth_run_tensors(run, &n_tensors);
    dw_store *store = sync_open_store(args[0]);
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.first = DW_FIRST_BASE; /* the whole model need not cross the link */
    options.base_name = "synthetic";
    options.spool_dir = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    dw_publisher *publisher;
    sync_check(dw_publisher_open(&publisher, store, tensors, n_tensors, &options, &err),
               &err);
    printf("{\"ready\": true}\n");
    unsigned long n_steps = strtoul(args[2], NULL, 10);
    char line[16];
    while (n_steps-- > 0 && fgets(line, sizeof line, stdin)) {
        synth_step_stats stats;
        sync_check(synth_run_step(run, &stats, &err), &err);
        double start = bench_seconds();
        dw_publish_report r = sync_publish(publisher);
        double committed = bench_seconds();
        printf("{\"version\": %" PRIu64 ", \"published_s\": %.4f, \"committed_s\": %.4f, "
               "\"n_bytes\": %" PRIu64 ", \"n_changed\": %" PRIu64
               ", \"encoded_ms\": %.3f, \"uploaded_ms\": %.3f}\n",
               r.version, start, committed, r.n_bytes, stats.n_changed,
               1e-3 * (double)r.times.us[DW_ENCODED],
               1e-3 * (double)r.times.us[DW_UPLOADED]);
        sync_drain(publisher);
        printf("{\"drained\": %" PRIu64 "}\n", r.version);
    }
    dw_publisher_close(publisher);
    dw_store_close(store);
    synth_run_free(run);
}

void sync_link_follower(char **args)
{
    dw_error err = {0};
    size_t n_tensors;
    synth_run *run = sync_new_run(strtoull(args[1], NULL, 10)); /* the same base */
    const dw_tensor *tensors = synth_run_tensors(run, &n_tensors);
    dw_store *store = sync_open_store(args[0]);
    dw_follower *follower = sync_open_follower(store, tensors, n_tensors, false);
    uint64_t newest;
    sync_check(dw_follower_sync(follower, 0, NULL, NULL, &err), &err);
    printf("{\"ready\": true}\n");
    const uint64_t n_steps = strtoull(args[2], NULL, 10);
    while (dw_follower_version(follower) < n_steps) {
        uint64_t staged;
        sync_check(dw_follower_wait(follower, &newest, TIMEOUT_MS, POLL_MS, NULL, &err),
                   &err);
        double seen = bench_seconds();
        sync_check(dw_follower_stage(follower, newest, &staged, NULL, &err), &err);
        double done = bench_seconds();
        sync_check(dw_follower_apply(follower, &err), &err);
        sync_check(dw_follower_finish(follower, &err), &err);
        printf("{\"version\": %" PRIu64 ", \"seen_s\": %.4f, \"staged_s\": %.4f}\n",
               staged, seen, done);
    }
    dw_follower_close(follower);
    dw_store_close(store);
    synth_run_free(run);
}
