#include "batch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fail.h"
#include "program.h"

enum { MAX_ROWS = 512, TURN_MS = 1000, REST_MS = 10 };

typedef STAILQ_HEAD(sample_queue, batch_sample) sample_queue;

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
    batch_sample **places; /* [n_seqs]; NULL: free */
    uint32_t first;        /* the place that a step begins with: a prompt that does not
                              fit into one step keeps nobody out for long */
    float *logits;         /* [n_seqs][n_vocab] */
    uint32_t row_seqs[MAX_ROWS];
    int32_t row_tokens[MAX_ROWS];
    bool row_wants[MAX_ROWS];
};

/* ---- jobs ---- */

batch_job *batch_job_new(size_t n)
{
    batch_job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    job->samples = calloc(n, sizeof *job->samples);
    if (!job->samples) {
        free(job);
        return NULL;
    }
    job->n_samples = job->n_left = n;
    return job;
}

void batch_job_free(batch_job *job)
{
    if (!job)
        return;
    for (size_t i = 0; i < job->n_samples; i++) {
        free(job->samples[i].ids);
        free(job->samples[i].tokens);
        free(job->samples[i].text);
    }
    free(job->samples);
    free(job);
}

bool batch_job_prompt(batch_job *job, size_t i, const int32_t *ids, uint32_t n,
                      uint64_t rng)
{
    batch_sample *s = &job->samples[i];
    const size_t n_room = (size_t)n + job->params.max_tokens;
    s->ids = malloc(n_room * sizeof *s->ids);
    s->tokens = calloc(job->params.max_tokens, sizeof *s->tokens);
    if (!s->ids || !s->tokens)
        return false;
    memcpy(s->ids, ids, n * sizeof *ids);
    s->n_ids = s->n_prompt = n;
    s->rng = rng;
    s->job = job;
    return true;
}

uint64_t batch_sample_version(const batch_sample *s)
{
    uint64_t oldest = DW_NO_VERSION;
    for (uint32_t i = 0; i < s->n_ids - s->n_prompt; i++)
        if (s->tokens[i].version < oldest)
            oldest = s->tokens[i].version;
    return oldest;
}

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

/* ---- text ---- */

/* Adds the text of a token, which a special one has none of; false where memory is
 * short. */
static bool add_text(const batch *b, batch_sample *s, int32_t id)
{
    const bool special = tokenizer_is_special(b->tok, id);
    size_t n = special ? 0 : tokenizer_decode(b->tok, &id, 1, NULL, 0);
    if (s->n_text + n + 1 > s->n_text_room) {
        const size_t room = 2 * (s->n_text + n + 1);
        char *more = realloc(s->text, room);
        if (!more)
            return false;
        s->text = more;
        s->n_text_room = room;
    }
    if (n > 0)
        s->n_text += tokenizer_decode(b->tok, &id, 1, s->text + s->n_text, n);
    s->text[s->n_text] = '\0';
    return true;
}

/* Cuts the text where a stop begins; FROM is where the last token does. */
static bool cut_at_stop(batch_sample *s, size_t from)
{
    const batch_params *p = &s->job->params;
    const size_t start = from > BATCH_MAX_STOP_BYTES ? from - BATCH_MAX_STOP_BYTES : 0;
    size_t cut = s->n_text;
    bool found = false;
    for (size_t i = 0; i < p->n_stops; i++) {
        const size_t n = strlen(p->stops[i]);
        for (size_t at = start; at + n <= s->n_text; at++)
            if (at <= cut && memcmp(s->text + at, p->stops[i], n) == 0) {
                cut = at;
                found = true;
                break;
            }
    }
    if (found)
        s->text[s->n_text = cut] = '\0';
    return found;
}

/* ---- a step ---- */

