#include "stats_learn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "stats_entropy.h"

#define BINS_AN_OCTAVE 8
#define LINE_WEIGHT    128 /* a row needs about this many changes to count for much */
#define MAX_SHIFT      64  /* a factor of 256 */

/* ---- bins ---- */

static int bin_of(double rate)
{
    long bin = lround(-BINS_AN_OCTAVE * log2(rate));
    return bin < 0 ? 0 : bin >= STATS_N_BINS ? STATS_N_BINS - 1 : (int)bin;
}

static double rate_of(uint32_t fixed)
{
    return (double)fixed / STATS_RATE_ONE;
}

static uint32_t fixed_of(double rate)
{
    long fixed = lround(rate * STATS_RATE_ONE);
    return fixed < 1 ? 1 : (uint32_t)fixed;
}

/* ---- the array of a tensor's rates ----
 *
 *     [n_exponents][STATS_N_HISTORIES]  p_eh
 *     [n_exponents]                     p_e
 *     [STATS_N_HISTORIES]               p_h
 */

static bool knows(const stats_tensor *t, unsigned exponent)
{
    return exponent >= t->first_exponent && exponent - t->first_exponent < t->n_exponents;
}

static double cell_rate(const stats_tensor *t, unsigned cell)
{
    const unsigned e = cell / STATS_N_HISTORIES, h = cell % STATS_N_HISTORIES;
    return knows(t, e)
               ? rate_of(t->rates[(e - t->first_exponent) * STATS_N_HISTORIES + h])
               : t->density;
}

static double exponent_rate(const stats_tensor *t, unsigned e)
{
    const uint32_t *rates = t->rates + (size_t)t->n_exponents * STATS_N_HISTORIES;
    return knows(t, e) ? rate_of(rates[e - t->first_exponent]) : t->density;
}

static double history_rate(const stats_tensor *t, unsigned h)
{
    return rate_of(t->rates[t->n_exponents * (STATS_N_HISTORIES + 1) + h]);
}

/* ---- predicting ---- */

/* Lines have counts from the second step on. */
static bool has_lines(unsigned step)
{
    return step >= 2;
}

static int8_t line_shift(const stats_line *line)
{
    double factor = (line->n_changed + LINE_WEIGHT) / (line->n_expected + LINE_WEIGHT);
    long shift = -lround(BINS_AN_OCTAVE * log2(factor));
    return (int8_t)(shift < -MAX_SHIFT  ? -MAX_SHIFT
                    : shift > MAX_SHIFT ? MAX_SHIFT
                                        : shift);
}

static bool make_shifts(int8_t **out, const stats_line *lines, uint64_t n_lines,
                        unsigned step)
{
    *out = NULL;
    if (!lines)
        return true;
    *out = calloc((size_t)n_lines, 1);
    for (uint64_t i = 0; *out && has_lines(step) && i < n_lines; i++)
        (*out)[i] = line_shift(&lines[i]);
    return *out;
}

bool stats_predict(stats_prediction *out, const stats_tensor *t, unsigned step)
{
    for (unsigned c = 0; c < STATS_N_CELLS; c++) {
        double rate = cell_rate(t, c);
        out->rates[c] = fixed_of(rate);
        out->bins[c] = (int16_t)bin_of(rate);
    }
    return make_shifts(&out->row_shifts, t->rows, t->n_rows, step) &&
           make_shifts(&out->column_shifts, t->columns, t->n_columns, step);
}

void stats_prediction_release(stats_prediction *prediction)
{
    free(prediction->row_shifts);
    free(prediction->column_shifts);
    prediction->row_shifts = prediction->column_shifts = NULL;
}

/* ---- judging ---- */

static void put(stats_bins *bins, double rate, uint64_t n_elems, uint64_t n_changed)
{
    int bin = bin_of(rate);
    bins->n_elems[bin] += n_elems;
    bins->n_changed[bin] += n_changed;
}

static void judge_lines(stats_bins *bins, const stats_tensor *t, unsigned step,
                        const stats_line *lines, uint64_t n_lines,
                        const stats_line_counts *now, const stats_counts *counts)
{
    if (!lines) {
        put(bins, t->density, counts->n_elems, counts->n_changed);
        return;
    }
    const uint64_t n_a_line = t->n_elems / n_lines;
    const double n_seen = (double)n_a_line * (step - 1);
    for (uint64_t i = 0; i < n_lines; i++)
        put(bins,
            (lines[i].n_changed + LINE_WEIGHT) / (n_seen + LINE_WEIGHT / t->density),
            n_a_line, now->n_changed[i]);
}

