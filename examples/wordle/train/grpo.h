/* GRPO: turns played games into gradients.
 *
 * The advantage of a guess is its return, the rewards from it to the end of its game,
 * less the mean return of the same turn of the group's games, its own among them; all are
 * scaled by one spread, that of the batch. It holds for every token of the guess.
 *
 *     ratio = p(token, the trainer's weights) / p(token, the weights that sampled it)
 *     objective = min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)
 *
 * This makes samples of older versions usable: newer weights get the gradient of their
 * own policy, as long as the ratio is inside the clip.
 */
#ifndef WORDLE_GRPO_H
#define WORDLE_GRPO_H

#include <deltawire/deltawire.h>

#include "group.h"
#include "qwen.h"

typedef struct grpo_options {
    float clip_low;
    float clip_high;
} grpo_options;

/* Means over a batch. */
typedef struct grpo_report {
    size_t n_games;
    size_t n_guesses;
    size_t n_tokens;    /* that the model chose */
    size_t n_sequences; /* that were computed */
    double reward;      /* of a game */
    double win_rate;
    double guesses;         /* of a won game; 0 if none was won */
    double invalid_rate;    /* of guesses */
    double consistent_rate; /* of guesses after a game's first */
    double entropy;         /* of a token, in nats */
    double ratio;
    double ratio_off; /* mean distance of the ratio from 1 */
    double clip_rate; /* of tokens */
} grpo_report;

/* Computes the means that need no model, from at least one game; the others become zero.
 */
void grpo_count(grpo_report *report, played_group *const *groups, size_t n_groups);

/* Adds the gradients of a batch to those of the trainer. */
dw_status grpo_backward(qwen_trainer *trainer, const grpo_options *options,
                        played_group *const *groups, size_t n_groups, grpo_report *report,
                        dw_error *err);

#endif
