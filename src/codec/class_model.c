#include "codec/class_model.h"

#include "codec/ans.h"

/* Cost of coding moves with q, in 1/256 bit. */
static uint64_t move_cost(const uint64_t *moves, size_t n, size_t stride, unsigned q,
                          unsigned bits)
{
    const dw_ans_table *table = &dw_ans_tables()[dw_ans_table_of(q)];
    unsigned k = dw_ans_bucket_bits(q);
    uint64_t cost = 0;
    for (size_t i = 0; i < n; i += stride)
        cost += dw_class_move_cost(moves[i], k, table->cost, bits);
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
        q = dw_class_move_q(dw_ans_stays(), sum, n_near);
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
    m.gap_q = dw_class_gap_q(dw_ans_stays(), n_changes, total);
    uint64_t all = 0;
    for (size_t i = 0; i < n_changes; i++)
        all |= moves[i];
    m.far_moves = all > 1;
    if (m.far_moves)
        m.move_q = fit_moves(moves, n_changes, bits);
    return m;
}
