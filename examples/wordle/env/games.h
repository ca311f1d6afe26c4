/* The current games, by id. For one thread at a time. */
#ifndef WORDLE_GAMES_H
#define WORDLE_GAMES_H

#include <stdint.h>
#include <sys/queue.h>

#include "game.h"

enum { GAMES_IDLE_MS = 10 * 60 * 1000, GAMES_ID_BYTES = 17 };

typedef struct games_entry {
    uint64_t id;
    uint64_t seed;
    game game;
    uint64_t t_used_ms;
    bool is_done;
    TAILQ_ENTRY(games_entry) order; /* of use, in live or in done */
    struct games_entry *next;       /* in its bucket */
} games_entry;

typedef TAILQ_HEAD(games_list, games_entry) games_list;

typedef struct games_stats {
    uint64_t n_started, n_finished, n_won, n_guesses, n_invalid;
    uint64_t n_turns;    /* of won games */
    double total_reward; /* of finished games */
} games_stats;

typedef struct games {
    const words *words;
    size_t n_answers; /* so many of the words, spread over the list, are answers */
    size_t n, max;
    games_entry **buckets;
    size_t n_buckets;
    games_list live, done; /* longest unused first */
    games_stats stats;
} games;

/* N_ANSWERS 0, or more than there are words: all of them. */
dw_status games_init(games *g, const words *list, size_t n_answers, size_t max,
                     dw_error *err);
void games_release(games *g);

/* The answer number I of n_answers. */
const char *games_answer(const games *g, size_t i);

/* Starts a new game. Its answer depends only on SEED and the words. If there are too many
 * games, it replaces a finished one; NULL if all are in progress. */
games_entry *games_open(games *g, uint64_t seed, uint64_t now_ms);

/* NULL if there is none, or it timed out. */
games_entry *games_find(games *g, const char *id, uint64_t now_ms);
game_move games_guess(games *g, games_entry *e, const char *text, size_t n);
void games_drop(games *g, games_entry *e);

/* Drops games without requests for GAMES_IDLE_MS. */
void games_expire(games *g, uint64_t now_ms);

#endif
