/* Groups on their way from those who play to the one who trains. A full queue makes the
 * players wait, so that what they play is not too old when its turn comes. */
#ifndef WORDLE_GROUP_QUEUE_H
#define WORDLE_GROUP_QUEUE_H

#include "group.h"

typedef struct group_queue group_queue;

group_queue *group_queue_new(size_t capacity); /* NULL: out of memory */
void group_queue_free(group_queue *queue);     /* nobody may be using it */

/* Takes GROUP. Waits for room; false, and GROUP is freed, once the queue is closed. */
bool group_queue_push(group_queue *queue, played_group *group);

/* The oldest group, which becomes the caller's; NULL after TIMEOUT_MS without one, or at
 * once where the queue is closed. */
played_group *group_queue_pop(group_queue *queue, unsigned timeout_ms);

/* Wakes everybody; from now on nothing goes in or out. */
void group_queue_close(group_queue *queue);

#endif
