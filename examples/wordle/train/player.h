/* Players: threads that play groups of games.
 *
 * A group is G games for the same answer, against the environment, with the guesses of a
 * rollout server. The servers take turns; one that does not answer is skipped until its
 * next turn. If the environment fails, the group is dropped. Played groups wait in a
 * short queue. If it is full, the players wait, so that games are not too old when they
 * are used.
 */
#ifndef WORDLE_PLAYER_H
#define WORDLE_PLAYER_H

#include "grpo.h"

enum { PLAYERS_MAX_SERVERS = 64, PLAYERS_MAX_THREADS = 64, PLAYERS_MAX_QUEUED = 64 };

typedef struct player_options {
    const char *env;            /* its URL */
    const char *const *servers; /* theirs */
    size_t n_servers;           /* 1 to PLAYERS_MAX_SERVERS */
    size_t n_threads;           /* groups at once, 1 to PLAYERS_MAX_THREADS */
    size_t n_games;             /* of a group, 2 to GROUP_MAX_GAMES */
    size_t n_queued;            /* groups, 1 to PLAYERS_MAX_QUEUED */
    uint64_t seed;              /* another one plays other games */
    const char *stream; /* its id: samples of another stream's weights are refused */
} player_options;

typedef struct players players;

/* OPTIONS and everything it points to must outlive the players. */
dw_status players_start(players **out, const player_options *options, dw_error *err);

/* Waits for the threads; accepts NULL. */
void players_stop(players *all);

/* The oldest group, which the caller frees; NULL after TIMEOUT_MS without one. */
played_group *players_take(players *all, unsigned timeout_ms);

/* The number of failed requests since the start. LAST takes the newest failure, if there
 * is one. */
uint64_t players_failures(players *all, dw_error *last);

#endif
