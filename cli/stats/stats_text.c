#include <inttypes.h>
#include <string.h>

#include "delta_report.h"
#include "print.h"
#include "quant_names.h"
#include "stats.h"
#include "stats_entropy.h"
#include "stream_info.h"

#define BAR_WIDTH 30

static double percent(double a, double b)
{
    return 100 * cli_ratio(a, b);
}

static double bits_a_change(double bits, const stats_counts *c)
{
    return cli_ratio(bits, (double)c->n_changed);
}

static double class_bits(const stats_counts *c)
{
    return cli_bits_a_change(c->n_class_bytes, c->n_changed);
}

/* The share of changes that had changed in the step before, if there was one. */
static void print_again(const stats_counts *c)
{
    if (c->n_with_past == 0)
        printf("%8s\n", "-");
    else
        printf("%6.1f %%\n",
               percent((double)c->n_by_age[STATS_AGE_1], (double)c->n_with_past));
}

/* ---- the whole, and by step ---- */

static uint64_t wire_bytes(const stats_report *r)
{
    uint64_t n = 0;
    for (size_t i = 0; i < r->n_steps; i++)
        n += r->steps[i].n_bytes;
    return n;
}

/* The scales of a quantised model, and its weights. */
static void print_scales(const stats_report *r)
{
    char a[CLI_NUMBER_SIZE], quantized[CLI_QUANTIZED_SIZE];
    uint64_t n_changed = 0, n_elems = 0;
    for (size_t i = 0; i < r->model->n_groups; i++)
        if (r->model->groups[i].kind == STATS_SCALES) {
            n_changed += r->groups[i].n_changed;
            n_elems += r->groups[i].n_elems;
        }
    const dw_quant_scheme scheme = cli_find_scheme(r->model->now, r->model->n_tensors);
    if (r->stream && cli_format_quantized(quantized, r->stream))
        cli_print_row("quantised", "%s", quantized);
    else if (scheme != DW_QUANT_NONE)
        cli_print_row("quantised", "%s", dw_quant_scheme_name(scheme));
    if (n_elems > 0)
        cli_print_row("scales", "%s changed, %.3f %% a step",
                      cli_format_count(a, n_changed),
                      percent((double)n_changed, (double)n_elems));
}

static void print_whole(const stats_report *r)
{
    char a[CLI_NUMBER_SIZE], b[CLI_NUMBER_SIZE];
    const stats_counts *t = &r->total;
    cli_print_line(r->source);
    cli_print_row("steps", "%zu, from version %" PRIu64 " to %" PRIu64, r->n_steps,
                  r->steps[0].from, r->steps[r->n_steps - 1].to);
    cli_print_row("model", "%zu tensors, %s elements, %s", r->model->n_tensors,
                  cli_format_count(a, r->model->n_elems),
                  cli_format_size(b, r->model->n_bytes));
    cli_print_row("changed", "%s elements, %.3f %% a step",
                  cli_format_count(a, t->n_changed),
                  percent((double)t->n_changed, (double)t->n_elems));
    print_scales(r);
    cli_print_row("wire", "%s, %.2f bits a change; TRL raw %s",
                  cli_format_size(a, wire_bytes(r)),
                  cli_bits_a_change(wire_bytes(r), t->n_changed),
                  cli_format_size(b, t->n_trl_bytes));
    cli_print_row("codec", "%.2f bits a change with class, without file headers",
                  class_bits(t));
    cli_print_row("bound",
                  "%.2f bits a change given the old exponent: mask %.2f, move "
                  "%.2f",
                  bits_a_change(stats_bound_bits(t), t), bits_a_change(t->mask_bits, t),
                  bits_a_change(t->move_bits, t));
}

