/* A process that uses the library like a trainer or an engine, with its weights in its
 * own memory. Each line on stdin is a command, and each answer is one line on stdout:
 *
 *     live publish URL CKPT BASELINE|- KEY|-      the weights start as those of CKPT
 *         publish CKPT STEP       take the weights of CKPT over and publish them
 *         tear CKPT CKPT STEP     publish while another thread writes both, in turns
 *         where                   the address of the weights, in place of a version
 *     live follow URL CKPT PUBLIC-KEY|-           CKPT has the names and shapes
 *         sync FILE               to the newest version; then write all weights to FILE
 *         flip OFFSET BIT         a bit of the weights flips
 *
 * An answer is `ok VERSION`, or `error VERSION CODE WHERE: TEXT` with the version that
 * the weights are at (-1: none). The first answer is about opening. */
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deltawire/checkpoint.h"
#include "deltawire/follow.h"
#include "deltawire/publish.h"
#include "role.h"

typedef struct weights {
    dw_checkpoint *ckpt; /* for names and shapes */
    dw_tensor *tensors;  /* in their own memory */
    size_t n;
    uint8_t *bytes; /* the memory of all of them, in order of their names */
    size_t n_bytes;
} weights;

static dw_error err;

static void answer(dw_status status, uint64_t version)
{
    if (status == DW_OK)
        printf("ok %" PRId64 "\n", (int64_t)version);
    else
        printf("error %" PRId64 " %d %s: %s\n", (int64_t)version, (int)status, err.where,
               err.text);
    fflush(stdout);
}

static void weights_make(weights *w, const char *ckpt)
{
    if (dw_checkpoint_open(&w->ckpt, ckpt, DW_CHECKPOINT_READ, &err) != DW_OK)
        abort();
    const dw_tensor *from = dw_checkpoint_tensors(w->ckpt, &w->n);
    for (size_t i = 0; i < w->n; i++)
        w->n_bytes += (size_t)from[i].n_bytes;
    w->tensors = calloc(w->n, sizeof *w->tensors);
    w->bytes = malloc(w->n_bytes);
    if (!w->tensors || !w->bytes)
        abort();
    uint8_t *at = w->bytes;
    for (size_t i = 0; i < w->n; i++) {
        w->tensors[i] = from[i];
        w->tensors[i].data = at;
        memcpy(at, from[i].data, (size_t)from[i].n_bytes);
        at += from[i].n_bytes;
    }
}

/* Copies the same tensors from another checkpoint. */
static void weights_take(uint8_t *bytes, const char *ckpt)
{
    weights w = {0};
    weights_make(&w, ckpt);
    memcpy(bytes, w.bytes, w.n_bytes);
    dw_checkpoint_close(w.ckpt);
    free(w.tensors);
    free(w.bytes);
}

/* ---- a trainer ---- */

typedef struct tearing {
    weights *w;
    uint8_t *states[2];
    atomic_bool stop;
} tearing;

/* Writes pieces of both states over the weights until it is stopped, like a trainer that
 * does not wait for the capture. */
static void *tear(void *context)
{
    tearing *t = context;
    const size_t piece = 1024;
    for (unsigned turn = 0; !atomic_load(&t->stop); turn++)
        for (size_t at = 0; at < t->w->n_bytes; at += piece) {
            size_t n = t->w->n_bytes - at < piece ? t->w->n_bytes - at : piece;
            memcpy(t->w->bytes + at, t->states[turn & 1] + at, n);
        }
    return NULL;
}

static void publish_and_answer(dw_publisher *p, const char *step)
{
    uint64_t ticket;
    const dw_publish_note note = {.struct_bytes = sizeof note, .step = step};
    dw_publish_report report = {.version = dw_publisher_version(p)};
    dw_status status = dw_publisher_publish(p, &ticket, &note, &err);
    if (status == DW_OK)
        status = dw_publisher_wait(p, ticket, UINT_MAX, NULL, &report, &err);
    if (status == DW_OK) {
        dw_error after = {0};
        if (dw_publisher_drain(p, &after) != DW_OK) /* harms no version */
            fprintf(stderr, "after the commit: %s: %s\n", after.where, after.text);
    }
    answer(status, status == DW_OK ? report.version : dw_publisher_version(p));
}

