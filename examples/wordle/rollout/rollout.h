/* The rollout server, shared by its parts. */
#ifndef WORDLE_ROLLOUT_H
#define WORDLE_ROLLOUT_H

#include <stdatomic.h>

#include "model.h"
#include "program.h"
#include "web.h"

enum { ROLLOUT_SEQS = 256 };

/* A sequence of the session, and what its cache holds. */
typedef struct cached {
    int32_t ids[MODEL_MAX_LEN];
    uint32_t n;
    uint64_t update; /* that made the weights it was computed with */
    uint64_t used;   /* a number that grows */
} cached;

typedef struct rollout {
    /* of the thread that follows */
    const char *url; /* of the stream */
    atomic_bool stop;
    dw_store *store;
    dw_follower *follower;
    uint16_t halves[MODEL_PARAMS]; /* the follower's memory */
    model_tensors tensors;

    pthread_mutex_t lock;  /* of what both use; held while a request is computed */
    model_weights weights; /* the halves, to compute with */
    uint64_t version;      /* of the weights; DW_NO_VERSION: there are none */
    char stream[64];       /* its id */
    uint64_t n_updates;
    dw_error trouble; /* the newest one */

    /* of the thread that answers */
    model_session *session;
    cached places[ROLLOUT_SEQS];
    uint64_t n_used;
} rollout;

/* Locks, if there are weights; otherwise refuses the call with 503. */
bool rollout_lock(rollout *r, web_call *call);

/* POST /v1/completions */
void completions_answer(rollout *r, web_call *call);

#endif
