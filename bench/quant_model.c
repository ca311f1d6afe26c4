#include "quant_model.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/parallel.h"

/* The row where a chunk that begins at FIRST ends. */
static uint64_t chunk_end(const dw_quant_plan *plan, size_t weight, uint64_t first,
                          uint64_t n_elems)
{
    const dw_quant_entry *e = &plan->entries[weight];
    const uint64_t n_rows = e->n_matrices * e->n_rows;
    uint64_t end = dw_quant_unit_end(plan, weight, first);
    while (end < n_rows) {
        const uint64_t next = dw_quant_unit_end(plan, weight, end);
        if ((next - first) * e->n_columns > n_elems)
            break;
        end = next;
    }
    return end;
}

/* Lists the chunks; only counts them if OUT is NULL. */
static size_t list_chunks(quant_chunk *out, const dw_quant_plan *plan, uint64_t n_elems)
{
    size_t n = 0;
    for (size_t w = 0; w < plan->n_entries; w++) {
        const dw_quant_entry *e = &plan->entries[w];
        if (e->role != DW_QUANT_WEIGHT)
            continue;
        for (uint64_t row = 0, end; row < e->n_matrices * e->n_rows; row = end, n++) {
            end = chunk_end(plan, w, row, n_elems);
            if (out)
                out[n] = (quant_chunk){w, row, end - row, (end - row) * e->n_columns};
        }
    }
    return n;
}

dw_status quant_model_open(quant_model *out, const dw_quant_plan *plan, uint64_t n_elems,
                           dw_error *err)
{
    *out = (quant_model){.plan = plan, .n_chunks = list_chunks(NULL, plan, n_elems)};
    out->tensors = calloc(plan->n_entries, sizeof *out->tensors);
    out->chunks = calloc(out->n_chunks, sizeof *out->chunks);
    bool have_memory = out->tensors && out->chunks;
    for (size_t i = 0; have_memory && i < plan->n_entries; i++) {
        out->tensors[i] = plan->entries[i].tensor;
        have_memory = (out->tensors[i].data = calloc(out->tensors[i].n_bytes, 1)) != NULL;
    }
    if (!have_memory) {
        quant_model_release(out);
        return dw_fail_memory(err, NULL);
    }
    list_chunks(out->chunks, plan, n_elems);
    return DW_OK;
}

void quant_model_release(quant_model *m)
{
    for (size_t i = 0; m->tensors && i < m->plan->n_entries; i++)
        free(m->tensors[i].data);
    free(m->tensors);
    free(m->chunks);
    *m = (quant_model){0};
}

uint8_t *quant_model_elems(const quant_model *m, size_t c)
{
    const quant_chunk *chunk = &m->chunks[c];
    return (uint8_t *)m->tensors[chunk->weight].data +
           chunk->first_row * m->plan->entries[chunk->weight].n_columns;
}

dw_status quant_model_chunk(const quant_model *m, size_t c, const dw_tensor *source,
                            void *out, dw_error *err)
{
    const quant_chunk *chunk = &m->chunks[c];
    const dw_quant_entry *e = &m->plan->entries[chunk->weight];
    const dw_tensor *from = &source[e->source];
    const uint64_t width = from->dtype == DW_F32 ? 4 : 2;
    float *scales = m->tensors[e->partner].data;
    scales += dw_quant_scales_before(m->plan, chunk->weight, chunk->first_row);
    return dw_quant_rows(m->plan, chunk->weight,
                         (const uint8_t *)from->data +
                             chunk->first_row * e->n_columns * width,
                         chunk->first_row, chunk->n_rows,
                         out ? out : quant_model_elems(m, c), scales, err);
}

typedef struct filling {
    quant_model *model;
    const dw_tensor *source;
} filling;

static dw_status fill_chunk(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const filling *f = context;
    return quant_model_chunk(f->model, i, f->source, NULL, err);
}

dw_status quant_model_fill(quant_model *m, const dw_tensor *source, unsigned n_threads,
                           dw_error *err)
{
    filling f = {m, source};
    return dw_parallel(dw_worker_count(n_threads, m->n_chunks), m->n_chunks, fill_chunk,
                       &f, NULL, err);
}