static void print_steps(const stats_report *r)
{
    char a[CLI_NUMBER_SIZE], b[CLI_NUMBER_SIZE];
    printf("\nBy step: bits a change as sent, by the codec class, and the bound\n"
           "  %8s %15s %9s %10s %7s %7s %7s %8s\n",
           "version", "changed", "density", "bytes", "wire", "class", "bound", "again");
    for (size_t i = 0; i < r->n_steps; i++) {
        const stats_step *step = &r->steps[i];
        const stats_counts *c = &step->sum;
        printf("  %8" PRIu64 " %15s %7.3f %% %10s %7.2f %7.2f %7.2f ", step->to,
               cli_format_count(a, c->n_changed),
               percent((double)c->n_changed, (double)c->n_elems),
               cli_format_size(b, step->n_bytes),
               cli_bits_a_change(step->n_bytes, c->n_changed), class_bits(c),
               bits_a_change(stats_bound_bits(c), c));
        print_again(c);
    }
}

/* ---- by kind and layer ---- */

static void print_group(const char *name, const stats_counts *c, const stats_counts *all)
{
    char a[CLI_NUMBER_SIZE];
    printf("  %-12s %17s %7.2f %% %7.3f %% %7.2f %7.2f ", name,
           cli_format_count(a, c->n_changed),
           percent((double)c->n_changed, (double)all->n_changed),
           percent((double)c->n_changed, (double)c->n_elems), class_bits(c),
           bits_a_change(stats_bound_bits(c), c));
    print_again(c);
}

static void print_group_head(const char *title)
{
    printf("\nBy %s\n  %-12s %17s %9s %9s %7s %7s %8s\n", title, title, "changed",
           "share", "density", "class", "bound", "again");
}

static void print_kinds(const stats_report *r)
{
    print_group_head("kind");
    for (unsigned kind = 0; kind < STATS_N_KINDS; kind++) {
        const stats_counts c = stats_sum_kind(r, (stats_kind)kind);
        if (c.n_elems > 0)
            print_group(stats_kind_name((stats_kind)kind), &c, &r->total);
    }
}

static void print_layers(const stats_report *r)
{
    print_group_head("layer");
    for (size_t i = 0; i < r->model->n_groups; i++) {
        const uint32_t layer = r->model->groups[i].layer;
        char name[16] = "none";
        if (i > 0 && layer == r->model->groups[i - 1].layer)
            continue;
        if (layer != STATS_NO_LAYER)
            snprintf(name, sizeof name, "%" PRIu32, layer);
        const stats_counts c = stats_sum_layer(r, layer);
        print_group(name, &c, &r->total);
    }
}

/* ---- moves ---- */

static void print_bar(double share)
{
    int n = (int)(share * BAR_WIDTH + 0.5);
    for (int i = 0; i < n && i < BAR_WIDTH; i++)
        putchar('#');
    putchar('\n');
}

static void print_moves(const stats_report *r)
{
    const stats_counts *t = &r->total;
    uint64_t n_ulps = 0;
    for (unsigned i = 0; i < STATS_N_ULPS; i++)
        n_ulps += t->ulps[i][STATS_DOWN] + t->ulps[i][STATS_UP];
    printf("\nMoves, in ulps\n  %-17s %9s %9s %9s\n", "ulps", "share", "down", "up");
    for (unsigned i = 0; i < STATS_N_ULPS; i++) {
        const double down = (double)t->ulps[i][STATS_DOWN];
        const double up = (double)t->ulps[i][STATS_UP];
        char name[32];
        if (down + up == 0)
            continue;
        if (i < 2)
            snprintf(name, sizeof name, "%u", i + 1);
        else
            snprintf(name, sizeof name, "%" PRIu64 "-%" PRIu64,
                     (UINT64_C(1) << (i - 1)) + 1, UINT64_C(1) << i);
        printf("  %-17s %7.3f %% %7.3f %% %7.3f %%  ", name,
               percent(down + up, (double)t->n_changed),
               percent(down, (double)t->n_changed), percent(up, (double)t->n_changed));
        print_bar(cli_ratio(down + up, (double)t->n_changed));
    }
    cli_print_row("direction", "%.2f %% up; %.2f %% away from zero",
                  percent((double)stats_ups(t), (double)t->n_changed),
                  percent((double)t->n_away, (double)n_ulps));
    cli_print_row("apart",
                  "%" PRIu64 " across zero, %" PRIu64
                  " from or to NaN or infinity, %" PRIu64 " of types without ulps",
                  t->n_across_zero, t->n_special, t->n_no_ulps);
}

