/* Measures how long a publish takes with and without an anchor upload in progress. Each
 * publish is called right after the commit of the version before. The anchor is uploaded
 * at 1 MB/s and does not end before everything was measured. */
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "measure.h"
#include "store/store.h"
#include "sync_bench.h"

enum { CHUNK = 100000, CHUNK_MS = 100 }; /* 1 MB/s */

/* ---- a store that takes anchors slowly ---- */

static dw_status slow_get(void *inner, const char *key, uint64_t offset, void *into,
                          size_t n, size_t *n_read, const dw_progress *progress,
                          dw_error *err)
{
    return dw_store_get(inner, key, offset, into, n, n_read, progress, err);
}

static atomic_bool has_begun;

/* Discards the bytes. The anchor does not end until it is cancelled. */
static dw_status put_slowly(const char *key, const dw_source *source,
                            const dw_progress *progress, dw_error *err)
{
    static uint8_t chunk[CHUNK];
    dw_status status = DW_OK;
    for (uint64_t at = 0; status == DW_OK;) {
        const uint64_t left = source->n_bytes - at;
        const size_t n = left < CHUNK ? (size_t)left : CHUNK;
        status = dw_source_read(source, at, chunk, n, err);
        at += n;
        has_begun = true;
        dw_sleep_ms(CHUNK_MS);
        if (status == DW_OK)
            status = dw_store_progress(progress, at, source->n_bytes, key, err);
    }
    return status;
}

static dw_status slow_put(void *inner, const char *key, const dw_source *source,
                          dw_put_mode mode, const dw_progress *progress, dw_error *err)
{
    return strstr(key, "-anchor-")
               ? put_slowly(key, source, progress, err)
               : dw_store_put(inner, key, source, mode, progress, err);
}

static dw_status slow_stat(void *inner, const char *key, uint64_t *n_bytes,
                           int64_t *modified_ms, dw_error *err)
{
    return dw_store_stat(inner, key, n_bytes, modified_ms, err);
}

static dw_status slow_list(void *inner, const char *prefix, const char *after,
                           dw_list_fn fn, void *context, dw_error *err)
{
    return dw_store_list(inner, prefix, after, fn, context, err);
}

static dw_status slow_remove(void *inner, const char *key, dw_error *err)
{
    return dw_store_remove(inner, key, err);
}

static dw_store *open_slow(dw_store *inner)
{
    static const dw_store_driver driver = {.struct_bytes = sizeof driver,
                                           .name = "slow",
                                           .get = slow_get,
                                           .put = slow_put,
                                           .stat = slow_stat,
                                           .list = slow_list,
                                           .remove = slow_remove};
    dw_error err = {0};
    dw_store *store;
    sync_check(dw_store_new(&store, dw_store_url(inner), &driver, inner, &err), &err);
    return store;
}

/* ---- measuring ---- */

/* Changes 1 % of the weights, quickly. */
static void change(const dw_tensor *tensors, size_t n_tensors, unsigned long step)
{
    for (size_t t = 0; t < n_tensors; t++) {
        uint16_t *w = tensors[t].data;
        for (uint64_t i = step % 100; i < tensors[t].n_bytes / 2; i += 100)
            w[i] ^= 1;
    }
}

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void print_times(const char *what, double *seconds, unsigned long n)
{
    qsort(seconds, n, sizeof *seconds, compare);
    printf("\"%s_ms\": [%.3f, %.3f, %.3f]", what, 1e3 * seconds[n / 2],
           1e3 * seconds[(n - 1) * 99 / 100], 1e3 * seconds[n - 1]);
}

/* Prints the median, the 99th percentile and the maximum of the time of a call, and of
 * the time until the commit. */
void sync_upkeep(char **args)
{
    dw_error err = {0};
    size_t n_tensors;
    synth_run *run = sync_new_run(strtoull(args[1], NULL, 10));
    const dw_tensor *tensors = synth_run_tensors(run, &n_tensors);
    const unsigned long n = strtoul(args[2], NULL, 10);
    const bool with_anchor = strcmp(args[3], "anchor") == 0;
    dw_store *inner = sync_open_store(args[0]), *store = open_slow(inner);
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.fold_every = 0;
    options.anchor_factor = 0;
    options.anchor_every = with_anchor ? 1 : 0;
    options.spool_dir = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    double *calls = calloc(n, sizeof *calls), *commits = calloc(n, sizeof *commits);
    if (n == 0 || !calls || !commits)
        sync_die("no steps, or no memory");
    dw_publisher *publisher;
    sync_check(dw_publisher_open(&publisher, store, tensors, n_tensors, &options, &err),
               &err);
    for (unsigned long i = 0; i < n + 2; i++) { /* the first two begin the anchor */
        uint64_t ticket;
        dw_publish_report report;
        change(tensors, n_tensors, i);
        const double start = bench_seconds();
        sync_check(dw_publisher_publish(publisher, &ticket, NULL, &err), &err);
        const double returned = bench_seconds();
        sync_check(dw_publisher_wait(publisher, ticket, UINT_MAX, NULL, &report, &err),
                   &err);
        while (with_anchor && !has_begun)
            dw_sleep_ms(1);
        if (i < 2)
            continue;
        calls[i - 2] = returned - start;
        commits[i - 2] = bench_seconds() - start;
    }
    printf("{");
    print_times("call", calls, n);
    printf(", ");
    print_times("commit", commits, n);
    printf("}\n");
    free(calls);
    free(commits);
    dw_publisher_close(publisher);
    dw_store_close(store);
    dw_store_close(inner);
    synth_run_free(run);
}
