#include "batch.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "batch_text.h"
#include "fail.h"
#include "program.h"

enum { MAX_ROWS = 512, TURN_MS = 1000, REST_MS = 10 };

typedef STAILQ_HEAD(sample_queue, batch_sample) sample_queue;

/* A sequence of the session. */
typedef struct place {
    batch_sample *sample; /* NULL: it is free */
    int32_t *ids;         /* [max_len]: what is in the cache of a free one */
    uint32_t n_ids;
    dw_digest state;  /* of the weights that it was computed with */
    uint64_t t_freed; /* a number that grows */
} place;

struct batch {
    serving *serving;
    const qwen_config *config;
    const tokenizer *tok;
    uint32_t n_seqs;
    atomic_uint n_jobs;
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    sample_queue waiting;
    size_t n_waiting;
    bool stopping;

    /* of the thread */
    qwen_session *session;
    place *places;      /* [n_seqs] */
    int32_t *place_ids; /* of all of them */
    uint32_t first; /* the place that a step begins with: a prompt that does not fit into
                       one step keeps nobody out for long */
    uint64_t n_freed;
    float *logits; /* [n_seqs][n_vocab] */
    uint32_t row_seqs[MAX_ROWS];
    int32_t row_tokens[MAX_ROWS];
    bool row_wants[MAX_ROWS];
};

/* ---- jobs ---- */

