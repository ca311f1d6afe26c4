/* The faults of the test engine, chosen by a seed. */
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

/* Rates in thousandths of the requests. With LONG_MS 0 no delay is long. */
typedef struct mishap_rates {
    unsigned failures; /* each of the five above */
    unsigned delays;   /* up to 20 ms */
    unsigned deaths;   /* at each mishap_point */
    unsigned long_delays;
    unsigned long_ms;
} mishap_rates;

void mishap_begin(uint64_t seed, const mishap_rates *rates);

/* Ends all mishaps. Signal handlers may call it. */
void mishap_calm(void);

/* Chooses the fate of a request, and waits if it is a delay. */
mishap mishap_of_request(void);

/* Chooses the fate of an update whose request has FATE. A failed update is sometimes
 * followed by more failures, so that retries are used up. */
mishap mishap_of_update(mishap fate);

/* A point at which the engine may die. WEIGHT points count as one. */
void mishap_point(unsigned weight);

#endif
