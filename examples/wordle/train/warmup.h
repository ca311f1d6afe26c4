/* The supervised start: random games show the model the words and the form of a game, so
 * that its samples earn rewards. The guesses are random too: playing teaches which words
 * are good.
 */
#ifndef WORDLE_WARMUP_H
#define WORDLE_WARMUP_H

#include <deltawire/deltawire.h>

#include "game.h"
#include "model.h"

/* Adds the gradients of N_GAMES random games; returns the mean of -log p for a token of a
 * guess. The caller makes the step. */
double warmup_backward(model_trainer *trainer, const words *list, size_t n_games,
                       uint64_t *random);

/* The learning rate of step STEP of N_STEPS: it rises fast and falls slowly. */
float warmup_rate(uint64_t step, uint64_t n_steps);

#endif
