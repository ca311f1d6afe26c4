/* The parameters of the `class` codec: how the changes of one class are distributed. */
#ifndef DW_CODEC_CLASS_MODEL_H
#define DW_CODEC_CLASS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bits.h"
#include "kernel/kernel.h"

/* The parameters of one class. */
typedef struct dw_class_model {
    bool changes;   /* any element of the class changed */
    bool far_moves; /* any element moved by more than one step */
    unsigned gap_q;
    unsigned move_q;
} dw_class_model;

/* The model that codes N_CHANGES moves among TOTAL elements of BITS bits cheaply. */
dw_class_model dw_class_model_fit(const uint64_t *moves, size_t n_changes, uint32_t total,
                                  unsigned bits);

/* Writes and reads the models of all classes that have elements. Reading fails if a
 * parameter is out of range. */
void dw_class_models_put(dw_bit_writer *w, const dw_class_model models[DW_CLASSES],
                         const uint32_t totals[DW_CLASSES]);
bool dw_class_models_get(dw_bit_reader *r, dw_class_model models[DW_CLASSES],
                         const uint32_t totals[DW_CLASSES]);

#endif
