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

#include "model.h"

/* ---- played games, with the tokens that the model chose ----
 *
 * A game is one sequence of tokens: the text that the environment made of it, which is
 * the prompt of its last guess. The prompt of each guess is a beginning of it. */

enum {
    GROUP_MAX_GAMES = 64,
    GAME_MAX_GUESSES = 6,
    GAME_MAX_TOKENS = 120,
    GUESS_MAX_TOKENS = 6, /* five letters and the end of the line */
};

typedef struct played_guess {
    uint32_t n_before; /* tokens of its prompt */
    uint32_t n_tokens;
    int32_t tokens[GUESS_MAX_TOKENS];
    float logp[GUESS_MAX_TOKENS]; /* under the weights that it was sampled with */
    uint64_t version;             /* of those weights */
    float reward;
    bool valid;
    bool consistent; /* with all feedback before it, of which there was some */
} played_guess;

typedef struct played_game {
    int32_t tokens[GAME_MAX_TOKENS]; /* the prompt of the last guess */
    uint32_t n_tokens;
    uint32_t n_guesses;
    played_guess guesses[GAME_MAX_GUESSES];
    bool won;
} played_game;

typedef struct played_group {
    uint64_t version; /* the oldest of any guess */
    size_t n_games;
    played_game games[];
} played_group;

/* All zero except for the number of games; NULL if out of memory. free() releases it. */
played_group *played_group_new(size_t n_games);

/* The sum of the rewards of a game's guesses, from guess FIRST on. */
float played_game_reward(const played_game *game, uint32_t first);

/* ---- gradients ---- */

#define GRPO_CLIP_LOW  0.2
#define GRPO_CLIP_HIGH 0.28

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
dw_status grpo_backward(model_trainer *trainer, played_group *const *groups,
                        size_t n_groups, grpo_report *report, dw_error *err);

#endif
