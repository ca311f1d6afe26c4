/* Played games for the same answer, with the tokens that the model chose.
 *
 * A game is one sequence of tokens: the text that the environment made of it, which is
 * the prompt of its last guess. The prompt of each guess is a beginning of it.
 */
#ifndef WORDLE_GROUP_H
#define WORDLE_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
    uint64_t version;             /* of those weights; the oldest if they changed */
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

#endif
