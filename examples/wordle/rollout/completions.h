/* A completion, from its request to its answer. */
#ifndef WORDLE_COMPLETIONS_H
#define WORDLE_COMPLETIONS_H

#include "rollout.h"

typedef struct completion {
    rollout *server;
    web_call *call;
    uint64_t number;
    batch_job *job; /* sample i is number i % n of prompt i / n */
    size_t n;
    bool wants_logprobs, wants_ids;
} completion;

/* The answer, once the job is done. NULL: out of memory. */
json_t *completion_describe(const completion *c);

#endif
