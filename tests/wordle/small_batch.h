/* Sequences to train the small model on: shorter and longer than a block of rows. */
#ifndef WORDLE_TEST_SMALL_BATCH_H
#define WORDLE_TEST_SMALL_BATCH_H

#include "small_model.h"

enum { N_TOKENS = 150, N_SEQS = 5 };

static const uint32_t lengths[N_SEQS] = {1, 71, 2, 10, 66};

typedef struct batch {
    int32_t tokens[N_TOKENS];
    float coef[N_TOKENS], logp[N_TOKENS];
} batch;

static inline batch make_batch(const qwen_config *c)
{
    batch b;
    uint64_t rng = 3;
    random_tokens(b.tokens, N_TOKENS, c->n_vocab, 17);
    for (size_t i = 0; i < N_TOKENS; i++)
        b.coef[i] = random_below(&rng, 4) == 0 ? 0 : random_float(&rng);
    return b;
}

static inline double loss_of(qwen_trainer *t, batch *b)
{
    dw_error err;
    assert_ok(qwen_trainer_forward(t, b->tokens, lengths, N_SEQS, b->logp, NULL, &err),
              err);
    double loss = 0;
    for (size_t i = 0; i < N_TOKENS; i++)
        loss += (double)b->coef[i] * (double)b->logp[i];
    return loss;
}

#endif
