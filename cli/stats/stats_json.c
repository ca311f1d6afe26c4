#include <math.h>

#include "delta_report.h"
#include "json_out.h"
#include "print.h"
#include "stats.h"
#include "stats_entropy.h"
#include "stream_info.h"

/* ---- counts ---- */

static void set_ratio(json_t *object, const char *key, double a, double b)
{
    cli_json_real(object, key, b > 0 ? a / b : NAN);
}

static json_t *counts_json(const stats_counts *c)
{
    const double n = (double)c->n_changed;
    json_t *o = json_object();
    cli_json_count(o, "elements", c->n_elems);
    cli_json_count(o, "changed", c->n_changed);
    set_ratio(o, "density", n, (double)c->n_elems);
    cli_json_count(o, "class_bytes", c->n_class_bytes);
    set_ratio(o, "class_bits_a_change", 8 * (double)c->n_class_bytes, n);
    set_ratio(o, "bound_bits_a_change", stats_bound_bits(c), n);
    set_ratio(o, "mask_bits_a_change", c->mask_bits, n);
    set_ratio(o, "move_bits_a_change", c->move_bits, n);
    cli_json_count(o, "trl_raw_bytes", c->n_trl_bytes);
    cli_json_count(o, "again", c->n_by_age[STATS_AGE_1]);
    set_ratio(o, "again_share", (double)c->n_by_age[STATS_AGE_1], (double)c->n_with_past);
    return o;
}

static void set_moves(json_t *object, const stats_counts *c)
{
    json_t *moves = json_object(), *ulps = json_array();
    for (unsigned i = 0; i < STATS_N_ULPS; i++) {
        if (c->ulps[i][STATS_DOWN] + c->ulps[i][STATS_UP] == 0)
            continue;
        json_t *row = json_object();
        cli_json_count(row, "least", i < 2 ? i + 1 : (UINT64_C(1) << (i - 1)) + 1);
        cli_json_count(row, "most", UINT64_C(1) << i);
        cli_json_count(row, "down", c->ulps[i][STATS_DOWN]);
        cli_json_count(row, "up", c->ulps[i][STATS_UP]);
        json_array_append_new(ulps, row);
    }
    json_object_set_new(moves, "ulps", ulps);
    cli_json_count(moves, "across_zero", c->n_across_zero);
    cli_json_count(moves, "nan_or_infinity", c->n_special);
    cli_json_count(moves, "without_ulps", c->n_no_ulps);
    cli_json_count(moves, "up", stats_ups(c));
    cli_json_count(moves, "away_from_zero", c->n_away);
    json_object_set_new(object, "moves", moves);
}

/* ---- steps ---- */

static json_t *step_json(const stats_step *step)
{
    const stats_counts *c = &step->sum;
    json_t *o = counts_json(c);
    cli_json_count(o, "from", step->from);
    cli_json_count(o, "to", step->to);
    if (step->path)
        cli_json_text(o, "delta", step->path);
    cli_json_count(o, "bytes", step->n_bytes);
    cli_json_count(o, "objects", step->n_objects);
    set_ratio(o, "bits_a_change", 8 * (double)step->n_bytes, (double)c->n_changed);
    cli_json_count(o, "same_sign", c->n_same_sign);
    return o;
}

static json_t *steps_json(const stats_report *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_steps; i++)
        json_array_append_new(list, step_json(&r->steps[i]));
    return list;
}

/* ---- groups ---- */

static void set_layer(json_t *object, uint32_t layer)
{
    json_object_set_new(object, "layer",
                        layer == STATS_NO_LAYER ? json_null() : json_integer(layer));
}

static json_t *kinds_json(const stats_report *r)
{
    json_t *list = json_array();
    for (unsigned kind = 0; kind < STATS_N_KINDS; kind++) {
        const stats_counts c = stats_sum_kind(r, (stats_kind)kind);
        if (c.n_elems == 0)
            continue;
        json_t *o = counts_json(&c);
        cli_json_text(o, "kind", stats_kind_name((stats_kind)kind));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *layers_json(const stats_report *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->model->n_groups; i++) {
        const uint32_t layer = r->model->groups[i].layer;
        if (i > 0 && layer == r->model->groups[i - 1].layer)
            continue;
        const stats_counts c = stats_sum_layer(r, layer);
        json_t *o = counts_json(&c);
        set_layer(o, layer);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *groups_json(const stats_report *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->model->n_groups; i++) {
        json_t *o = counts_json(&r->groups[i]);
        set_layer(o, r->model->groups[i].layer);
        cli_json_text(o, "kind", stats_kind_name(r->model->groups[i].kind));
        json_array_append_new(list, o);
    }
    return list;
}

/* Over all kinds; types without exponents have one class. */
static json_t *exponents_json(const stats_report *r)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < DW_DTYPE_COUNT * STATS_MAX_EXPONENTS; i++) {
        const unsigned dtype = i / STATS_MAX_EXPONENTS, e = i % STATS_MAX_EXPONENTS;
        uint64_t n = 0, k = 0;
        for (unsigned kind = 0; kind < STATS_N_KINDS; kind++) {
            n += r->exponents[kind][dtype].n_elems[e];
            k += r->exponents[kind][dtype].n_changed[e];
        }
        if (n == 0)
            continue;
        json_t *o = json_object();
        cli_json_text(o, "dtype", dw_dtype_name((dw_dtype)dtype));
        cli_json_count(o, "exponent", e);
        cli_json_count(o, "elements", n);
        cli_json_count(o, "changed", k);
        json_array_append_new(list, o);
    }
    return list;
}