void stats_judge(stats_bins bins[STATS_N_PREDICTORS], const stats_tensor *t,
                 unsigned step, const stats_table *table, const stats_line_counts *rows,
                 const stats_line_counts *columns)
{
    if (!t->rates || !has_lines(step))
        return;
    const stats_counts *counts = &table->counts;
    put(&bins[STATS_BY_TENSOR], t->density, counts->n_elems, counts->n_changed);
    for (unsigned c = 0; c < STATS_N_CELLS; c++) {
        const uint64_t n = table->n_elems[c], k = table->n_changed[c];
        if (n == 0)
            continue;
        put(&bins[STATS_BY_EXPONENT], exponent_rate(t, c / STATS_N_HISTORIES), n, k);
        put(&bins[STATS_BY_HISTORY], history_rate(t, c % STATS_N_HISTORIES), n, k);
        put(&bins[STATS_BY_EXPONENT_HISTORY], cell_rate(t, c), n, k);
    }
    judge_lines(&bins[STATS_BY_ROW], t, step, t->rows, t->n_rows, rows, counts);
    judge_lines(&bins[STATS_BY_COLUMN], t, step, t->columns, t->n_columns, columns,
                counts);
    stats_bins_add(&bins[STATS_BY_ALL], &table->bins);
}

/* ---- learning ---- */

static double drawn_rate(uint64_t n, uint64_t k, double towards)
{
    return ((double)k + 1) / ((double)n + 1 / towards);
}

static void learn_exponent(stats_tensor *t, const stats_table *table, unsigned e,
                           uint64_t n, uint64_t k)
{
    const double rate = drawn_rate(n, k, t->density);
    const unsigned at = e - t->first_exponent;
    t->rates[t->n_exponents * STATS_N_HISTORIES + at] = fixed_of(rate);
    for (unsigned h = 0; h < STATS_N_HISTORIES; h++) {
        const unsigned cell = e * STATS_N_HISTORIES + h;
        t->rates[at * STATS_N_HISTORIES + h] =
            fixed_of(drawn_rate(table->n_elems[cell], table->n_changed[cell], rate));
    }
}

static void learn_history(stats_tensor *t, const stats_table *table, unsigned h)
{
    uint64_t n = 0, k = 0;
    for (unsigned e = 0; e < STATS_MAX_EXPONENTS; e++) {
        n += table->n_elems[e * STATS_N_HISTORIES + h];
        k += table->n_changed[e * STATS_N_HISTORIES + h];
    }
    t->rates[t->n_exponents * (STATS_N_HISTORIES + 1) + h] =
        fixed_of(drawn_rate(n, k, t->density));
}

static bool learn_rates(stats_tensor *t, const stats_table *table)
{
    uint64_t n[STATS_MAX_EXPONENTS], k[STATS_MAX_EXPONENTS];
    unsigned first = 0, end = STATS_MAX_EXPONENTS;
    stats_table_exponents(table, n, k);
    while (first < end && n[first] == 0)
        first++;
    while (end > first && n[end - 1] == 0)
        end--;
    const size_t n_rates =
        (size_t)(end - first) * (STATS_N_HISTORIES + 1) + STATS_N_HISTORIES;
    uint32_t *rates = realloc(t->rates, n_rates * sizeof *rates);
    if (!rates)
        return false;
    t->rates = rates;
    t->first_exponent = first;
    t->n_exponents = end - first;
    t->density =
        ((double)table->counts.n_changed + 0.5) / ((double)table->counts.n_elems + 1);
    for (unsigned e = first; e < end; e++)
        learn_exponent(t, table, e, n[e], k[e]);
    for (unsigned h = 0; h < STATS_N_HISTORIES; h++)
        learn_history(t, table, h);
    return true;
}

static void learn_lines(stats_line *lines, uint64_t n_lines, const stats_line_counts *now)
{
    for (uint64_t i = 0; lines && i < n_lines; i++) {
        lines[i].n_changed += (double)now->n_changed[i];
        lines[i].n_expected += (double)now->expected[i] / STATS_RATE_ONE;
    }
}

bool stats_learn(stats_tensor *t, unsigned step, const stats_table *table,
                 const stats_line_counts *rows, const stats_line_counts *columns)
{
    if (step > 0) { /* the first step had no rates to compare with */
        learn_lines(t->rows, t->n_rows, rows);
        learn_lines(t->columns, t->n_columns, columns);
    }
    return learn_rates(t, table);
}
