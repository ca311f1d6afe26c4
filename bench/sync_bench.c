#include "sync_bench.h"

#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sync_die(const char *problem)
{
    fprintf(stderr, "sync_bench: %s\n", problem);
    exit(1);
}

void sync_check(dw_status status, const dw_error *err)
{
    if (status == DW_OK)
        return;
    fprintf(stderr, "sync_bench: %s: %s: %s\n", dw_status_name(status), err->where,
            err->text);
    exit(1);
}

dw_store *sync_open_store(const char *url)
{
    dw_error err = {0};
    dw_store *store;
    sync_check(dw_store_open(&store, url, NULL, &err), &err);
    return store;
}

synth_run *sync_new_run(uint64_t n_bytes)
{
    dw_error err = {0};
    const synth_options options = {
        .n_params = n_bytes / 2, .seed = 1, .lr = 1e-6, .dtype = DW_BF16};
    synth_run *run;
    sync_check(synth_run_new(&run, &options, &err), &err);
    return run;
}

dw_publish_report sync_publish(dw_publisher *publisher)
{
    dw_error err = {0};
    uint64_t ticket;
    bool done;
    dw_publish_report report;
    sync_check(dw_publisher_publish(publisher, &ticket, NULL, &err), &err);
    sync_check(dw_publisher_wait(publisher, ticket, UINT_MAX, &done, &report, &err),
               &err);
    return report;
}

void sync_drain(dw_publisher *publisher)
{
    dw_error err = {0};
    sync_check(dw_publisher_drain(publisher, &err), &err);
}

dw_follower *sync_open_follower(dw_store *store, const dw_tensor *tensors,
                                size_t n_tensors, bool is_empty)
{
    dw_error err = {0};
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = tensors;
    options.n_tensors = n_tensors;
    options.tensors_empty = is_empty;
    dw_follower *follower;
    sync_check(dw_follower_open(&follower, store, &options, &err), &err);
    return follower;
}

static dw_status remove_entry(void *context, const dw_store_entry *entry, dw_error *err)
{
    return dw_store_remove(context, entry->key, err);
}

/* Removes every object below the URL. */
static void clear(char **args)
{
    dw_error err = {0};
    dw_store *store = sync_open_store(args[0]);
    sync_check(dw_store_list(store, "", NULL, remove_entry, store, &err), &err);
    dw_store_close(store);
}

static const struct verb {
    const char *name;
    const char *args;
    int n_args;
    void (*run)(char **args);
} verbs[] = {
    {"trace-publish", "URL TRACE", 2, sync_trace_publish},
    {"trace-pull", "URL TRACE", 2, sync_trace_pull},
    {"late-join", "DIR BYTES STEPS", 3, sync_late_join},
    {"link-trainer", "URL BYTES STEPS", 3, sync_link_trainer},
    {"link-follower", "URL BYTES STEPS", 3, sync_link_follower},
    {"memory-publish", "URL BYTES sparse|dense", 3, sync_memory_publish},
    {"memory-follow", "URL BYTES sparse|dense", 3, sync_memory_follow},
    {"upkeep", "URL BYTES STEPS anchor|none", 4, sync_upkeep},
    {"clear", "URL", 1, clear},
};

int main(int argc, char **argv)
{
    const size_t n_verbs = sizeof verbs / sizeof *verbs;
    mallopt(M_MMAP_THRESHOLD, 4 << 20); /* the same as in the command */
    for (size_t i = 0; argc > 1 && i < n_verbs; i++)
        if (strcmp(argv[1], verbs[i].name) == 0 && argc == verbs[i].n_args + 2) {
            setvbuf(stdout, NULL, _IOLBF, 0);
            verbs[i].run(argv + 2);
            return 0;
        }
    for (size_t i = 0; i < n_verbs; i++)
        fprintf(stderr, "%s sync_bench %s %s\n", i ? "      " : "usage:", verbs[i].name,
                verbs[i].args);
    return 2;
}
