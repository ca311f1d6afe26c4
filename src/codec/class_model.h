/* The parameters of the `class` codec: how the changes of one class are distributed.
 * Shared with CUDA devices, except for dw_class_model_fit. */
#ifndef DW_CODEC_CLASS_MODEL_H
#define DW_CODEC_CLASS_MODEL_H

#include "base/bits.h"
#include "codec/ans_step.h"
#include "kernel/class_map.h"

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

/* The q of gaps, if N_CHANGES of TOTAL elements changed. STAYS as in dw_ans_fit. */
DW_INLINE unsigned dw_class_gap_q(const uint32_t *stays, uint64_t n_changes,
                                  uint32_t total)
{
    return dw_ans_fit(stays, (uint32_t)(((uint64_t)(total - n_changes) << 32) / total));
}

/* The first guess at the q of moves: N_NEAR of them are not far, and SUM is the sum of
 * their sizes, less 1 each. */
DW_INLINE unsigned dw_class_move_q(const uint32_t *stays, double sum, uint64_t n_near)
{
    return n_near ? dw_ans_fit(stays,
                               (uint32_t)(4294967295.0 * (sum / (sum + (double)n_near))))
                  : DW_ANS_MAX_Q;
}

/* Cost of a move in 1/256 bit, if buckets have K bits. COSTS are those of the table. */
DW_INLINE uint32_t dw_class_move_cost(uint64_t move, unsigned k, const uint16_t *costs,
                                      unsigned bits)
{
    const uint64_t bucket = move >> 1 >> k;
    return bucket < DW_ANS_FAR ? costs[bucket] + 256 * k : costs[DW_ANS_FAR] + 256 * bits;
}

/* Predictions of the parameters: from class to class, the probability of a change and the
 * size of a move halve. Four steps of q are a factor of two. */
#define DW_FIRST_Q 20
#define DW_STEP_Q  4

DW_INLINE uint32_t dw_zigzag(int32_t v)
{
    return (uint32_t)v << 1 ^ (uint32_t)(v >> 31);
}

DW_INLINE int32_t dw_unzigzag(uint32_t v)
{
    return (int32_t)(v >> 1) ^ -(int32_t)(v & 1);
}

/* Writes the models of all classes that have elements. */
DW_INLINE void dw_class_models_put(dw_bit_writer *w,
                                   const dw_class_model models[DW_CLASSES],
                                   const uint32_t totals[DW_CLASSES])
{
    int32_t gap_q = DW_FIRST_Q, move_q = DW_FIRST_Q;
    for (unsigned c = 0; c < DW_CLASSES; c++) {
        const dw_class_model *m = &models[c];
        if (totals[c] == 0)
            continue;
        dw_put_bits(w, m->changes, 1);
        if (!m->changes)
            continue;
        dw_put_golomb(w, dw_zigzag((int32_t)m->gap_q - (gap_q + DW_STEP_Q)));
        gap_q = (int32_t)m->gap_q;
        dw_put_bits(w, m->far_moves, 1);
        if (!m->far_moves)
            continue;
        dw_put_golomb(w, dw_zigzag((int32_t)m->move_q - (move_q - DW_STEP_Q)));
        move_q = (int32_t)m->move_q;
    }
}

/* Reads one q; false if it is out of range. */
DW_INLINE bool dw_get_q(dw_bit_reader *r, int32_t predicted, unsigned *q)
{
    int64_t v = (int64_t)predicted + dw_unzigzag(dw_get_golomb(r));
    *q = (unsigned)v;
    return v >= 0 && v <= DW_ANS_MAX_Q;
}

/* Reads them; false if a parameter is out of range. */
DW_INLINE bool dw_class_models_get(dw_bit_reader *r, dw_class_model models[DW_CLASSES],
                                   const uint32_t totals[DW_CLASSES])
{
    int32_t gap_q = DW_FIRST_Q, move_q = DW_FIRST_Q;
    for (unsigned c = 0; c < DW_CLASSES; c++) {
        dw_class_model *m = &models[c];
        m->changes = m->far_moves = false;
        m->gap_q = m->move_q = 0;
        if (totals[c] == 0 || !dw_get_bits(r, 1))
            continue;
        m->changes = true;
        if (!dw_get_q(r, gap_q + DW_STEP_Q, &m->gap_q))
            return false;
        gap_q = (int32_t)m->gap_q;
        m->far_moves = dw_get_bits(r, 1);
        if (!m->far_moves)
            continue;
        if (!dw_get_q(r, move_q - DW_STEP_Q, &m->move_q))
            return false;
        move_q = (int32_t)m->move_q;
    }
    return true;
}

#endif
