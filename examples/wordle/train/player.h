/* Players: threads that play groups of games and queue them.
 *
 * A group is G games for the same answer, against the environment, with the guesses of a
 * rollout server. The servers take turns; one that does not answer is skipped until its
 * next turn. If the environment fails, the group is dropped.
 */
#ifndef WORDLE_PLAYER_H
#define WORDLE_PLAYER_H

#include <deltawire/deltawire.h>

#include "group_queue.h"
#include "tokenizer.h"

enum { PLAYERS_MAX_SERVERS = 64, PLAYERS_MAX_THREADS = 64 };

typedef struct player_options {
    const char *env;            /* its URL */
    const char *const *servers; /* theirs */
    size_t n_servers;           /* 1 to PLAYERS_MAX_SERVERS */
    size_t n_threads;           /* groups at once, 1 to PLAYERS_MAX_THREADS */
    size_t n_games;             /* of a group, 2 to GROUP_MAX_GAMES */
    uint64_t seed;              /* another one plays other games */
    const tokenizer *tok;
    uint32_t n_vocab;   /* of the model: other tokens are refused */
    const char *stream; /* its id: samples of another stream's weights are refused */
} player_options;

typedef struct players players;

/* OPTIONS, everything it points to, and QUEUE must outlive the players. */
dw_status players_start(players **out, const player_options *options, group_queue *queue,
                        dw_error *err);

/* Closes the queue, waits for the threads; accepts NULL. */
void players_stop(players *all);

/* The number of failed requests since the start. LAST, if not NULL, takes the newest
 * failure, if there is one. */
uint64_t players_failures(players *all, dw_error *last);

#endif
