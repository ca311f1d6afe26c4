/* A training run: what it holds, and how it is opened, saved and closed. */
#ifndef WORDLE_TRAIN_RUN_H
#define WORDLE_TRAIN_RUN_H

#include "metrics.h"
#include "qwen.h"
#include "tokenizer.h"
#include "train_options.h"
#include "versions.h"
#include "words.h"

typedef struct train_run {
    const train_options *options;
    tokenizer *tok;
    qwen_trainer *trainer;
    uint64_t n_elems; /* of the model */
    versions *stream;
    metrics *log;
    bool resumed;
    bool stopped; /* a signal came */
    char state_path[4096];
} train_run;

/* Opens all of it: from the state of an earlier run where there is one, else from the
 * model's directory. A run that goes on publishes the weights that it has, for the stream
 * may be ahead of them. */
dw_status train_run_open(train_run *run, const train_options *options, dw_error *err);
void train_run_close(train_run *run);

/* Saves masters, moments and the number of steps. */
dw_status train_run_save(train_run *run, dw_error *err);

/* Settles the version under way, if any; adds what became of it to LINE. */
dw_status train_run_settle(train_run *run, json_t *line, dw_error *err);

/* Begins to publish the weights, with KIND and NUMBER as the step's name. */
dw_status train_run_publish(train_run *run, const char *kind, uint64_t number,
                            dw_error *err);

/* Settles what is under way, as above; steps with the gradients that are there, and
 * publishes where PUBLISH. NORM gets that of the gradient. */
dw_status train_run_step(train_run *run, float lr, bool publish, const char *kind,
                         uint64_t number, double *norm, json_t *line, dw_error *err);

/* Saves where --save-every says so. */
dw_status train_run_save_if_due(train_run *run, dw_error *err);

/* Whether SIGINT or SIGTERM asked it to end. */
bool train_run_stopped(train_run *run);

/* The digest of the weights as they are, 16 hexadecimal digits. */
dw_status train_run_digest(const train_run *run, char out[17], dw_error *err);

#endif
