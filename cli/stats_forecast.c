/* Other learning rates and other models.
 *
 * A master weight moves by u. Its rounded copy changes if u crosses the edge of a
 * rounding interval, which has the probability min(1, |u| / ulp). Under Adam, u is about
 * normal, with a deviation that is the learning rate times a constant. If s is the
 * deviation in ulps of a class of exponents,
 *
 *     rate(s) = E min(1, s |z|)
 *             = s sqrt(2/pi) (1 - exp(-1 / (2 s^2))) + erfc(1 / (s sqrt(2)))
 *
 * which is linear for small s and saturates at 1. So the measured rate of a class gives
 * its s. The factor of the learning rate multiplies s, and the new s gives the new rate.
 * The mask then costs H(rate) bits an element. The size of a move has the probabilities
 *
 *     P(j) = g(j - 1) - 2 g(j) + g(j + 1)    with g(x) = E max(0, s |z| - x)
 *
 * where j is |u| / ulp rounded up or down. The bits a change are scaled so that a factor
 * of 1 gives the codec's own figure.
 */
#include <math.h>
#include <string.h>

#include "print.h"
#include "stats.h"

#define PI         3.14159265358979323846
#define MANY_ULPS  64.0 /* from here on sizes are treated as continuous */
#define N_HALVINGS 100

static const double lr_factors[STATS_N_FACTORS] = {0.3, 1, 3, 10};

/* ---- one class ---- */

/* E max(0, s |z| - x) */
static double excess(double s, double x)
{
    return s * sqrt(2 / PI) * exp(-x * x / (2 * s * s)) - x * erfc(x / (s * sqrt(2)));
}

static double rate_of(double s)
{
    return s > 0 ? excess(s, 0) - excess(s, 1) : 0;
}

/* The inverse, by halving: the rate grows with s. */
static double spread_of(double rate)
{
    double low = -60, high = 60; /* exponents of two */
    if (rate <= 0)
        return 0;
    for (int i = 0; i < N_HALVINGS; i++) {
        double middle = (low + high) / 2;
        if (rate_of(exp2(middle)) < rate)
            low = middle;
        else
            high = middle;
    }
    return exp2(low);
}

/* Bits for the size of a move, given that there is one. */
static double size_bits(double s)
{
    const double rate = rate_of(s);
    double bits = 0;
    if (s > MANY_ULPS)
        return log2(s * sqrt(PI * exp(1) / 2));
    for (double j = 1; rate > 0 && j < 10 * s + 3; j++) {
        double p = (excess(s, j - 1) - 2 * excess(s, j) + excess(s, j + 1)) / rate;
        if (p > 0)
            bits -= p * log2(p);
    }
    return bits;
}

static double binary_entropy(double p)
{
    return p <= 0 || p >= 1 ? 0 : -p * log2(p) - (1 - p) * log2(1 - p);
}

/* ---- all classes ---- */

typedef struct sums {
    double n_elems, n_changed;
    double mask_bits, size_bits;
} sums;

static void add_class(sums *to, uint64_t n_elems, uint64_t n_changed, double factor)
{
    const double n = (double)n_elems;
    /* even if all elements changed, the rate may be below 1 */
    double rate = (double)n_changed / n;
    rate = rate > 1 - 0.5 / n ? 1 - 0.5 / n : rate;
    const double s = factor * spread_of(rate);
    rate = factor == 1 ? rate : rate_of(s);
    to->n_elems += n;
    to->n_changed += n * rate;
    to->mask_bits += n * binary_entropy(rate);
    to->size_bits += n * rate * size_bits(s);
}

static sums sum_classes(const stats_report *r, double factor)
{
    sums total = {0};
    for (unsigned i = 0; i < STATS_N_KINDS * DW_DTYPE_COUNT; i++) {
        const stats_exponents *x = &r->exponents[i / DW_DTYPE_COUNT][i % DW_DTYPE_COUNT];
        for (unsigned e = 0; e < STATS_MAX_EXPONENTS; e++)
            if (x->n_elems[e] > 0)
                add_class(&total, x->n_elems[e], x->n_changed[e], factor);
    }
    return total;
}

/* The model's bits a change, with one bit for the sign. */
static double class_bits(const sums *s)
{
    return 1 + cli_ratio(s->mask_bits + s->size_bits, s->n_changed);
}

/* ---- the forecast ---- */

static dw_status find_speed(stats_forecast_row *row, const stats_forecast_options *o,
                            dw_error *err)
{
    row->changes_a_second = o->scatter_rate;
    if (o->scatter_rate > 0)
        return DW_OK;
    return stats_scatter_measure(&row->changes_a_second, row->density, o->n_threads, err);
}

dw_status stats_forecast_make(stats_report *r, const stats_forecast_options *o,
                              const cli_session *s, dw_error *err)
{
    stats_forecast *f = &r->forecast;
    const sums now = sum_classes(r, 1);
    const double measured =
        cli_ratio(8 * (double)r->total.n_class_bytes, (double)r->total.n_changed);
    cli_progress bar = cli_progress_start(s, "measuring the scatter");
    dw_status status = DW_OK;
    memcpy(f->n_params, o->n_params, sizeof f->n_params);
    f->n_sizes = o->n_sizes;
    f->measured = o->scatter_rate <= 0;
    f->overhead = cli_ratio(measured, class_bits(&now));
    f->elem_bytes = cli_ratio((double)r->model->n_bytes, (double)r->model->n_elems);
    for (unsigned i = 0; status == DW_OK && i < STATS_N_FACTORS; i++) {
        stats_forecast_row *row = &f->rows[i];
        const sums then = sum_classes(r, lr_factors[i]);
        row->lr_factor = lr_factors[i];
        row->density = cli_ratio(then.n_changed, then.n_elems);
        row->bits_a_change = f->overhead * class_bits(&then);
        status = find_speed(row, o, err);
        if (status == DW_OK)
            status = cli_check_signal(err);
        cli_progress_report(&bar, i + 1, STATS_N_FACTORS);
    }
    cli_progress_end(&bar);
    return status;
}

double stats_forecast_changes(const stats_forecast_row *row, double n_params)
{
    return row->density * n_params;
}

/* The codec packs a dense block whole, so a delta is never larger than the model. */
double stats_forecast_bytes(const stats_forecast *f, const stats_forecast_row *row,
                            double n_params)
{
    const double n_bytes = stats_forecast_changes(row, n_params) * row->bits_a_change / 8;
    return fmin(n_bytes, f->elem_bytes * n_params);
}

double stats_forecast_trl_bytes(const stats_forecast *f, const stats_forecast_row *row,
                                double n_params)
{
    return stats_forecast_changes(row, n_params) * (4 + f->elem_bytes);
}
