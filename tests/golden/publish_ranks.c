/* Publishes checkpoints as two ranks, each with its part of every tensor:
 *
 *     publish_ranks URL CKPT...
 *
 * For make_streams.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deltawire/deltawire.h>

#define N_RANKS     2
#define MAX_TENSORS 64

static void must(dw_status status, const dw_error *err)
{
    if (status == DW_OK)
        return;
    fprintf(stderr, "publish_ranks: %s: %s\n", err->where, err->text);
    exit(1);
}

/* Rank 0 has the first third of a tensor, rank 1 the rest, and empty tensors. */
static dw_shard cut(const dw_tensor *tensors, size_t i, unsigned rank)
{
    uint64_t n = 0;
    dw_shape_size(tensors[i].dtype, tensors[i].n_dims, tensors[i].dims, &n, NULL);
    const uint64_t middle = n / 3;
    dw_shard shard = {.tensor = i, .n_elems = middle};
    if (rank == 1) {
        shard.first = middle;
        shard.n_elems = n - middle;
    }
    shard.data = malloc(shard.n_elems * 8 + 1);
    return shard;
}

static void load(dw_shard *shards, size_t n_shards, const dw_tensor *tensors)
{
    for (size_t i = 0; i < n_shards; i++) {
        const dw_tensor *t = &tensors[shards[i].tensor];
        const uint64_t width = dw_dtype_bits(t->dtype) / 8;
        if (shards[i].n_elems > 0)
            memcpy(shards[i].data, (char *)t->data + shards[i].first * width,
                   shards[i].n_elems * width);
    }
}

static void run_rank(unsigned rank, const char *url, char **paths, int n_paths)
{
    dw_error err = {0};
    dw_store *store;
    dw_publisher *publisher;
    dw_checkpoint *ckpt;
    dw_shard shards[MAX_TENSORS];
    dw_publish_options options;
    size_t n, n_shards = 0;
    must(dw_store_open(&store, url, NULL, &err), &err);
    must(dw_checkpoint_open(&ckpt, paths[0], DW_CHECKPOINT_READ, &err), &err);
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n);
    for (size_t i = 0; i < n; i++)
        if (tensors[i].n_bytes > 0 || rank == 1)
            shards[n_shards++] = cut(tensors, i, rank);
    load(shards, n_shards, tensors);
    dw_publish_options_init(&options);
    options.fold_every = 0;
    options.shards = shards;
    options.n_shards = n_shards;
    options.rank = rank;
    options.n_ranks = N_RANKS;
    options.job = "golden";
    options.rank_timeout_ms = 10000;
    options.first_step = "s0";
    must(dw_publisher_open(&publisher, store, tensors, n, &options, &err), &err);
    for (int i = 1; i < n_paths; i++) {
        char step[32];
        uint64_t ticket;
        bool done;
        dw_checkpoint *next;
        size_t n_next;
        must(dw_checkpoint_open(&next, paths[i], DW_CHECKPOINT_READ, &err), &err);
        load(shards, n_shards, dw_checkpoint_tensors(next, &n_next));
        snprintf(step, sizeof step, "%d", i);
        const dw_publish_note note = {.struct_bytes = sizeof note, .step = step};
        must(dw_publisher_publish(publisher, &ticket, &note, &err), &err);
        must(dw_publisher_wait(publisher, ticket, 60000, &done, NULL, &err), &err);
        dw_checkpoint_close(next);
    }
    dw_publisher_close(publisher);
    dw_checkpoint_close(ckpt);
    dw_store_close(store);
}

int main(int argc, char **argv)
{
    int failed = 0, status;
    for (unsigned rank = 0; argc > 2 && rank < N_RANKS; rank++)
        if (fork() == 0) {
            run_rank(rank, argv[1], argv + 2, argc - 2);
            return 0;
        }
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
