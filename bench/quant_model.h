/* Quantised models in memory, for `make bench-quantised`. */
#ifndef DW_BENCH_QUANT_MODEL_H
#define DW_BENCH_QUANT_MODEL_H

#include <deltawire/deltawire.h>

#include "quant/quant.h"

/* Rows of a weight that are quantised and compared together. */
typedef struct quant_chunk {
    size_t weight; /* an entry of the plan */
    uint64_t first_row, n_rows;
    uint64_t n_elems;
} quant_chunk;

typedef struct quant_model {
    const dw_quant_plan *plan;
    dw_tensor *tensors; /* those of the plan, with data */
    quant_chunk *chunks;
    size_t n_chunks;
} quant_model;

/* Makes room for the quantised model, and cuts it into chunks of about N_ELEMS. */
dw_status quant_model_open(quant_model *out, const dw_quant_plan *plan, uint64_t n_elems,
                           dw_error *err);
void quant_model_release(quant_model *m);

/* Quantises chunk C of SOURCE, whose tensors are those that the plan was made of. OUT
 * takes its elements; NULL: the model's own place. Scales go to the model. */
dw_status quant_model_chunk(const quant_model *m, size_t c, const dw_tensor *source,
                            void *out, dw_error *err);

/* Quantises all of SOURCE on N_THREADS. */
dw_status quant_model_fill(quant_model *m, const dw_tensor *source, unsigned n_threads,
                           dw_error *err);

/* The elements of a chunk in the model. */
uint8_t *quant_model_elems(const quant_model *m, size_t c);

#endif