bool batch_submit(batch *b, batch_job *job)
{
    job->t_arrived_ms = program_clock_ms();
    pthread_mutex_lock(&b->lock);
    const bool good = !b->stopping && job->n_samples <= BATCH_MAX_WAITING - b->n_waiting;
    if (good) {
        for (size_t i = 0; i < job->n_samples; i++)
            STAILQ_INSERT_TAIL(&b->waiting, &job->samples[i], next);
        b->n_waiting += job->n_samples;
        atomic_fetch_add(&b->n_jobs, 1);
        pthread_cond_signal(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    return good;
}

unsigned batch_n_jobs(batch *b)
{
    return atomic_load(&b->n_jobs);
}

/* The job may be gone when it returns. */
static void finish(batch *b, batch_sample *s, const char *how)
{
    batch_job *job = s->job;
    s->finish = how;
    if (--job->n_left > 0)
        return;
    atomic_fetch_sub(&b->n_jobs, 1);
    job->done(job->context);
}

static void finish_failed(batch *b, batch_sample *s, const dw_error *err)
{
    if (s->job->trouble.code == DW_OK)
        s->job->trouble = *err;
    finish(b, s, "error");
}

/* ---- a step ---- */

/* Adds the token chosen from LOGITS. Returns how the sample ended, or NULL. */
static const char *extend(batch *b, batch_sample *s, const float *logits,
                          uint64_t version)
{
    const batch_params *p = &s->job->params;
    batch_token *token = &s->tokens[s->n_ids - s->n_prompt];
    *token = (batch_token){.version = version, .offset = s->n_text};
    token->id = qwen_sample(logits, b->config->n_vocab, p->temperature, p->top_p, &s->rng,
                            &token->logp, NULL);
    s->ids[s->n_ids++] = token->id;
    if (!isfinite(token->logp)) {
        wordle_fail(&s->job->trouble, DW_CORRUPT, "weights",
                    "version %" PRIu64 " computes what is no number: publish another one",
                    version);
        return "error";
    }
    if (qwen_config_is_eos(b->config, token->id))
        return "stop";
    if (!batch_text_add(s, b->tok, token->id)) {
        wordle_fail(&s->job->trouble, DW_NO_MEMORY, "sample", "out of memory");
        return "error";
    }
    if (batch_text_cut(s, token->offset))
        return "stop";
    return s->n_ids - s->n_prompt == p->max_tokens ? "length" : NULL;
}

/* Fills the rows of a step over weights of STATE; returns how many. */
static size_t fill_rows(batch *b, dw_digest state)
{
    size_t n = 0;
    for (uint32_t i = 0; i < b->n_seqs && n < MAX_ROWS; i++) {
        const uint32_t seq = (b->first + i) % b->n_seqs;
        batch_sample *s = b->places[seq].sample;
        if (!s)
            continue;
        if (s->n_fed > 0 && s->cache_state != state) {
            qwen_session_reset(b->session, seq);
            s->n_fed = s->n_cached = 0;
        }
        s->cache_state = state;
        while (s->n_fed < s->n_ids && n < MAX_ROWS) {
            b->row_seqs[n] = seq;
            b->row_tokens[n] = s->ids[s->n_fed++];
            b->row_wants[n++] = s->n_fed == s->n_ids;
        }
    }
    b->first = (b->first + 1) % b->n_seqs;
    return n;
}

/* The sample leaves its place, and its cache there. */
static void leave(batch *b, place *at)
{
    const batch_sample *s = at->sample;
    memcpy(at->ids, s->ids, s->n_fed * sizeof *s->ids);
    at->n_ids = s->n_fed;
    at->state = s->cache_state;
    at->t_freed = ++b->n_freed;
    at->sample = NULL;
}

static void fail_place(batch *b, place *at, const dw_error *err)
{
    batch_sample *s = at->sample;
    at->sample = NULL;
    at->n_ids = 0;
    finish_failed(b, s, err);
}

static void fail_places(batch *b, const dw_error *err)
{
    for (uint32_t i = 0; i < b->n_seqs; i++)
        if (b->places[i].sample)
            fail_place(b, &b->places[i], err);
}

static void take_logits(batch *b, size_t n_rows, uint64_t version)
{
    const float *logits = b->logits;
    for (size_t i = 0; i < n_rows; i++) {
        if (!b->row_wants[i])
            continue;
        place *at = &b->places[b->row_seqs[i]];
        batch_sample *s = at->sample;
        const char *how = extend(b, s, logits, version);
        if (how) {
            leave(b, at);
            finish(b, s, how);
        }
        logits += b->config->n_vocab;
    }
}

/* Drops samples that nobody waits for. Returns whether any is left. */
static bool drop_gone(batch *b)
{
    bool any = false;
    dw_error err;
    wordle_fail(&err, DW_CANCELLED, "request", "the client has left");
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        place *at = &b->places[i];
        const batch_job *job = at->sample ? at->sample->job : NULL;
        if (job && job->gone && job->gone(job->context))
            fail_place(b, at, &err);
        any = any || at->sample;
    }
    return any;
}

/* One step for all that have a place. */
static dw_status step(batch *b, dw_error *err)
{
    serving_view view;
    if (!drop_gone(b))
        return DW_OK;
    dw_status status = serving_begin(b->serving, b->config, TURN_MS, &view, err);
    if (status != DW_OK)
        return status;
    const size_t n = fill_rows(b, view.state);
    status = qwen_session_step(b->session, view.weights, b->row_seqs, b->row_tokens,
                               b->row_wants, n, b->logits, err);
    serving_end(b->serving);
    if (status == DW_OK)
        take_logits(b, n, view.version);
    else
        fail_places(b, err);
    return DW_OK;
}

/* ---- the thread ---- */

static batch_sample *next_waiting(batch *b)
{
    batch_sample *s = STAILQ_FIRST(&b->waiting);
    if (s) {
        STAILQ_REMOVE_HEAD(&b->waiting, next);
        b->n_waiting--;
    }
    return s;
}

/* A free place for the sample: one whose cache its prompt goes on from, the longest;
 * else the one that was free for the longest. NULL: all are taken. */
static place *choose_place(batch *b, batch_sample *s)
{
    place *best = NULL, *oldest = NULL;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        place *at = &b->places[i];
        if (at->sample)
            continue;
        if (!oldest || at->t_freed < oldest->t_freed)
            oldest = at;
        if (at->n_ids > (best ? best->n_ids : 0) && at->n_ids < s->n_ids &&
            memcmp(at->ids, s->ids, at->n_ids * sizeof *at->ids) == 0)
            best = at;
    }
    if (best) {
        s->n_fed = s->n_cached = best->n_ids;
        s->cache_state = best->state;
    } else if (oldest) {
        qwen_session_reset(b->session, (uint32_t)(oldest - b->places));
    }
    return best ? best : oldest;
}

