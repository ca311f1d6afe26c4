/* Chooses the faults of requests. A plan has lines of
 *
 *     N FAULT [METHOD [PART]]            the N-th request, counted from 1
 *     every K FAULT [METHOD [PART]]      each K-th
 *     random P FAULT [METHOD [PART]]     each with probability P
 *
 * A line counts only requests with METHOD (`*`: any) and with PART in their target. The
 * first line that applies decides. # begins a comment. */
#ifndef DW_TESTS_FAULT_PLAN_H
#define DW_TESTS_FAULT_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum fault {
    FAULT_NONE,
    FAULT_RESET,       /* the connection, before the server sees anything */
    FAULT_CUT,         /* both connections, in the middle of the request's body */
    FAULT_STALL,       /* nothing is passed on nor answered, until the client leaves */
    FAULT_DELAY,       /* passed on later */
    FAULT_500,         /* the proxy's own answer, like the next three */
    FAULT_503,         /* SlowDown */
    FAULT_429,         /* with Retry-After */
    FAULT_307,         /* to the same place */
    FAULT_LOST,        /* the server does its work, the reply is lost in a reset */
    FAULT_TRUNCATE,    /* the reply's body ends early, with the connection */
    FAULT_STALL_REPLY, /* the same, but the connection stays open */
    FAULT_FLIP,        /* one bit of the reply's body */
    FAULT_STALE,       /* a list gets an earlier reply to the same list */
    FAULT_ERROR_200, /* the proxy's own answer, like the next three: <Error> after 200 */
    FAULT_204,       /* nothing was done */
    FAULT_412,       /* there is no such object */
    FAULT_GARBAGE,   /* no HTTP */
    N_FAULTS
} fault;

extern const char *const fault_names[N_FAULTS];

typedef struct fault_plan fault_plan;

/* NULL, after a message on stderr, if a line is invalid. SEED determines random choices.
 */
fault_plan *fault_plan_read(FILE *file, const char *path, uint64_t seed);

/* Any fault, with probability RATE. */
fault_plan *fault_plan_random(double rate, uint64_t seed);

void fault_plan_free(fault_plan *plan);

/* Counts the request, and decides. Several threads may call it. *RANDOM is for details.
 */
fault fault_plan_choose(fault_plan *plan, const char *method, const char *target,
                        uint64_t *random);

#endif
