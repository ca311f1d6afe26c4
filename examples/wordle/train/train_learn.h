/* The part of a run that learns by playing. */
#ifndef WORDLE_TRAIN_LEARN_H
#define WORDLE_TRAIN_LEARN_H

#include "train_run.h"

/* Steps until there are as many as were asked for, or it is told to stop; then plays
 * --evaluate groups with the weights as they are, and says how they did. */
dw_status train_learn(train_run *run, dw_error *err);

#endif