/* ---- recurrence ---- */

static json_t *recurrence_row(const stats_recurrence *r)
{
    const double n = (double)r->n_changed;
    json_t *o = json_object();
    cli_json_count(o, "changed", r->n_changed);
    cli_json_count(o, "again", r->n_again);
    set_ratio(o, "share", (double)r->n_again, n);
    set_ratio(o, "chance_by_density", r->by_density, n);
    set_ratio(o, "chance_by_exponent", r->by_exponent, n);
    return o;
}

static json_t *recurrence_json(const stats_report *r)
{
    const stats_recurrence again = stats_recurrence_of(r, false);
    const stats_recurrence any = stats_recurrence_of(r, true);
    const double n = (double)r->total.n_changed;
    double plain, given;
    json_t *o = json_object(), *one = recurrence_row(&again);
    stats_direction_bits(&r->total, &plain, &given);
    cli_json_count(one, "same_sign", again.n_same_sign);
    set_ratio(one, "same_sign_share", (double)again.n_same_sign, (double)again.n_again);
    json_object_set_new(o, "one_step", one);
    json_object_set_new(o, "fifteen_steps", recurrence_row(&any));
    set_ratio(o, "sign_bits_a_change", plain, n);
    set_ratio(o, "sign_bits_a_change_given_history", given, n);
    return o;
}

/* ---- folds, shortcuts ---- */

static json_t *folds_json(const stats_report *r)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < STATS_N_FOLDS; i++) {
        const stats_fold f = stats_fold_of(r, i);
        if (f.n_windows == 0)
            continue;
        json_t *o = json_object();
        cli_json_count(o, "steps", f.n_steps);
        cli_json_count(o, "windows", f.n_windows);
        cli_json_count(o, "sum", f.n_sum);
        cli_json_count(o, "union", f.n_union);
        set_ratio(o, "share", (double)f.n_union, (double)f.n_sum);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *shortcuts_json(const stats_report *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_shortcuts; i++) {
        const stats_shortcut *w = &r->shortcuts[i];
        json_t *o = json_object();
        cli_json_version(o, "from", w->edge.from);
        cli_json_count(o, "to", w->edge.to);
        cli_json_count(o, "bytes", w->edge.n_bytes);
        cli_json_count(o, "objects", w->edge.n_objects);
        cli_json_count(o, "deltas", w->n_deltas);
        cli_json_count(o, "delta_bytes", w->n_delta_bytes);
        json_array_append_new(list, o);
    }
    return list;
}

json_t *stats_report_json(const stats_report *r)
{
    json_t *o = json_object(), *total = counts_json(&r->total);
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < r->n_steps; i++)
        n_bytes += r->steps[i].n_bytes;
    cli_json_text(o, r->stream ? "url" : "base", r->source);
    if (r->stream)
        cli_json_quantized(o, r->stream);
    cli_json_count(o, "tensors", r->model->n_tensors);
    cli_json_count(o, "elements", r->model->n_elems);
    cli_json_count(o, "model_bytes", r->model->n_bytes);
    cli_json_count(total, "bytes", n_bytes);
    set_ratio(total, "bits_a_change", 8 * (double)n_bytes, (double)r->total.n_changed);
    set_moves(total, &r->total);
    json_object_set_new(o, "total", total);
    json_object_set_new(o, "steps", steps_json(r));
    json_object_set_new(o, "kinds", kinds_json(r));
    json_object_set_new(o, "layers", layers_json(r));
    json_object_set_new(o, "groups", groups_json(r));
    json_object_set_new(o, "exponents", exponents_json(r));
    json_object_set_new(o, "recurrence", recurrence_json(r));
    json_object_set_new(o, "folds", folds_json(r));
    json_object_set_new(o, "shortcuts", shortcuts_json(r));
    return o;
}
