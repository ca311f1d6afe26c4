/* A training run: what it holds, and how it is opened, saved and closed. */
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
    bool unsettled;     /* what was published last is not committed, or not known to be */
    char step_name[64]; /* of that */
    unsigned n_skipped; /* steps in a row whose gradient was no number */
    uint32_t n_vocab;
    struct {
        uint64_t version, steps;      /* that the weights of the version had */
    } published[TRAIN_KEPT_VERSIONS]; /* at version % TRAIN_KEPT_VERSIONS */
    char state_path[4096];
} train_run;

/* Opens all of it: from the state of an earlier run where there is one, else from the
 * model's directory. Where the stream has versions already, the weights are published:
 * its newest may be others. */
dw_status train_run_open(train_run *run, const train_options *options, dw_error *err);
void train_run_close(train_run *run);

/* Saves masters, moments and the number of steps. */
dw_status train_run_save(train_run *run, dw_error *err);

/* Settles the version under way, if any; adds what became of it to LINE. Asked to stop,
 * it gives the store a few seconds more. */
dw_status train_run_settle(train_run *run, json_t *line, dw_error *err);

/* Where what was published last failed: publishes again, and waits for nothing. */
dw_status train_run_publish_again(train_run *run, json_t *line, dw_error *err);

/* Settles as above, and tries again where that fails; DW_UNAVAILABLE where the weights
 * are still not in the stream after some tries, unless it was asked to stop. */
dw_status train_run_finish(train_run *run, json_t *line, dw_error *err);

/* Steps between the weights of VERSION and those at hand; UINT64_MAX: not known, so the
 * version is an old one, or none of this stream's. */
uint64_t train_run_lag(const train_run *run, uint64_t version);

/* Begins to publish the weights, with KIND and NUMBER as the step's name. */
dw_status train_run_publish(train_run *run, const char *kind, uint64_t number,
                            dw_error *err);

/* Settles what is under way, as above; steps with the gradients that are there, and
 * publishes where PUBLISH. NORM gets that of the gradient: where it is not finite nothing
 * moves, and ten times in a row are an error. */
dw_status train_run_step(train_run *run, float lr, bool publish, const char *kind,
                         uint64_t number, double *norm, json_t *line, dw_error *err);

/* Saves where --save-every says so. */
dw_status train_run_save_if_due(train_run *run, dw_error *err);

/* Whether a signal asked it to end. */
bool train_run_stopped(train_run *run);

/* The digest of the weights as they are, 16 hexadecimal digits. */
dw_status train_run_digest(const train_run *run, char out[17], dw_error *err);

#endif
