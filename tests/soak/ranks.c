/* Ranks of one job that skip, repeat, fail and stall apart from each other, and restart
 * alone; a step that is repeated may have other weights. Whatever they do, each version
 * of the stream must be one step of the trainer, on all ranks. The ranks are threads,
 * each with a publisher of its own.
 *
 *     ROUNDS=n SEED=n ranks
 *
 * A round is one start of the job. */
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deltawire/deltawire.h"
#include "deltawire/follow.h"
#include "deltawire/publish.h"
#include "../unit/collective.h"
#include "inner.h"
#include "process.h"

enum {
    MAX_RANKS = 4,
    N_STEPS = 12,
    N_CALM = 4,
    N_ELEMS = 6000,
    WIDTH = 60,
    N_TENSORS = 2,
    N_TRIES = 3 /* at a step; at every second one, each has other weights */
};

/* Long enough for every step: a rank that does not stall never waits so long. */
#define PATIENT_MS 300000
#define SHORT_MS   1000

typedef struct rank {
    pthread_t thread;
    dw_store *store;
    dw_publish_options options;
    dw_shard shards[N_TENSORS];
    uint16_t *data[N_TENSORS];
    dw_publisher *publisher;
    uint64_t random;
    uint64_t first_step;
    bool may_stall;
    bool refuses; /* its next versions fail */
    bool good;
} rank;

static const char *const names[N_TENSORS] = {"a.weight", "b.weight"};
static const uint64_t dims[2] = {N_ELEMS / WIDTH, WIDTH};