/* ---- recurrence ---- */

static void print_recurrence_row(const char *label, const stats_recurrence *r)
{
    const double n = (double)r->n_changed;
    cli_print_row(label,
                  "%.1f %% of changes; by chance %.1f %% given the density, %.1f %%"
                  " the exponent",
                  percent((double)r->n_again, n), percent(r->by_density, n),
                  percent(r->by_exponent, n));
}

static void print_recurrence(const stats_report *r)
{
    const stats_recurrence again = stats_recurrence_of(r, false);
    const stats_recurrence any = stats_recurrence_of(r, true);
    double plain, given;
    if (again.n_changed == 0)
        return;
    puts("\nRecurrence: what had changed before, from the second step on");
    print_recurrence_row("1 step ago", &again);
    cli_print_row("", "%.1f %% of these in the same direction",
                  percent((double)again.n_same_sign, (double)again.n_again));
    print_recurrence_row("in 15", &any);
    stats_direction_bits(&r->total, &plain, &given);
    cli_print_row("sign", "%.3f bits a change, %.3f given the element's own history",
                  bits_a_change(plain, &r->total), bits_a_change(given, &r->total));
}

/* ---- folds and anchors ---- */

static void print_shortcuts(const stats_report *r)
{
    char a[CLI_NUMBER_SIZE], b[CLI_NUMBER_SIZE];
    for (size_t i = 0; i < r->n_shortcuts; i++) {
        const stats_shortcut *w = &r->shortcuts[i];
        char from[24] = "anchor";
        if (w->edge.from != DW_NO_VERSION)
            snprintf(from, sizeof from, "%" PRIu64, w->edge.from);
        printf("  %8s -> %-8" PRIu64 " %10s for %" PRIu64 " deltas of %s: %.2f times\n",
               from, w->edge.to, cli_format_size(a, w->edge.n_bytes), w->n_deltas,
               cli_format_size(b, w->n_delta_bytes),
               cli_ratio((double)w->edge.n_bytes, (double)w->n_delta_bytes));
    }
}

static void print_folds(const stats_report *r)
{
    char a[CLI_NUMBER_SIZE], b[CLI_NUMBER_SIZE];
    const double mean = cli_ratio((double)wire_bytes(r), (double)r->n_steps);
    printf("\nFolded deltas: each element once, however often it changed; means over "
           "windows\n"
           "  %6s %8s %17s %17s %9s\n",
           "steps", "windows", "sum of changes", "union", "saved");
    for (unsigned i = 0; i < STATS_N_FOLDS; i++) {
        const stats_fold f = stats_fold_of(r, i);
        if (f.n_windows == 0)
            continue;
        printf("  %6u %8" PRIu64 " %17s %17s %7.1f %%\n", f.n_steps, f.n_windows,
               cli_format_count(a, f.n_sum / f.n_windows),
               cli_format_count(b, f.n_union / f.n_windows),
               percent((double)(f.n_sum - f.n_union), (double)f.n_sum));
    }
    print_shortcuts(r);
    cli_print_row(
        "anchor",
        "the model is as large as %.0f deltas: cheaper for followers farther behind",
        cli_ratio((double)r->model->n_bytes, mean));
}

void stats_print_text(const stats_report *r)
{
    print_whole(r);
    print_steps(r);
    print_kinds(r);
    print_layers(r);
    print_moves(r);
    print_recurrence(r);
    print_folds(r);
}
