/* A queue of groups from the players to the trainer. If it is full, the players wait, so
 * that their games are not too old when they are used. */
#ifndef WORDLE_GROUP_QUEUE_H
#define WORDLE_GROUP_QUEUE_H

#include "group.h"

typedef struct group_queue group_queue;

group_queue *group_queue_new(size_t capacity); /* NULL: out of memory */
void group_queue_free(group_queue *queue);     /* nobody may be using it */

/* Owns GROUP. Waits for room. Once the queue is closed, returns false and frees GROUP. */
bool group_queue_push(group_queue *queue, played_group *group);

/* The oldest group, which becomes the caller's; NULL after TIMEOUT_MS without one, or at
 * once if the queue is closed. */
played_group *group_queue_pop(group_queue *queue, unsigned timeout_ms);

/* Wakes all waiting threads; from now on nothing goes in or out. */
void group_queue_close(group_queue *queue);

#endif
