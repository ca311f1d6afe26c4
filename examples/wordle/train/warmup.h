/* The supervised start: random games show the model the words and the form of a game, so
 * that its samples earn rewards. The guesses are random too: playing teaches which words
 * are good.
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

/* Adds the gradients of a batch of random games; LOSS is the mean of -log p for a token
 * of a guess. The caller makes the step. */
dw_status warmup_backward(warmup *w, qwen_trainer *trainer, double *loss, dw_error *err);

#endif
