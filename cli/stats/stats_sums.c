/* Computes the report's figures from the counts. */
#include "stats.h"
#include "stats_entropy.h"

void stats_counts_add(stats_counts *to, const stats_counts *more)
{
    to->n_elems += more->n_elems;
    to->n_changed += more->n_changed;
    to->mask_bits += more->mask_bits;
    to->move_bits += more->move_bits;
    to->n_class_bytes += more->n_class_bytes;
    to->n_trl_bytes += more->n_trl_bytes;
    stats_add(to->ulps[0], more->ulps[0], sizeof to->ulps / sizeof(uint64_t));
    to->n_across_zero += more->n_across_zero;
    to->n_special += more->n_special;
    to->n_no_ulps += more->n_no_ulps;
    to->n_away += more->n_away;
    to->n_with_past += more->n_with_past;
    stats_add(to->n_by_age, more->n_by_age, STATS_N_AGES);
    stats_add(to->n_quiet, more->n_quiet, STATS_N_AGES);
    for (unsigned i = 0; i < STATS_N_AGES; i++)
        to->expected_by_age[i] += more->expected_by_age[i];
    to->n_same_sign += more->n_same_sign;
    stats_add(to->directions[0][0], more->directions[0][0],
              sizeof to->directions / sizeof(uint64_t));
}

stats_fold stats_fold_of(const stats_report *r, unsigned f)
{
    stats_fold fold = {.n_steps = 1u << f};
    for (size_t i = fold.n_steps - 1; i < r->n_steps; i++) {
        fold.n_windows++;
        fold.n_union += r->steps[i].n_union[f];
        for (size_t j = i + 1 - fold.n_steps; j <= i; j++)
            fold.n_sum += r->steps[j].sum.n_changed;
    }
    return fold;
}

void stats_direction_bits(const stats_counts *c, double *plain, double *given)
{
    uint64_t n = 0, n_up = 0;
    *given = 0;
    for (unsigned h = 0; h < STATS_N_AGES; h++)
        for (unsigned last = 0; last < 2; last++) {
            const uint64_t up = c->directions[h][last][STATS_UP];
            const uint64_t all = up + c->directions[h][last][STATS_DOWN];
            *given += stats_binary_bits(all, up);
            n += all;
            n_up += up;
        }
    *plain = stats_binary_bits(n, n_up);
}

uint64_t stats_ups(const stats_counts *c)
{
    uint64_t n = 0;
    for (unsigned h = 0; h < STATS_N_AGES; h++)
        n += c->directions[h][0][STATS_UP] + c->directions[h][1][STATS_UP];
    return n;
}

stats_recurrence stats_recurrence_of(const stats_report *r, bool any)
{
    stats_recurrence out = {0};
    for (size_t i = 1; i < r->n_steps; i++) {
        const stats_counts *c = &r->steps[i].sum;
        uint64_t n_before = 0; /* elements that had changed before */
        out.n_changed += c->n_changed;
        out.n_same_sign += c->n_same_sign;
        for (unsigned age = 0; age < (any ? STATS_AGE_NONE : STATS_AGE_1 + 1u); age++) {
            out.n_again += c->n_by_age[age];
            out.by_exponent += c->expected_by_age[age];
            n_before += c->n_by_age[age] + c->n_quiet[age];
        }
        if (c->n_elems > 0)
            out.by_density +=
                (double)c->n_changed * (double)n_before / (double)c->n_elems;
    }
    return out;
}

stats_counts stats_sum_kind(const stats_report *r, stats_kind kind)
{
    stats_counts sum = {0};
    for (size_t i = 0; i < r->model->n_groups; i++)
        if (r->model->groups[i].kind == kind)
            stats_counts_add(&sum, &r->groups[i]);
    return sum;
}

stats_counts stats_sum_layer(const stats_report *r, uint32_t layer)
{
    stats_counts sum = {0};
    for (size_t i = 0; i < r->model->n_groups; i++)
        if (r->model->groups[i].layer == layer)
            stats_counts_add(&sum, &r->groups[i]);
    return sum;
}
