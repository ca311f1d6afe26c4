/* A thread that publishes versions of the model of soak/truth.h. Before each it writes
 * the digest to a file. */
#ifndef DW_ENGINE_TRAINER_H
#define DW_ENGINE_TRAINER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "soak/process.h"

typedef struct trainer {
    char store[SOAK_PATH], spool[SOAK_PATH];
    char truth[SOAK_PATH]; /* lines `VERSION DIGEST` */
    uint64_t seed, n_versions;
    uint64_t pace_ms; /* between two versions, at least */

    pthread_t thread;
    atomic_bool stop;
    atomic_int state;
} trainer;

/* Returns when version 0 is committed. */
bool trainer_start(trainer *t);

/* Whether it still publishes. */
bool trainer_works(trainer *t);

/* False if not all versions could be published. */
bool trainer_end(trainer *t);

#endif
