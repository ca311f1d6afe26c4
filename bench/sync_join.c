/* A late follower: what it fetches to reach the newest version of a long run, published
 * with the default options. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "measure.h"
#include "stream/graph.h"
#include "sync_bench.h"

static void publish_run(dw_store *store, const char *spool_dir, synth_run *run,
                        unsigned n_steps, dw_graph *commits)
{
    dw_error err = {0};
    size_t n_tensors;
    const dw_tensor *tensors = synth_run_tensors(run, &n_tensors);
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.spool_dir = spool_dir;
    dw_publisher *publisher;
    sync_check(dw_publisher_open(&publisher, store, tensors, n_tensors, &options, &err),
               &err);
    for (unsigned step = 1; step <= n_steps; step++) {
        synth_step_stats stats;
        sync_check(synth_run_step(run, &stats, &err), &err);
        dw_publish_report r = sync_publish(publisher);
        sync_drain(publisher);
        const dw_edge edge = {r.version - 1, r.version, r.n_bytes, r.n_objects};
        sync_check(dw_graph_add(commits, edge, &err), &err);
        if (step % 20 == 0)
            fprintf(stderr, "late join: version %u of %u\n", step, n_steps);
    }
    dw_publisher_close(publisher);
}

/* The cost of joining at a version: bytes beyond the anchor's, and objects. */
typedef struct join_cost {
    double factor;
    uint64_t n_objects;
} join_cost;

/* Folds and anchors are made right after the commit that they lead to. So the shortcuts
 * that existed at a version are those that lead to it or to an older one. */
static join_cost plan_join(const dw_graph *all, uint64_t version)
{
    dw_error err = {0};
    dw_graph graph = {0};
    dw_edge *path;
    size_t n;
    uint64_t n_bytes;
    for (size_t i = 0; i < all->n; i++)
        if (all->edges[i].to <= version)
            sync_check(dw_graph_add(&graph, all->edges[i], &err), &err);
    sync_check(dw_graph_plan(&path, &n, &n_bytes, &graph, DW_NO_VERSION, version, &err),
               &err);
    join_cost cost = {0};
    n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        n_bytes += path[i].n_bytes;
        cost.n_objects += path[i].n_objects;
    }
    cost.factor = (double)n_bytes / (double)path[0].n_bytes;
    dw_free(path);
    dw_graph_release(&graph);
    return cost;
}

static join_cost worst_join(dw_store *store, dw_graph *all, unsigned n_steps,
                            uint64_t *n_anchors)
{
    dw_error err = {0};
    dw_stream *stream;
    const dw_edge *shortcuts;
    size_t n_shortcuts;
    sync_check(dw_stream_open(&stream, store, NULL, &err), &err);
    sync_check(dw_stream_shortcuts(stream, &shortcuts, &n_shortcuts, &err), &err);
    *n_anchors = 0;
    bool first_known = false;
    for (size_t i = 0; i < n_shortcuts; i++) {
        sync_check(dw_graph_add(all, shortcuts[i], &err), &err);
        *n_anchors += shortcuts[i].from == DW_NO_VERSION;
        first_known =
            first_known || (shortcuts[i].from == DW_NO_VERSION && shortcuts[i].to == 0);
    }
    if (!first_known) { /* version 0's commit is an anchor */
        dw_version_info v;
        sync_check(dw_stream_version(stream, 0, &v, &err), &err);
        const dw_edge edge = {DW_NO_VERSION, 0, v.n_bytes, v.n_objects};
        sync_check(dw_graph_add(all, edge, &err), &err);
        *n_anchors += 1;
    }
    dw_stream_close(stream);
    join_cost worst = {0};
    for (unsigned v = 1; v <= n_steps; v++) {
        join_cost cost = plan_join(all, v);
        worst.factor = cost.factor > worst.factor ? cost.factor : worst.factor;
        worst.n_objects =
            cost.n_objects > worst.n_objects ? cost.n_objects : worst.n_objects;
    }
    return worst;
}

/* The same tensors in new, empty memory. */
static dw_tensor *empty_copy(const dw_tensor *tensors, size_t n_tensors)
{
    dw_tensor *copy = calloc(n_tensors, sizeof *copy);
    for (size_t i = 0; copy && i < n_tensors; i++) {
        copy[i] = tensors[i];
        copy[i].data = calloc(1, tensors[i].n_bytes);
        if (!copy[i].data)
            copy = NULL;
    }
    if (!copy)
        sync_die("out of memory");
    return copy;
}

void sync_late_join(char **args)
{
    dw_error err = {0};
    char url[4096], spool[4096];
    snprintf(url, sizeof url, "%s/stream", args[0]);
    snprintf(spool, sizeof spool, "%s/spool", args[0]);
    if (mkdir(spool, 0700) != 0)
        sync_die("cannot make a directory");
    const unsigned n_steps = (unsigned)strtoul(args[2], NULL, 10);
    synth_run *run = sync_new_run(strtoull(args[1], NULL, 10));
    dw_store *store = sync_open_store(url);
    dw_graph edges = {0};
    publish_run(store, spool, run, n_steps, &edges);
    uint64_t n_anchors;
    join_cost worst = worst_join(store, &edges, n_steps, &n_anchors);
    join_cost last = plan_join(&edges, n_steps);
    dw_store_close(store);
    dw_graph_release(&edges);

    size_t n_tensors;
    const dw_tensor *now = synth_run_tensors(run, &n_tensors);
    dw_tensor *joined = empty_copy(now, n_tensors);
    store = sync_open_store(url); /* with new counters */
    double start = bench_seconds();
    dw_follower *follower = sync_open_follower(store, joined, n_tensors, true);
    dw_follow_report report;
    sync_check(dw_follower_sync(follower, DW_NEWEST, NULL, &report, &err), &err);
    double seconds = bench_seconds() - start;
    dw_store_counts counts;
    dw_store_get_counts(store, &counts);
    for (size_t i = 0; i < n_tensors; i++)
        if (memcmp(joined[i].data, now[i].data, now[i].n_bytes) != 0)
            sync_die("the weights are not those of the newest version");
    if (report.version != n_steps)
        sync_die("it did not reach the newest version");
    printf("{\"version\": %" PRIu64 ", \"n_objects\": %" PRIu64 ", \"n_bytes\": %" PRIu64
           ", \"factor\": %.4f, \"n_requests\": %" PRIu64 ", \"bytes_read\": %" PRIu64
           ", \"seconds\": %.3f, \"worst_factor\": %.4f, \"worst_objects\": %" PRIu64
           ", \"n_anchors\": %" PRIu64 "}\n",
           report.version, report.n_objects, report.n_bytes, last.factor,
           counts.n_requests, counts.bytes_read, seconds, worst.factor, worst.n_objects,
           n_anchors);
    dw_follower_close(follower);
    dw_store_close(store);
    for (size_t i = 0; i < n_tensors; i++)
        free(joined[i].data);
    free(joined);
    synth_run_free(run);
}