/* Gives places to waiting samples. Waits if there is no sample at all; false if it ends.
 */
static bool seat(batch *b)
{
    uint32_t n_free = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        n_free += b->places[i].sample == NULL;
    pthread_mutex_lock(&b->lock);
    while (n_free == b->n_seqs && b->n_waiting == 0 && !b->stopping)
        pthread_cond_wait(&b->changed, &b->lock);
    for (; n_free > 0 && b->n_waiting > 0; n_free--) {
        batch_sample *s = next_waiting(b);
        choose_place(b, s)->sample = s;
    }
    const bool stopping = b->stopping;
    pthread_mutex_unlock(&b->lock);
    return !stopping;
}

/* Fails samples that have waited for too long. */
static void expire(batch *b, const dw_error *err)
{
    const uint64_t now_ms = program_clock_ms();
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        place *at = &b->places[i];
        if (at->sample && now_ms - at->sample->job->t_arrived_ms > BATCH_WAIT_MS)
            fail_place(b, at, err);
    }
}

static void fail_all(batch *b)
{
    dw_error err;
    wordle_fail(&err, DW_CANCELLED, "request", "the server ends");
    fail_places(b, &err);
    for (batch_sample *s;;) {
        pthread_mutex_lock(&b->lock);
        s = next_waiting(b);
        pthread_mutex_unlock(&b->lock);
        if (!s)
            return;
        finish_failed(b, s, &err);
    }
}

static void *run(void *context)
{
    batch *b = context;
    while (seat(b)) {
        dw_error err;
        if (step(b, &err) == DW_OK)
            continue;
        expire(b, &err);
        nanosleep(&(struct timespec){.tv_nsec = REST_MS * 1000000L}, NULL);
    }
    fail_all(b);
    return NULL;
}

/* ---- starting and ending ---- */

dw_status batch_start(batch **out, serving *s, const qwen_config *config,
                      const tokenizer *tok, uint32_t n_seqs, uint32_t max_len,
                      unsigned n_threads, dw_error *err)
{
    batch *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b)
        return wordle_fail(err, DW_NO_MEMORY, "batch", "out of memory");
    b->serving = s;
    b->config = config;
    b->tok = tok;
    b->n_seqs = n_seqs;
    STAILQ_INIT(&b->waiting);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    b->places = calloc(n_seqs, sizeof *b->places);
    b->place_ids = calloc((size_t)n_seqs * max_len, sizeof *b->place_ids);
    b->logits = calloc((size_t)n_seqs * config->n_vocab, sizeof *b->logits);
    for (uint32_t i = 0; b->places && b->place_ids && i < n_seqs; i++)
        b->places[i].ids = b->place_ids + (size_t)i * max_len;
    dw_status status = DW_OK;
    if (!b->places || !b->place_ids || !b->logits)
        status = wordle_fail(err, DW_NO_MEMORY, "batch", "out of memory");
    if (status == DW_OK)
        status = qwen_session_new(&b->session, config, n_seqs, max_len, n_threads, err);
    if (status == DW_OK && pthread_create(&b->thread, NULL, run, b) != 0)
        status = wordle_fail(err, DW_NO_MEMORY, "batch", "no thread could be made");
    b->has_thread = status == DW_OK;
    if (status == DW_OK)
        *out = b;
    else
        batch_free(b);
    return status;
}

void batch_stop(batch *b)
{
    if (!b || !b->has_thread)
        return;
    pthread_mutex_lock(&b->lock);
    b->stopping = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
    serving_stop(b->serving);
    pthread_join(b->thread, NULL);
    b->has_thread = false;
}

void batch_free(batch *b)
{
    if (!b)
        return;
    batch_stop(b);
    qwen_session_free(b->session);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    free(b->places);
    free(b->place_ids);
    free(b->logits);
    free(b);
}
