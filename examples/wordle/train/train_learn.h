/* The part of a run that learns by playing. */
#ifndef WORDLE_TRAIN_LEARN_H
#define WORDLE_TRAIN_LEARN_H

#include "train_run.h"

/* Makes the requested number of steps, or stops at a signal; then plays --evaluate groups
 * with the final weights and reports the results. */
dw_status train_learn(train_run *run, dw_error *err);

#endif
