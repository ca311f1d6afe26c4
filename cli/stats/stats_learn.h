/* Learns from past steps the rate at which each element changes in the next one.
 *
 *     density of a tensor      d  = (k + 1/2) / (n + 1)            of the step before
 *     by exponent              p_e  = (k_e + 1) / (n_e + 1 / d)
 *     by history               p_h  = (k_h + 1) / (n_h + 1 / d)
 *     by both                  p_eh = (k_eh + 1) / (n_eh + 1 / p_e)
 *     a row's factor           f = (k_r + 128) / (sum of p_eh + 128)
 *     a row                    p_r = (k_r + 128) / (n_r + 128 / d)
 *     all                      p_eh times the factors of its row and its column
 *
 * with n elements of which k changed. An estimate from few elements is smoothed towards
 * one from more elements, with the weight of one change. The counts of rows and columns
 * are small in each step, so they are added up from the second step on and smoothed more.
 * A prediction uses nothing of the step that it predicts.
 */
#ifndef CLI_STATS_LEARN_H
#define CLI_STATS_LEARN_H

#include "stats_table.h"

/* Rates are fixed point, so that sums do not depend on the order. */
#define STATS_RATE_ONE (1u << 30)

/* A tensor's prediction for one step. */
typedef struct stats_prediction {
    uint32_t rates[STATS_N_CELLS]; /* p_eh */
    int16_t bins[STATS_N_CELLS];   /* its bin */
    int8_t *row_shifts;            /* [n_rows] the row's factor, in bins; or NULL */
    int8_t *column_shifts;         /* [n_columns], or NULL */
} stats_prediction;

/* Changes of rows or columns in one step. */
typedef struct stats_line_counts {
    uint64_t *n_changed;
    uint64_t *expected; /* sum of rates */
} stats_line_counts;

/* Predicts a step of a tensor that has learnt. STEP counts from 0. OUT has no lines yet.
 * False if out of memory; release OUT also then. */
bool stats_predict(stats_prediction *out, const stats_tensor *tensor, unsigned step);
void stats_prediction_release(stats_prediction *prediction);

/* Sorts the tensor's elements into the bins of every predictor. */
void stats_judge(stats_bins bins[STATS_N_PREDICTORS], const stats_tensor *tensor,
                 unsigned step, const stats_table *table, const stats_line_counts *rows,
                 const stats_line_counts *columns);

/* Learns from the step. False if out of memory. */
bool stats_learn(stats_tensor *tensor, unsigned step, const stats_table *table,
                 const stats_line_counts *rows, const stats_line_counts *columns);

#endif
