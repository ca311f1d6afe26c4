/* What goes wrong in the test engine, by a seed. */
#ifndef DW_ENGINE_MISHAP_H
#define DW_ENGINE_MISHAP_H

#include <stdint.h>

enum { DEATH_BY_PLAN = 9 }; /* the exit status */

typedef enum mishap {
    MISHAP_NONE = 0,
    MISHAP_FAIL_BEFORE, /* 500, and nothing was done */
    MISHAP_FAIL_AFTER,  /* 500, but it was done, or half done */
    MISHAP_DROP_BEFORE, /* the connection ends with no answer */
    MISHAP_DROP_AFTER,
    MISHAP_HALF, /* done, and the connection ends in the middle of the answer */
} mishap;

/* One in a thousand of what is asked; with LONG_MS 0 no delay is long. */
typedef struct mishap_rates {
    unsigned failures; /* each of the five above */
    unsigned delays;   /* up to 20 ms */
    unsigned deaths;   /* at each of the points */
    unsigned long_delays;
    unsigned long_ms;
} mishap_rates;

void mishap_begin(uint64_t seed, const mishap_rates *rates);

/* From now on nothing goes wrong any more. May be called by a signal handler. */
void mishap_calm(void);

/* What becomes of a request; waits where it is to be late. */
mishap mishap_of_request(void);

/* What becomes of an update, where its request is to be FATE: one that fails is followed
 * by some that fail too, now and then, so that whoever tries again gives up. */
mishap mishap_of_update(mishap fate);

/* A point to die at: one of WEIGHT such points counts as one. */
void mishap_point(unsigned weight);

#endif