/* Adds the token that LOGITS lead to. True: the sample is finished, or failed. */
static bool extend(batch *b, batch_sample *s, const float *logits, uint64_t version)
{
    const batch_params *p = &s->job->params;
    batch_token *token = &s->tokens[s->n_ids - s->n_prompt];
    *token = (batch_token){.version = version, .offset = s->n_text};
    token->id = qwen_sample(logits, b->config->n_vocab, p->temperature, p->top_p, &s->rng,
                            &token->logp, NULL);
    s->ids[s->n_ids++] = token->id;
    const char *how = NULL;
    if (token->id == b->config->eos) {
        how = "stop";
    } else if (!add_text(b, s, token->id)) {
        dw_error err;
        wordle_fail(&err, DW_NO_MEMORY, "sample", "out of memory");
        finish_failed(b, s, &err);
        return true;
    } else if (cut_at_stop(s, token->offset)) {
        how = "stop";
    } else if (s->n_ids - s->n_prompt == p->max_tokens) {
        how = "length";
    }
    if (how)
        finish(b, s, how);
    return how != NULL;
}

/* Fills the rows of a step over VERSION; returns how many. */
static size_t fill_rows(batch *b, uint64_t version)
{
    size_t n = 0;
    for (uint32_t i = 0; i < b->n_seqs && n < MAX_ROWS; i++) {
        const uint32_t seq = (b->first + i) % b->n_seqs;
        batch_sample *s = b->places[seq];
        if (!s)
            continue;
        if (s->n_fed > 0 && s->cache_version != version) {
            qwen_session_reset(b->session, seq);
            s->n_fed = 0;
        }
        s->cache_version = version;
        while (s->n_fed < s->n_ids && n < MAX_ROWS) {
            b->row_seqs[n] = seq;
            b->row_tokens[n] = s->ids[s->n_fed++];
            b->row_wants[n++] = s->n_fed == s->n_ids;
        }
    }
    b->first = (b->first + 1) % b->n_seqs;
    return n;
}

static void fail_places(batch *b, const dw_error *err)
{
    for (uint32_t i = 0; i < b->n_seqs; i++)
        if (b->places[i]) {
            batch_sample *s = b->places[i];
            b->places[i] = NULL;
            finish_failed(b, s, err);
        }
}

static void take_logits(batch *b, size_t n_rows, uint64_t version)
{
    const float *logits = b->logits;
    for (size_t i = 0; i < n_rows; i++) {
        if (!b->row_wants[i])
            continue;
        batch_sample **place = &b->places[b->row_seqs[i]];
        if (extend(b, *place, logits, version))
            *place = NULL;
        logits += b->config->n_vocab;
    }
}

/* One step for all that have a place. */
static dw_status step(batch *b, dw_error *err)
{
    serving_view view;
    dw_status status = serving_begin(b->serving, b->config, TURN_MS, &view, err);
    if (status != DW_OK)
        return status;
    const size_t n = fill_rows(b, view.version);
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

/* Gives places to those who wait. Waits where there is nobody at all; false: it ends. */
static bool seat(batch *b)
{
    pthread_mutex_lock(&b->lock);
    uint32_t n_seated = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        n_seated += b->places[i] != NULL;
    while (n_seated == 0 && b->n_waiting == 0 && !b->stopping)
        pthread_cond_wait(&b->changed, &b->lock);
    for (uint32_t i = 0; i < b->n_seqs && b->n_waiting > 0; i++)
        if (!b->places[i]) {
            b->places[i] = next_waiting(b);
            qwen_session_reset(b->session, i);
        }
    const bool stopping = b->stopping;
    pthread_mutex_unlock(&b->lock);
    return !stopping;
}

/* Fails those who have waited for too long. */
static void expire(batch *b, const dw_error *err)
{
    const uint64_t now_ms = program_clock_ms();
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        batch_sample *s = b->places[i];
        if (s && now_ms - s->job->t_arrived_ms > BATCH_WAIT_MS) {
            b->places[i] = NULL;
            finish_failed(b, s, err);
        }
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
    b->logits = calloc((size_t)n_seqs * config->n_vocab, sizeof *b->logits);
    dw_status status = DW_OK;
    if (!b->places || !b->logits)
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
    free(b->logits);
    free(b);
}
