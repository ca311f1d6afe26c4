/* A training run: its data, and functions to open, save and close it. */
#ifndef WORDLE_TRAIN_RUN_H
#define WORDLE_TRAIN_RUN_H

#include "metrics.h"
#include "qwen.h"
#include "tokenizer.h"
#include "train_options.h"
#include "versions.h"
#include "words.h"

enum { TRAIN_KEPT_VERSIONS = 1024 };

typedef struct train_run {
    const train_options *options;
    tokenizer *tok;
    qwen_trainer *trainer;
    uint64_t n_elems; /* of the model */
    versions *stream;
    metrics *log;
    bool resumed;
    bool stopped;       /* a signal came */
    bool unsettled;     /* the last publish is not committed, or not known to be */
    char step_name[64]; /* of that */
    unsigned n_skipped; /* steps in a row whose gradient was no number */
    uint32_t n_vocab;
    struct {
        uint64_t version, steps;      /* that the weights of the version had */
    } published[TRAIN_KEPT_VERSIONS]; /* at version % TRAIN_KEPT_VERSIONS */
    char state_path[4096];
} train_run;

/* Opens everything: from the state of an earlier run if there is one, else from the
 * model's directory. If the stream already has versions, the weights are published,
 * because the newest version may differ. */
dw_status train_run_open(train_run *run, const train_options *options, dw_error *err);
void train_run_close(train_run *run);

/* Saves masters, moments and the number of steps. */
dw_status train_run_save(train_run *run, dw_error *err);

/* Waits for the version in progress, if any, and adds its result to LINE. After a signal
 * it gives the store a few seconds more. */
dw_status train_run_settle(train_run *run, json_t *line, dw_error *err);

/* If the last publish failed: publishes again, without waiting. */
dw_status train_run_publish_again(train_run *run, json_t *line, dw_error *err);

/* Waits as above, and tries again after a failure; DW_UNAVAILABLE if the weights are
 * still not in the stream after some tries, unless a signal asked to stop. */
dw_status train_run_finish(train_run *run, json_t *line, dw_error *err);

/* Steps between the weights of VERSION and the current ones; UINT64_MAX if not known: the
 * version is old, or of another stream. */
uint64_t train_run_lag(const train_run *run, uint64_t version);

/* Begins to publish the weights, with KIND and NUMBER as the step's name. */
dw_status train_run_publish(train_run *run, const char *kind, uint64_t number,
                            dw_error *err);

/* Waits for the version in progress, as above; makes a step with the current gradients,
 * and publishes if PUBLISH. NORM takes the gradient's norm: if it is not finite, nothing
 * changes, and ten times in a row are an error. */
dw_status train_run_step(train_run *run, float lr, bool publish, const char *kind,
                         uint64_t number, double *norm, json_t *line, dw_error *err);

/* Saves if --save-every requires it. */
dw_status train_run_save_if_due(train_run *run, dw_error *err);

/* Whether a signal asked it to end. */
bool train_run_stopped(train_run *run);

/* The digest of the weights as they are, 16 hexadecimal digits. */
dw_status train_run_digest(const train_run *run, char out[17], dw_error *err);

#endif
