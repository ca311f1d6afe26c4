/* The model that the soak tests publish. Its weights after step K depend only on the
 * run's seed and K, so every process knows what a version must be: the version's commit
 * has the step. */
#ifndef DW_SOAK_TRUTH_H
#define DW_SOAK_TRUTH_H

#include "deltawire/stream.h"

#define SOAK_TENSORS 14

typedef struct soak_model {
    dw_tensor tensors[SOAK_TENSORS];
    uint8_t *bytes; /* the memory of all of them */
    size_t n_bytes;
} soak_model;

/* Allocates the weights, zeroed. Ends the process if there is no memory. */
void soak_model_make(soak_model *model);
void soak_model_free(soak_model *model);

/* Sets the weights to those of STEP. About one in fifty differs from the step before;
 * after some steps none does. */
void soak_model_set(soak_model *model, uint64_t seed, uint64_t step);

/* The step of a version, from its commit; version 0 has none and is step 0. False if it
 * is no number. */
bool soak_step_of(const dw_version_info *info, uint64_t *step);

/* Whether TENSORS, in any order, are bit for bit the weights of STEP. Prints differences
 * on stderr. */
bool soak_is_step(const dw_tensor *tensors, size_t n_tensors, uint64_t seed,
                  uint64_t step);

/* The next pseudo-random number. */
uint64_t soak_random(uint64_t *state);
static inline uint64_t soak_below(uint64_t *state, uint64_t n)
{
    return soak_random(state) % n;
}

#endif
