/* The supervised start: random games show the model the words and the shape of a game, so
 * that what it samples earns rewards to learn from. The guesses are random too: which
 * word is a good one is left to be learnt by playing.
 */
#ifndef WORDLE_WARMUP_H
#define WORDLE_WARMUP_H

#include <deltawire/deltawire.h>

#include "qwen.h"
#include "tokenizer.h"
#include "words.h"

typedef struct warmup warmup;

/* LIST and TOK must outlive it. */
dw_status warmup_new(warmup **out, const words *list, const tokenizer *tok,
                     size_t n_games, uint64_t seed, dw_error *err);
void warmup_free(warmup *w);

/* Adds the gradients of a batch of random games; LOSS is the mean of -log p, of a token
 * of a guess. The step is the caller's. */
dw_status warmup_backward(warmup *w, qwen_trainer *trainer, double *loss, dw_error *err);

#endif
