/* The rollout server, shared by its parts. */
#ifndef WORDLE_ROLLOUT_H
#define WORDLE_ROLLOUT_H

#include <pthread.h>

#include "batch.h"
#include "web.h"

enum {
    ROLLOUT_MAX_BODY = 4 << 20,
    CONTROL_MAX_BODY = 64 << 10,
    ROLLOUT_LABEL_BYTES = 64,
};

typedef struct rollout {
    const char *model_name;
    serving *serving;

    pthread_mutex_t lock; /* guards the two that follow against the end */
    bool ending;
    batch *batch; /* NULL: the model's files do not exist yet */

    /* once there is a batch; of the thread that answers */
    qwen_config config;
    tokenizer *tok;
    uint32_t max_len;
    size_t n_longest; /* bytes of the longest token */

    uint64_t n_requests; /* of the thread that answers */

    /* of the thread that answers the control interface, which may be another */
    bool in_update;
    uint64_t version; /* the announced one; DW_NO_VERSION: none */
    char label[ROLLOUT_LABEL_BYTES];
} rollout;

/* Makes sure that the model's files are read; DW_NOT_FOUND if they do not exist yet. */
dw_status rollout_load(rollout *r, dw_error *err);

/* Answers with the HTTP status and the text of a failure. */
void rollout_refuse(web_call *call, const dw_error *err);

/* POST /v1/completions */
void completions_answer(rollout *r, web_call *call);

/* vLLM's control interface (docs/OPERATIONS.md): true if it was one of its requests. */
bool control_answer(rollout *r, web_call *call);

#endif
