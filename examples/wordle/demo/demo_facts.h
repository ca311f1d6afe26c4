/* The facts of the demo, collected from the trainer's metrics and the followers' events.
 */
#ifndef WORDLE_DEMO_FACTS_H
#define WORDLE_DEMO_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tail.h"

enum { DEMO_MAX_STEPS = 100000, DEMO_MAX_SERVERS = 16 };

typedef struct demo_step {
    uint64_t step;
    double t, reward, win_rate, invalid_rate, consistent_rate, lag, max_lag, ratio_off;
    uint64_t dropped, version, bytes, changed; /* version 0: not published */
} demo_step;

typedef struct demo_server {
    tail events;
    char page[128];   /* URL of the agent's page */
    char state[32];   /* of the engine, as the agent sees it */
    uint64_t version; /* UINT64_MAX: none yet */
    uint64_t n_updates, n_bytes;
    double *pauses_ms; /* [n_pauses], of updates that paused an engine */
    size_t n_pauses;
    char trouble[256];
} demo_server;

typedef struct demo_facts {
    tail metrics;
    demo_step *steps; /* one for each number: the last report */
    size_t n_steps;
    uint64_t n_asked; /* steps that will be done */
    uint64_t params, full_bytes, newest;
    uint64_t warmup_step;
    double warmup_loss, t;
    bool warm, ended;
    uint64_t n_evaluated; /* games with the last weights; 0: none yet */
    double final_reward, final_win_rate, final_consistent_rate;
    char stream[40], final_state[20];
    uint64_t final_version;
    char trouble[256];
    demo_server servers[DEMO_MAX_SERVERS];
    size_t n_servers;
} demo_facts;

/* The number of the newest step; 0: none yet. */
uint64_t demo_facts_step(const demo_facts *f);

/* Reads new lines. */
void demo_facts_update(demo_facts *f);
void demo_facts_release(demo_facts *f);

/* Mean and standard deviation of a tenth of the steps, the first (0) to the last (9); of
 * the member at OFFSET. */
typedef struct demo_mean {
    double mean, spread;
    size_t n;
} demo_mean;

demo_mean demo_facts_tenth(const demo_facts *f, unsigned tenth, size_t offset);

#endif
