/* The command line of wordle-demo. */
#ifndef WORDLE_DEMO_OPTIONS_H
#define WORDLE_DEMO_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DEMO_MAX_KILLS = 256 };

/* NAME ("trainer", "rollout-0", "agent-0", "env") gets SIGKILL after STEP, and is started
 * again. */
typedef struct demo_kill {
    const char *name; /* up to the '@' */
    size_t n_name;
    uint64_t step;
} demo_kill;

typedef struct demo_options {
    const char *store; /* NULL: a directory that is removed */
    const char *deltawire;
    const char *record; /* a directory for the measurements; may be NULL */
    const char *on_trainer, *on_rollouts, *on_env; /* put before their commands */
    const char *env_host, *rollout_host;           /* to listen on */
    size_t n_servers;
    uint64_t n_warmup, n_steps, n_answers, seed;
    const char *lr; /* NULL: the trainer's default */
    bool no_sync;
    bool keep; /* the directory */
    demo_kill kills[DEMO_MAX_KILLS];
    size_t n_kills;
} demo_options;

/* Ends the program with 0 after --help, with 2 after an error. */
demo_options demo_options_read(int argc, char **argv);

#endif
