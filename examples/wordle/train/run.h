/* A training run: the model, its stream, its saved state and its metrics.
 *
 * A version is encoded, uploaded and committed while the trainer waits for the next batch
 * and computes it. It is committed before the weights change again.
 */
#ifndef WORDLE_RUN_H
#define WORDLE_RUN_H

#include <jansson.h>
#include <stdio.h>

#include "model.h"

enum { RUN_KEPT_VERSIONS = 1024, RUN_SAVE_EVERY = 20 };

typedef struct run {
    FILE *log; /* of metrics */
    uint64_t began_ms, said_ms;
    char state_path[4096];
    model_trainer *trainer;
    dw_store *store;
    dw_publisher *publisher;
    uint64_t ticket;                     /* of the version in progress */
    bool under_way;                      /* there is one */
    bool stopped;                        /* a signal came */
    char step_name[64];                  /* of the last publish */
    uint64_t n_sent, n_bytes, n_changed; /* versions, and their sums */
    unsigned n_skipped;                  /* steps in a row whose gradient was no number */
    struct {
        uint64_t version, steps;    /* that the weights of the version had */
    } published[RUN_KEPT_VERSIONS]; /* at version % RUN_KEPT_VERSIONS */
} run;

/* Opens everything: from the state of an earlier run if there is one, else with random
 * weights. If the stream already has versions, the weights are published, because the
 * newest version may differ. METRICS is a file to append to; NULL: standard output. */
dw_status run_open(run *r, const char *store, const char *state_dir, const char *metrics,
                   uint64_t seed, dw_error *err);
void run_close(run *r);

/* Writes {"event": EVENT, "t": seconds, ...LINE}; owns LINE. */
void run_log(run *r, const char *event, json_t *line);

/* Adds a number to LINE; null if it is not finite. */
void run_put(json_t *line, const char *name, double number);
double run_seconds(const run *r);

/* Prints a line for people, if the metrics go to a file; if OFTEN, then only every few
 * seconds. */
__attribute__((format(printf, 3, 4))) void run_say(run *r, bool often, const char *format,
                                                   ...);

/* Saves masters, moments and the number of steps. */
dw_status run_save(run *r, dw_error *err);

/* Begins to publish the weights, with KIND and NUMBER as the step's name. */
dw_status run_publish(run *r, const char *kind, uint64_t number, dw_error *err);

/* Waits until the version in progress, if any, is committed. While the store fails, it is
 * published again each second. After a signal the store gets a few seconds more.
 * DW_CONFLICT if another trainer took the stream over. */
dw_status run_settle(run *r, dw_error *err);

/* Settles; makes a step with the current gradients, publishes if PUBLISH, and saves if it
 * is time. NORM takes the gradient's norm: if it is not finite, nothing changes, and ten
 * times in a row are an error. */
dw_status run_step(run *r, float lr, bool publish, const char *kind, uint64_t number,
                   double *norm, dw_error *err);

/* Steps between the weights of VERSION and the current ones; UINT64_MAX if not known: the
 * version is old, or of another stream. */
uint64_t run_lag(const run *r, uint64_t version);

/* Whether a signal asked it to end. */
bool run_stopped(run *r);

/* The digest of the weights as they are, 16 hexadecimal digits. */
dw_status run_digest(const run *r, char out[17], dw_error *err);

#endif
