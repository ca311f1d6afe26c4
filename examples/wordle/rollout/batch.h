/* Continuous batching: samples of many requests go through the model together.
 *
 * One thread makes one step after the other. Each step advances every active sample by
 * one token, or by the next part of its prompt. When a sample is finished, the next one
 * takes its place. Every token has the version of its weights.
 *
 * The cache of a finished sample stays until its memory is needed, so a prompt that
 * continues it, such as the next guess of a game, costs only its new tokens. When the
 * version changes, the cache is dropped and the text so far goes through the new weights.
 * So each token comes from one version, and its log-probability is what that version
 * gives for the text before it.
 */
#ifndef WORDLE_BATCH_H
#define WORDLE_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "serving.h"
#include "tokenizer.h"

enum {
    BATCH_MAX_WAITING = 8192, /* samples */
    BATCH_MAX_STOPS = 16,
    BATCH_MAX_STOP_BYTES = 64,
    BATCH_WAIT_MS = 10 * 60 * 1000, /* a request fails this long after its arrival */
};

typedef struct batch_params {
    uint32_t max_tokens;
    float temperature;
    float top_p;
    char stops[BATCH_MAX_STOPS][BATCH_MAX_STOP_BYTES + 1];
    size_t n_stops;
} batch_params;

typedef struct batch_token {
    int32_t id;
    float logp; /* at temperature 1 */
    uint64_t version;
    size_t offset; /* of its text */
} batch_token;

struct batch_job;

typedef struct batch_sample {
    struct batch_job *job;
    uint64_t rng;
    int32_t *ids; /* the prompt, then what was generated */
    uint32_t n_prompt, n_ids;
    batch_token *tokens; /* that were generated: n_ids - n_prompt */
    char *text;          /* of them */
    size_t n_text, n_text_room;
    const char *finish; /* "stop", "length"; NULL: not finished */

    uint32_t n_cached; /* of the prompt: that were computed before */

    /* of the thread that steps */
    uint32_t n_fed;        /* ids that are in the cache */
    dw_digest cache_state; /* of the weights that they went through */
    STAILQ_ENTRY(batch_sample) next;
} batch_sample;

/* A request. */
typedef struct batch_job {
    batch_params params;
    batch_sample *samples;
    size_t n_samples;
    uint64_t t_arrived_ms;
    size_t n_left;               /* that are not finished */
    dw_error trouble;            /* the error, or code DW_OK */
    bool (*gone)(void *context); /* whether nobody waits for it any more; NULL: never */
    void (*done)(void *context); /* of the thread that steps: the job is the caller's */
    void *context;
} batch_job;

typedef struct batch batch;

/* Begins to step. Nothing is copied; all of it must outlive the batch. N_SEQS samples
 * have a place, MAX_LEN tokens each, with the prompt. */
dw_status batch_start(batch **out, serving *s, const qwen_config *config,
                      const tokenizer *tok, uint32_t n_seqs, uint32_t max_len,
                      unsigned n_threads, dw_error *err);

/* Ends the thread; unfinished jobs fail with DW_CANCELLED. */
void batch_stop(batch *b);
void batch_free(batch *b);

/* Room for N samples; NULL: out of memory. */
batch_job *batch_job_new(size_t n);
void batch_job_free(batch_job *job);

/* Gives sample I its prompt, which is copied, and a state of the random generator. */
bool batch_job_prompt(batch_job *job, size_t i, const int32_t *ids, uint32_t n,
                      uint64_t rng);

/* The version of the oldest token. */
uint64_t batch_sample_version(const batch_sample *sample);

/* False if there are too many, or it is ending. Otherwise `done` will be called. */
bool batch_submit(batch *b, batch_job *job);

/* Jobs that were submitted and are not done. */
unsigned batch_n_jobs(batch *b);

#endif
