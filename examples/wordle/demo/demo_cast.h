/* The processes, directories and addresses of the demo. */
#ifndef WORDLE_DEMO_CAST_H
#define WORDLE_DEMO_CAST_H

#include "demo_facts.h"
#include "demo_options.h"
#include "demo_process.h"

enum { DEMO_URL_BYTES = 256 };

typedef struct demo_cast {
    const demo_options *options;
    char dir[DEMO_PATH_BYTES / 4];      /* for all files */
    char programs[DEMO_PATH_BYTES / 4]; /* of wordle-* */
    char deltawire[DEMO_PATH_BYTES / 2];
    char store[DEMO_PATH_BYTES / 2];
    char env_url[DEMO_URL_BYTES];
    char rollout_urls[DEMO_MAX_SERVERS][DEMO_URL_BYTES];
    char control_urls[DEMO_MAX_SERVERS][DEMO_URL_BYTES]; /* only for their agents */
    demo_process env, trainer;
    demo_process rollouts[DEMO_MAX_SERVERS], agents[DEMO_MAX_SERVERS];
} demo_cast;

/* Makes the directories and the model. */
dw_status demo_cast_prepare(demo_cast *c, const demo_options *options, const char *dir,
                            dw_error *err);

/* Starts all processes. */
dw_status demo_cast_start(demo_cast *c, dw_error *err);

/* Kills the process of that name and starts it again with the same command line and
 * address. */
dw_status demo_cast_kill(demo_cast *c, const char *name, size_t n_name, dw_error *err);

/* A process that has ended although it should run; NULL if there is none. The trainer may
 * end. */
demo_process *demo_cast_missing(demo_cast *c);

/* Ends all processes, the trainer first. */
void demo_cast_end(demo_cast *c);

/* The directory for the weights of server I. */
void demo_cast_weights(const demo_cast *c, size_t i, char out[DEMO_PATH_BYTES]);

#endif
