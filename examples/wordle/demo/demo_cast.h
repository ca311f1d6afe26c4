/* Who is in the demo, and where: processes, directories, addresses. */
#ifndef WORDLE_DEMO_CAST_H
#define WORDLE_DEMO_CAST_H

#include "demo_facts.h"
#include "demo_options.h"
#include "demo_process.h"

enum { DEMO_URL_BYTES = 256 };

typedef struct demo_cast {
    const demo_options *options;
    char dir[DEMO_PATH_BYTES / 4];      /* of all that is written */
    char programs[DEMO_PATH_BYTES / 4]; /* where wordle-* lie */
    char deltawire[DEMO_PATH_BYTES / 2];
    char store[DEMO_PATH_BYTES / 2];
    char env_url[DEMO_URL_BYTES];
    char rollout_urls[DEMO_MAX_SERVERS][DEMO_URL_BYTES];
    char control_urls[DEMO_MAX_SERVERS][DEMO_URL_BYTES]; /* for their agents alone */
    demo_process env, trainer;
    demo_process rollouts[DEMO_MAX_SERVERS], agents[DEMO_MAX_SERVERS];
} demo_cast;

/* Makes the directories and the model. */
dw_status demo_cast_prepare(demo_cast *c, const demo_options *options, const char *dir,
                            dw_error *err);

/* Starts everybody. */
dw_status demo_cast_start(demo_cast *c, dw_error *err);

/* Kills the one of that name and starts it anew, with the same command line; the address
 * stays. */
dw_status demo_cast_kill(demo_cast *c, const char *name, size_t n_name, dw_error *err);

/* Who has ended though it should run; NULL: nobody. The trainer may end. */
demo_process *demo_cast_missing(demo_cast *c);

/* Ends everybody, the trainer first. */
void demo_cast_end(demo_cast *c);

/* Where the weights of server I are kept. */
void demo_cast_weights(const demo_cast *c, size_t i, char out[DEMO_PATH_BYTES]);

#endif
