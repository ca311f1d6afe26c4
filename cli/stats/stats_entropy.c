#include "stats_entropy.h"

#include <math.h>

double stats_symbol_bits(uint64_t k, uint64_t n)
{
    return k == 0 ? 0 : (double)k * log2((double)n / (double)k);
}

double stats_binary_bits(uint64_t n, uint64_t k)
{
    return stats_symbol_bits(k, n) + stats_symbol_bits(n - k, n);
}

double stats_bins_bits(const stats_bins *bins)
{
    double bits = 0;
    for (unsigned i = 0; i < STATS_N_BINS; i++)
        bits += stats_binary_bits(bins->n_elems[i], bins->n_changed[i]);
    return bits;
}

void stats_bins_add(stats_bins *to, const stats_bins *more)
{
    stats_add(to->n_elems, more->n_elems, STATS_N_BINS);
    stats_add(to->n_changed, more->n_changed, STATS_N_BINS);
}

/* Changes in the first bins up to I, and their share of the elements there. */
typedef struct prefix {
    uint64_t n_elems, n_changed;
} prefix;

static double extend(prefix *p, const stats_bins *bins, unsigned i)
{
    p->n_elems += bins->n_elems[i];
    p->n_changed += bins->n_changed[i];
    return p->n_elems > 0 ? (double)p->n_changed / (double)p->n_elems : 0;
}

double stats_bins_recall(const stats_bins *bins, double precision)
{
    prefix p = {0};
    double n_found = -1;
    for (unsigned i = 0; i < STATS_N_BINS; i++)
        if (extend(&p, bins, i) >= precision && p.n_changed > 0)
            n_found = (double)p.n_changed;
    return n_found < 0 ? -1 : n_found / (double)p.n_changed;
}

double stats_bins_best_precision(const stats_bins *bins)
{
    prefix p = {0};
    double best = 0;
    for (unsigned i = 0; i < STATS_N_BINS; i++) {
        double precision = extend(&p, bins, i);
        best = precision > best ? precision : best;
    }
    return best;
}