static uint64_t draw(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t x = *state;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A weight at a state of the trainer, as BF16: about one in eight changes with each. The
 * states of step S count from S * N_TRIES on. */
static uint16_t weight(uint64_t state_number, size_t tensor, uint64_t i)
{
    const uint64_t place = tensor * N_ELEMS + i;
    const uint64_t last = state_number - (state_number + place) % 8 * (state_number >= 8);
    uint64_t state = place * 1000003 + last;
    return (uint16_t)(0x3c00 + draw(&state) % 0x0300);
}

static void tensors_of(dw_tensor *out, uint16_t *data)
{
    for (size_t t = 0; t < N_TENSORS; t++) {
        out[t] = (dw_tensor){.name = names[t],
                             .dtype = DW_BF16,
                             .n_dims = 2,
                             .dims = dims,
                             .n_bytes = N_ELEMS * 2,
                             .data = data ? data + t * N_ELEMS : NULL};
    }
}

static bool fails(const char *what, const dw_error *err)
{
    printf("%s: %s: %s\n", what, err->where, err->text);
    return false;
}

/* ---- a rank ---- */

static dw_status confirm(void *context, dw_error *err)
{
    const rank *r = context;
    if (!r->refuses)
        return DW_OK;
    *err = (dw_error){.code = DW_IO, .text = "refused by the test"};
    return DW_IO;
}

static void load(const rank *r, uint64_t state_number)
{
    for (size_t t = 0; t < N_TENSORS; t++)
        for (uint64_t i = 0; i < r->shards[t].n_elems; i++)
            r->data[t][i] = weight(state_number, t, r->shards[t].first + i);
}

/* Publishes the weights of a try at a step, and waits. */
static dw_status publish(rank *r, uint64_t step, unsigned try, dw_error *err)
{
    char text[24], notes[24];
    uint64_t ticket;
    dw_publish_note note;
    dw_publish_note_init(&note);
    snprintf(text, sizeof text, "%" PRIu64, step);
    snprintf(notes, sizeof notes, "%" PRIu64, step * N_TRIES + try);
    note.step = text;
    note.notes = notes;
    load(r, step * N_TRIES + try);
    dw_status status = dw_publisher_publish(r->publisher, &ticket, &note, err);
    return status == DW_OK
               ? dw_publisher_wait(r->publisher, ticket, UINT_MAX, NULL, NULL, err)
               : status;
}

/* Steps, with some mischief at each; the last ones without. */
static void *run(void *context)
{
    rank *r = context;
    dw_error err = {0};
    dw_status status = DW_OK;
    const uint64_t last = r->first_step + N_STEPS;
    r->good = true;
    for (uint64_t step = r->first_step; step < last && r->good; step++) {
        const uint64_t choice = draw(&r->random) % 16;
        if (choice == 0)
            continue; /* skips */
        if (choice == 1 && r->may_stall)
            soak_sleep_ms(3 * SHORT_MS); /* longer than the others wait */
        bool current;
        if (choice == 2)
            status = dw_publisher_is_current(r->publisher, &current, &err);
        /* ranks that share scales ask together */
        if (choice == 2 && status != DW_OK &&
            (!r->options.quantize->scheme || status != DW_UNAVAILABLE))
            r->good = fails("is_current", &err);
        r->refuses = choice == 3;
        status = publish(r, step, 0, &err);
        r->refuses = false;
        const unsigned n_tries = choice == 3 ? 2 : choice == 4 ? 3 : 1;
        const bool is_other = step % 2 == 1 && n_tries > 1;
        for (unsigned i = 1; i < n_tries; i++)
            status = publish(r, step, is_other ? i : 0, &err);
        /* if the step is a version already, other weights are refused */
        if (status != DW_OK && status != DW_UNAVAILABLE && status != DW_IO &&
            !(status == DW_INVALID && is_other))
            r->good = fails("a step", &err);
    }
    /* without mischief all meet, however far apart they were */
    for (uint64_t step = last; step < last + N_CALM && r->good; step++)
        status = publish(r, step, 0, &err);
    if (r->good && status != DW_OK)
        r->good = r->may_stall || fails("the last step", &err);
    return NULL;
}

static void *open_rank(void *context)
{
    rank *r = context;
    dw_error err = {0};
    dw_tensor tensors[N_TENSORS];
    tensors_of(tensors, NULL);
    r->good = dw_publisher_open(&r->publisher, r->store, tensors, N_TENSORS, &r->options,
                                &err) == DW_OK ||
              r->may_stall || fails("open", &err);
    return NULL;
}

/* ---- a job ---- */

static void together(rank *ranks, uint32_t n, void *(*fn)(void *))
{
    for (uint32_t i = 0; i < n; i++)
        if (pthread_create(&ranks[i].thread, NULL, fn, &ranks[i]) != 0)
            abort();
    for (uint32_t i = 0; i < n; i++)
        pthread_join(ranks[i].thread, NULL);
}

static bool all_good(const rank *ranks, uint32_t n)
{
    bool good = true;
    for (uint32_t i = 0; i < n; i++)
        good = good && ranks[i].good;
    return good;
}

static void cut(rank *r, uint32_t i, uint32_t n)
{
    for (size_t t = 0; t < N_TENSORS; t++) {
        const uint64_t first = (uint64_t)N_ELEMS * i / n + (i > 0 ? 7 : 0);
        const uint64_t end = (uint64_t)N_ELEMS * (i + 1) / n + (i + 1 < n ? 7 : 0);
        r->data[t] = malloc((end - first) * 2);
        if (!r->data[t])
            abort();
        r->shards[t] = (dw_shard){t, first, end - first, r->data[t]};
    }
}

/* A process that starts one rank again takes no part, and says why. */
static bool restart_alone(const rank *model)
{
    rank again = *model;
    dw_error err = {0};
    dw_tensor tensors[N_TENSORS];
    if (model->options.rank == 0)
        return true; /* a new rank 0 would take the stream over */
    tensors_of(tensors, NULL);
    again.options.rank_timeout_ms = SHORT_MS;
    again.publisher = NULL;
    const dw_status status = dw_publisher_open(&again.publisher, again.store, tensors,
                                               N_TENSORS, &again.options, &err);
    dw_publisher_close(again.publisher);
    if (status == DW_UNAVAILABLE && strstr(err.text, "another `job`"))
        return true;
    printf("a rank that started alone: %d, %s\n", (int)status, err.text);
    return false;
}

static bool play(dw_store *store, uint64_t round, uint64_t *random, uint64_t *step,
                 const dw_quant_options *quantize)
{
    rank ranks[MAX_RANKS] = {0};
    collective all;
    char job[32];
    const uint32_t n = 2 + (uint32_t)(draw(random) % (MAX_RANKS - 1));
    const bool may_stall = draw(random) % 4 == 0;
    snprintf(job, sizeof job, "job-%" PRIu64, round);
    collective_open(&all, n, PATIENT_MS / 1000);
    for (uint32_t i = 0; i < n; i++) {
        rank *r = &ranks[i];
        dw_publish_options_init(&r->options);
        cut(r, i, n);
        r->store = store;
        r->random = draw(random);
        r->first_step = *step + 1;
        r->may_stall = may_stall;
        r->options.n_threads = 1;
        r->options.rank = i;
        r->options.n_ranks = n;
        r->options.job = job;
        r->options.shards = r->shards;
        r->options.n_shards = N_TENSORS;
        r->options.rank_timeout_ms = may_stall ? SHORT_MS : PATIENT_MS;
        r->options.confirm = confirm;
        r->options.confirm_context = r;
        r->options.quantize = quantize;
        r->options.agree = collective_agree;
        r->options.agree_context = &all;
        load(r, *step * N_TRIES);
    }
    together(ranks, n, open_rank);
    bool good = all_good(ranks, n), is_open = true;
    for (uint32_t i = 0; i < n; i++) /* a slow machine may take longer than they wait */
        is_open = is_open && ranks[i].publisher;
    if (good && is_open)
        good = restart_alone(&ranks[draw(random) % n]);
    if (good && is_open) {
        together(ranks, n, run);
        good = all_good(ranks, n);
    }
    *step += N_STEPS + N_CALM;
    collective_close(&all);
    for (uint32_t i = 0; i < n; i++) {
        dw_publisher_close(ranks[i].publisher);
        for (size_t t = 0; t < N_TENSORS; t++)
            free(ranks[i].data[t]);
    }
    return good;
}

/* ---- the stream ---- */

/* What one process makes of the weights of a state. */
static bool state_of(dw_digest *out, dw_publisher *whole, uint16_t *weights,
                     uint64_t state_number)
{
    dw_error err = {0};
    for (size_t t = 0; t < N_TENSORS; t++)
        for (uint64_t i = 0; i < N_ELEMS; i++)
            weights[t * N_ELEMS + i] = weight(state_number, t, i);
    return dw_publisher_state(whole, out, &err) == DW_OK || fails("state", &err);
}

/* Follows from version to version: the weights must be those of the version's step. */
static bool check_versions(dw_store *store, dw_publisher *whole, uint16_t *weights,
                           uint64_t *n_versions)
{
    dw_error err = {0};
    dw_stream *stream = NULL;
    uint64_t head = 0;
    uint16_t *followed = calloc(N_TENSORS * N_ELEMS, sizeof *followed);
    dw_tensor into[N_TENSORS];
    tensors_of(into, followed);
    bool good = dw_stream_open(&stream, store, NULL, &err) == DW_OK &&
                dw_stream_head(stream, &head, &err) == DW_OK;
    dw_stream_info about = {0};
    if (good)
        dw_stream_get_info(stream, &about);
    const bool is_plain = good && !about.quantization;
    for (uint64_t v = 0; good && v <= head; v++) {
        dw_version_info info;
        dw_digest wanted;
        good = dw_stream_version(stream, v, &info, &err) == DW_OK || fails("log", &err);
        if (!good)
            break;
        const uint64_t number = strtoull(info.notes, NULL, 10);
        good = state_of(&wanted, whole, weights, number);
        if (good && info.state != wanted) {
            printf("version %" PRIu64 " is not step %" PRIu64 " of all ranks\n", v,
                   number / N_TRIES);
            good = false;
        }
        dw_follow_options options;
        dw_follow_options_init(&options);
        options.tensors = into;
        options.n_tensors = N_TENSORS;
        dw_follower *follower = NULL;
        if (good && is_plain) {
            good = dw_follower_open(&follower, store, &options, &err) == DW_OK &&
                   dw_follower_sync(follower, v, NULL, NULL, &err) == DW_OK;
            if (!good)
                fails("follow", &err);
            else if (memcmp(followed, weights, N_TENSORS * N_ELEMS * 2) != 0)
                good =
                    (printf("the weights of version %" PRIu64 " are wrong\n", v), false);
        }
        dw_follower_close(follower);
    }
    *n_versions += head + 1;
    dw_stream_close(stream);
    free(followed);
    return good;
}

static bool run_stream(const char *url, uint64_t rounds, uint64_t *random,
                       dw_quant_scheme scheme, uint64_t *n_versions)
{
    dw_error err = {0};
    dw_store *store = NULL, *aside = NULL;
    dw_publisher *whole = NULL;
    uint16_t *weights = calloc(N_TENSORS * N_ELEMS, sizeof *weights);
    dw_tensor tensors[N_TENSORS];
    dw_quant_options quant;
    dw_quant_options_init(&quant);
    quant.scheme = scheme;
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.quantize = &quant;
    tensors_of(tensors, weights);
    bool good =
        soak_store_empty(url) && dw_store_open(&store, url, NULL, &err) == DW_OK &&
        dw_store_open(&aside, scheme ? "mem:quantised" : "mem:whole", NULL, &err) ==
            DW_OK &&
        dw_publisher_open(&whole, aside, tensors, N_TENSORS, &options, &err) == DW_OK;
    if (!good)
        fails(url, &err);
    uint64_t step = 0;
    for (uint64_t i = 0; good && i < rounds; i++)
        good = play(store, i, random, &step, &quant);
    good = good && check_versions(store, whole, weights, n_versions);
    dw_publisher_close(whole);
    dw_store_close(aside);
    dw_store_close(store);
    free(weights);
    return good;
}

int main(void)
{
    const uint64_t wanted = soak_env("ROUNDS", 6);
    const uint64_t rounds = wanted < 2 ? 2 : wanted; /* one for each stream */
    uint64_t random = soak_env("SEED", soak_now_ms()), n_versions = 0;
    printf("SEED=%" PRIu64 "\n", random);
    fflush(stdout);
    soak_begin();
    bool good = true;
    for (int quantised = 0; good && quantised < 2; quantised++) {
        char url[SOAK_PATH];
        soak_store_url(url, quantised ? "ranks-quantised" : "ranks");
        good = run_stream(url, (rounds + !quantised) / 2, &random,
                          quantised ? DW_QUANT_FP8_BLOCK : DW_QUANT_NONE, &n_versions);
    }
    if (good)
        printf("%" PRIu64 " starts, %" PRIu64 " versions, each one step on all ranks\n",
               rounds, n_versions);
    return soak_end(good);
}