static void publish_torn(dw_publisher *p, weights *w, const char *a, const char *b,
                         const char *step)
{
    tearing t = {.w = w, .states = {malloc(w->n_bytes), malloc(w->n_bytes)}};
    pthread_t thread;
    if (!t.states[0] || !t.states[1])
        abort();
    weights_take(t.states[0], a);
    weights_take(t.states[1], b);
    if (pthread_create(&thread, NULL, tear, &t) != 0)
        abort();
    publish_and_answer(p, step);
    atomic_store(&t.stop, true);
    pthread_join(thread, NULL);
    memcpy(w->bytes, t.states[1], w->n_bytes);
    free(t.states[0]);
    free(t.states[1]);
}

static void publish(dw_store *store, weights *w, const char *baseline, const char *key)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    dw_sign_key *sign = NULL;
    if (strcmp(key, "-") != 0 && dw_sign_key_open(&sign, key, &err) != DW_OK)
        abort();
    const bool kept = strcmp(baseline, "-") != 0;
    options.baseline_dir = kept ? baseline : NULL;
    options.sign_key = sign;
    options.fold_every = kept ? 2 : 0;
    options.anchor_every = 3;
    options.anchor_factor = 0;
    options.n_threads = 1;
    options.sweep_every = 2;
    options.first_step = "0";
    dw_publisher *p;
    dw_status status = dw_publisher_open(&p, store, w->tensors, w->n, &options, &err);
    answer(status, status == DW_OK ? dw_publisher_version(p) : DW_NO_VERSION);
    char line[4096], a[1024], b[1024], step[64];
    while (status == DW_OK && fgets(line, sizeof line, stdin))
        if (sscanf(line, "publish %1023s %63s", a, step) == 2) {
            weights_take(w->bytes, a);
            publish_and_answer(p, step);
        } else if (sscanf(line, "tear %1023s %1023s %63s", a, b, step) == 3) {
            publish_torn(p, w, a, b, step);
        } else if (strncmp(line, "where", 5) == 0) {
            answer(DW_OK, (uint64_t)(uintptr_t)w->bytes);
        }
    if (status == DW_OK)
        dw_publisher_close(p);
    dw_sign_key_close(sign);
}

/* ---- an engine ---- */

static void save(const weights *w, const char *path)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(w->bytes, 1, w->n_bytes, file) != w->n_bytes || fclose(file) != 0)
        abort();
}

static void follow(dw_store *store, weights *w, const char *public_key)
{
    uint8_t key[1][DW_PUBLIC_KEY_BYTES];
    dw_follow_options options;
    dw_follow_options_init(&options);
    if (strcmp(public_key, "-") != 0) {
        if (dw_public_key_read(key[0], public_key, &err) != DW_OK)
            abort();
        options.trust.keys = (const uint8_t(*)[DW_PUBLIC_KEY_BYTES])key;
        options.trust.n_keys = 1;
    }
    memset(w->bytes, 0, w->n_bytes);
    options.tensors = w->tensors;
    options.n_tensors = w->n;
    options.n_threads = 1;
    options.sweep_every = 2;
    dw_follower *f;
    dw_status status = dw_follower_open(&f, store, &options, &err);
    answer(status, DW_NO_VERSION);
    char line[4096], path[1024];
    size_t offset;
    unsigned bit;
    while (status == DW_OK && fgets(line, sizeof line, stdin))
        if (sscanf(line, "sync %1023s", path) == 1) {
            dw_status synced = dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err);
            save(w, path);
            answer(synced, dw_follower_version(f));
        } else if (sscanf(line, "flip %zu %u", &offset, &bit) == 2) {
            w->bytes[offset % w->n_bytes] ^= (uint8_t)(1u << bit % 8);
            answer(DW_OK, dw_follower_version(f));
        }
    if (status == DW_OK)
        dw_follower_close(f);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return SOAK_FAULT;
    dw_store *store;
    weights w = {0};
    weights_make(&w, argv[3]);
    dw_status status = soak_store_open(&store, argv[2], &err);
    if (status != DW_OK) {
        answer(status, DW_NO_VERSION);
        return SOAK_FINE;
    }
    if (strcmp(argv[1], "publish") == 0 && argc == 6)
        publish(store, &w, argv[4], argv[5]);
    else
        follow(store, &w, argv[4]);
    dw_store_close(store);
    dw_checkpoint_close(w.ckpt);
    free(w.tensors);
    free(w.bytes);
    return SOAK_FINE;
}
