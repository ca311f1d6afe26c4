/* Memory of a publisher and of a follower: the peak of anonymous memory over all that
 * they do, without the memory of their callers. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "follow/follower.h"
#include "measure.h"
#include "sync_bench.h"
#include "weights/target_inside.h"
#include "workload.h"
#include "inner.h"

/* Makes every weight of NEW_ differ from OLD in its last bits. */
static void make_dense(bench_workload *w)
{
    const uint16_t *old = w->old[0].data;
    uint16_t *new_ = w->new_[0].data;
    for (uint64_t i = 0; i < w->n_bytes / 2; i++)
        new_[i] = (uint16_t)(old[i] + 1 + (i * 0x9e3779b97f4a7c15ull >> 62));
}

/* The synthetic step changes 4 %. Keeps a quarter of that. */
static void make_sparse(bench_workload *w)
{
    const uint16_t *old = w->old[0].data;
    uint16_t *new_ = w->new_[0].data;
    for (uint64_t i = 0; i < w->n_bytes / 2; i++)
        if (i * 0x9e3779b97f4a7c15ull >> 62 != 0)
            new_[i] = old[i];
}

static bench_workload make_workload(char **args)
{
    dw_error err = {0};
    bench_workload w;
    sync_check(bench_workload_synthetic(&w, strtoull(args[1], NULL, 10), &err), &err);
    if (strcmp(args[2], "dense") == 0)
        make_dense(&w);
    else
        make_sparse(&w);
    return w;
}

void sync_memory_publish(char **args)
{
    dw_error err = {0};
    bench_workload w = make_workload(args);
    dw_store *store = sync_open_store(args[0]);
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.spool_dir = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    bench_peak *open_peak = bench_peak_start();
    dw_publisher *publisher;
    sync_check(dw_publisher_open(&publisher, store, w.base, w.n_tensors, &options, &err),
               &err);
    uint64_t opening = bench_peak_stop(open_peak);
    memcpy(w.base[0].data, w.new_[0].data, w.n_bytes);
    const uint64_t before = bench_anonymous_bytes();
    bench_peak *peak = bench_peak_start();
    dw_publish_report report = sync_publish(publisher);
    uint64_t publishing = bench_peak_stop(peak);
    const uint64_t between = bench_anonymous_bytes();
    bench_peak *after_peak = bench_peak_start();
    sync_drain(publisher);
    uint64_t after = bench_peak_stop(after_peak) + between;
    after = after > before ? after - before : 0;
    opening = opening > w.n_bytes ? opening - w.n_bytes : 0; /* without the baseline */
    printf("{\"model_bytes\": %" PRIu64 ", \"n_changed\": %" PRIu64
           ", \"delta_bytes\": %" PRIu64 ", \"n_objects\": %" PRIu64
           ", \"opening\": %" PRIu64 ", \"publishing\": %" PRIu64 ", \"after\": %" PRIu64
           "}\n",
           w.n_bytes, report.n_changed, report.n_bytes, report.n_objects, opening,
           publishing, after);
    dw_publisher_close(publisher);
    dw_store_close(store);
    bench_workload_release(&w);
}

/* Goes from version 0, which its memory holds, to version 1, only by the delta. */
void sync_memory_follow(char **args)
{
    dw_error err = {0};
    bench_workload w = make_workload(args);
    dw_store *store = sync_open_store(args[0]);
    bench_peak *peak = bench_peak_start();
    dw_follower *follower = sync_open_follower(store, w.base, w.n_tensors, true);
    sync_check(dw_follower_sync(follower, 0, NULL, NULL, &err), &err);
    uint64_t staged;
    double start = bench_seconds();
    sync_check(dw_follower_stage(follower, 1, &staged, NULL, &err), &err);
    double seconds = bench_seconds() - start;
    uint64_t list =
        follower->weights->patch ? dw_patch_bytes(follower->weights->patch) : 0;
    sync_check(dw_follower_apply(follower, &err), &err);
    sync_check(dw_follower_finish(follower, &err), &err);
    uint64_t following = bench_peak_stop(peak);
    if (memcmp(w.base[0].data, w.new_[0].data, w.n_bytes) != 0)
        sync_die("the weights are not those of version 1");
    printf("{\"model_bytes\": %" PRIu64 ", \"staged_bytes\": %" PRIu64
           ", \"following\": %" PRIu64 ", \"stage_s\": %.3f}\n",
           w.n_bytes, list, following, seconds);
    dw_follower_close(follower);
    dw_store_close(store);
    bench_workload_release(&w);
}
