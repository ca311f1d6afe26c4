#include "codec/class_model.h"

#include "codec/ans.h"

/* Predictions of the parameters: from class to class, the probability of a change and the
 * size of a move halve. Four steps of q are a factor of two. */
#define FIRST_Q 20
#define STEP_Q  4

static uint32_t zigzag(int32_t v)
{
    return (uint32_t)v << 1 ^ (uint32_t)(v >> 31);
}

static int32_t unzigzag(uint32_t v)
{
    return (int32_t)(v >> 1) ^ -(int32_t)(v & 1);
}

void dw_class_models_put(dw_bit_writer *w, const dw_class_model models[DW_CLASSES],
                         const uint32_t totals[DW_CLASSES])
{
    int32_t gap_q = FIRST_Q, move_q = FIRST_Q;
    for (unsigned c = 0; c < DW_CLASSES; c++) {
        const dw_class_model *m = &models[c];
        if (totals[c] == 0)
            continue;
        dw_put_bits(w, m->changes, 1);
        if (!m->changes)
            continue;
        dw_put_golomb(w, zigzag((int32_t)m->gap_q - (gap_q + STEP_Q)));
        gap_q = (int32_t)m->gap_q;
        dw_put_bits(w, m->far_moves, 1);
        if (!m->far_moves)
            continue;
        dw_put_golomb(w, zigzag((int32_t)m->move_q - (move_q - STEP_Q)));
        move_q = (int32_t)m->move_q;
    }
}

/* Reads one q; false if it is out of range. */
static bool get_q(dw_bit_reader *r, int32_t predicted, unsigned *q)
{
    int64_t v = (int64_t)predicted + unzigzag(dw_get_golomb(r));
    *q = (unsigned)v;
    return v >= 0 && v <= DW_ANS_MAX_Q;
}

bool dw_class_models_get(dw_bit_reader *r, dw_class_model models[DW_CLASSES],
                         const uint32_t totals[DW_CLASSES])
{
    int32_t gap_q = FIRST_Q, move_q = FIRST_Q;
    for (unsigned c = 0; c < DW_CLASSES; c++) {
        dw_class_model *m = &models[c];
        *m = (dw_class_model){0};
        if (totals[c] == 0 || !dw_get_bits(r, 1))
            continue;
        m->changes = true;
        if (!get_q(r, gap_q + STEP_Q, &m->gap_q))
            return false;
        gap_q = (int32_t)m->gap_q;
        m->far_moves = dw_get_bits(r, 1);
        if (!m->far_moves)
            continue;
        if (!get_q(r, move_q - STEP_Q, &m->move_q))
            return false;
        move_q = (int32_t)m->move_q;
    }
    return true;
}

/* Cost of coding moves with q, in 1/256 bit. */
static uint64_t move_cost(const uint64_t *moves, size_t n, size_t stride, unsigned q,
                          unsigned bits)
{
    const dw_ans_table *table = &dw_ans_tables()[dw_ans_table_of(q)];
    unsigned k = dw_ans_bucket_bits(q);
    uint64_t cost = 0;
    for (size_t i = 0; i < n; i += stride) {
        uint64_t bucket = moves[i] >> 1 >> k;
        cost += bucket < DW_ANS_FAR ? table->cost[bucket] + 256 * k
                                    : table->cost[DW_ANS_FAR] + 256 * bits;
    }
    return cost;
}

/* Fits a geometric distribution by the mean, fits again without the values that the first
 * fit would escape, and then takes the cheapest neighbour on a sample. */
static unsigned fit_moves(const uint64_t *moves, size_t n, unsigned bits)
{
    uint64_t limit = ~0ull;
    unsigned q = 0;
    for (int round = 0; round < 3; round++) {
        double sum = 0;
        size_t n_near = 0;
        for (size_t i = 0; i < n; i++) {
            if (moves[i] >> 1 < limit) {
                sum += (double)(moves[i] >> 1);
                n_near++;
            }
        }
        q = n_near ? dw_ans_fit((uint32_t)(4294967295.0 * (sum / (sum + (double)n_near))))
                   : DW_ANS_MAX_Q;
        limit = (uint64_t)DW_ANS_FAR << dw_ans_bucket_bits(q);
    }
    size_t stride = n / 128 + 1;
    unsigned best = q;
    uint64_t best_cost = ~0ull;
    for (unsigned try = q > 3 ? q - 3 : 0; try <= q + 3 && try <= DW_ANS_MAX_Q; try++) {
        uint64_t cost = move_cost(moves, n, stride, try, bits);
        if (cost < best_cost) {
            best = try;
            best_cost = cost;
        }
    }
    return best;
}

dw_class_model dw_class_model_fit(const uint64_t *moves, size_t n_changes, uint32_t total,
                                  unsigned bits)
{
    dw_class_model m = {.changes = n_changes > 0};
    if (!m.changes)
        return m;
    m.gap_q = dw_ans_fit((uint32_t)(((uint64_t)(total - n_changes) << 32) / total));
    uint64_t all = 0;
    for (size_t i = 0; i < n_changes; i++)
        all |= moves[i];
    m.far_moves = all > 1;
    if (m.far_moves)
        m.move_q = fit_moves(moves, n_changes, bits);
    return m;
}
