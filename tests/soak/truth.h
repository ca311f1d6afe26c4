/* The model that the soak tests publish. Its weights after step K of a run are a function
 * of the run's seed and K alone, so that every process can tell what a version has to be:
 * the step is written into the version's commit. */
#ifndef DW_SOAK_TRUTH_H
#define DW_SOAK_TRUTH_H

#include "deltawire/stream.h"

#define SOAK_TENSORS 14

typedef struct soak_model {
    dw_tensor tensors[SOAK_TENSORS];
    uint8_t *bytes; /* behind all of them */
    size_t n_bytes;
} soak_model;

/* Room for the weights, zeroed. Ends the process where there is no memory. */
void soak_model_make(soak_model *model);
void soak_model_free(soak_model *model);

/* Sets the weights to those of STEP. About one in fifty differs from the step before;
 * after some steps none does. */
void soak_model_set(soak_model *model, uint64_t seed, uint64_t step);

/* The step of a version: what its commit says; version 0 says nothing and is step 0.
 * False where it is no number. */
bool soak_step_of(const dw_version_info *info, uint64_t *step);

/* Whether TENSORS, in any order, are bit for bit the weights of STEP. Says on stderr what
 * differs. */
bool soak_is_step(const dw_tensor *tensors, size_t n_tensors, uint64_t seed,
                  uint64_t step);

/* One of a stream of pseudo-random numbers. */
uint64_t soak_random(uint64_t *state);
static inline uint64_t soak_below(uint64_t *state, uint64_t n)
{
    return soak_random(state) % n;
}

#endif
