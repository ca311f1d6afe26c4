#include "demo_view.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program.h"

enum { SPARK_COLUMNS = 48, PLOT_COLUMNS = 64, PLOT_ROWS = 8, LINE_EVERY_MS = 5000 };

static const char *const blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

#define BOLD  "\033[1m"
#define DIM   "\033[2m"
#define GREEN "\033[32m"
#define PLAIN "\033[0m"

void demo_view_open(demo_view *v, FILE *out)
{
    *v = (demo_view){.out = out, .terminal = isatty(fileno(out)) == 1};
}

/* A line of the screen. */
__attribute__((format(printf, 2, 3))) static void line(demo_view *v, const char *format,
                                                       ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(v->out, format, args);
    va_end(args);
    fputs(v->terminal ? "\033[K\n" : "\n", v->out);
    v->n_lines++;
}

static const char *style(const demo_view *v, const char *code)
{
    return v->terminal ? code : "";
}

/* ---- curves ---- */

/* Means of the rewards over COLUMNS equal shares of the steps; returns how many columns
 * there are, with fewer steps than columns one for each. */
static int curve(const demo_facts *f, int n_columns, double *out, double *low,
                 double *high)
{
    const int n = f->n_steps < (size_t)n_columns ? (int)f->n_steps : n_columns;
    *low = *high = 0;
    for (int c = 0; c < n; c++) {
        const size_t first = f->n_steps * (size_t)c / (size_t)n;
        const size_t end = f->n_steps * (size_t)(c + 1) / (size_t)n;
        double sum = 0;
        for (size_t i = first; i < end; i++)
            sum += f->steps[i].reward;
        out[c] = sum / (double)(end - first);
        *low = c == 0 || out[c] < *low ? out[c] : *low;
        *high = c == 0 || out[c] > *high ? out[c] : *high;
    }
    return n;
}

static const char *block(double share)
{
    const int k = (int)(share * 8 + 0.5);
    return blocks[k < 0 ? 0 : k > 8 ? 8 : k];
}

static void spark(const demo_facts *f, char out[4 * SPARK_COLUMNS + 1])
{
    double y[SPARK_COLUMNS], low, high;
    const int n = curve(f, SPARK_COLUMNS, y, &low, &high);
    out[0] = '\0';
    for (int c = 0; c < n; c++)
        strcat(out,
               block(high > low ? 0.125 + 0.875 * (y[c] - low) / (high - low) : 0.5));
}

static void plot(demo_view *v, const demo_facts *f)
{
    double y[PLOT_COLUMNS], low, high;
    const int n = curve(f, PLOT_COLUMNS, y, &low, &high);
    for (int row = PLOT_ROWS - 1; row >= 0; row--) {
        const double at = low + (high - low) * (row + 0.5) / PLOT_ROWS;
        fprintf(v->out, "  %6.2f │", at);
        for (int c = 0; c < n; c++) {
            const double level =
                high > low ? (y[c] - low) / (high - low) * PLOT_ROWS : PLOT_ROWS / 2.0;
            fputs(block(level - row), v->out);
        }
        fputc('\n', v->out);
    }
    fprintf(v->out, "  reward └");
    for (int c = 0; c < n; c++)
        fputs("─", v->out);
    fprintf(v->out, " step %" PRIu64 "\n", demo_facts_step(f));
}

/* ---- the screen ---- */

static const demo_step *last_published(const demo_facts *f)
{
    for (size_t i = f->n_steps; i > 0; i--)
        if (f->steps[i - 1].version > 0)
            return &f->steps[i - 1];
    return NULL;
}

static double bits_a_change(const demo_step *s)
{
    return s->changed ? 8 * (double)s->bytes / (double)s->changed : 0;
}

static void draw_training(demo_view *v, const demo_facts *f)
{
    const demo_step *s = f->n_steps ? &f->steps[f->n_steps - 1] : NULL;
    if (!s) {
        if (f->warm)
            line(v, "  warm; waiting for the first games");
        else
            line(v, "  supervised warm-up: step %" PRIu64 ", loss %.3f", f->warmup_step,
                 f->warmup_loss);
        return;
    }
    char curve_text[4 * SPARK_COLUMNS + 1];
    spark(f, curve_text);
    line(v, "  reward    %s%6.2f%s  %s%s%s", style(v, BOLD), s->reward, style(v, PLAIN),
         style(v, GREEN), curve_text, style(v, PLAIN));
    line(v, "  win rate  %5.1f %%   no words %5.1f %%   fit the feedback %5.1f %%",
         100 * s->win_rate, 100 * s->invalid_rate, 100 * s->consistent_rate);
    line(v,
         "  samples   %.1f steps old (at most %.0f)   dropped %" PRIu64
         "   ratio off by %.3f",
         s->lag, s->max_lag, s->dropped, s->ratio_off);
    const demo_step *p = last_published(f);
    if (p)
        line(v,
             "  version   %" PRIu64 ": %" PRIu64 " bytes, %.2f bits a change, %.1f %% of "
             "the weights; whole: %" PRIu64,
             p->version, p->bytes, bits_a_change(p),
             100 * (double)p->changed / (double)f->params, f->full_bytes);
}

static void draw_server(demo_view *v, const demo_facts *f, size_t i)
{
    const demo_server *s = &f->servers[i];
    if (s->version == UINT64_MAX) {
        line(v, "  rollout-%zu    waiting for weights", i);
        return;
    }
    const uint64_t lag = f->newest > s->version ? f->newest - s->version : 0;
    line(v, "  rollout-%zu  %9" PRIu64 "  %4" PRIu64 "  %8.2f  %10.1f  %-8s %s%s%s", i,
         s->version, lag, s->n_pauses ? s->pauses_ms[s->n_pauses - 1] : 0.0,
         (double)s->n_bytes / 1e3, s->state, style(v, DIM), s->page, style(v, PLAIN));
    if (s->trouble[0])
        line(v, "             %.70s", s->trouble);
}

static void draw(demo_view *v, const demo_facts *f, double seconds)
{
    if (v->n_lines > 0)
        fprintf(v->out, "\033[%dA", v->n_lines);
    fputs("\033[?7l", v->out); /* long lines are truncated, not wrapped */
    v->n_lines = 0;
    line(v,
         "%sdeltawire%s  asynchronous RL on Wordle: %" PRIu64 " parameters, step %" PRIu64
         " of %" PRIu64 ", %d:%02d",
         style(v, BOLD), style(v, PLAIN), f->params, demo_facts_step(f), f->n_asked,
         (int)seconds / 60, (int)seconds % 60);
    line(v, "%s", "");
    draw_training(v, f);
    line(v, "%s", "");
    line(v, "  %sserver       version   lag  pause ms  fetched kB  state    page%s",
         style(v, DIM), style(v, PLAIN));
    for (size_t i = 0; i < f->n_servers; i++)
        draw_server(v, f, i);
    if (f->trouble[0])
        line(v, "  players: %.80s", f->trouble);
    fputs("\033[J\033[?7h", v->out);
    fflush(v->out);
}

/* ---- lines ---- */

static void tell(demo_view *v, const demo_facts *f, double seconds)
{
    const uint64_t now_ms = program_clock_ms();
    if (v->told_ms != 0 && now_ms - v->told_ms < LINE_EVERY_MS)
        return;
    v->told_ms = now_ms;
    if (f->n_steps == 0) {
        fprintf(v->out,
                "%4.0f s  warm-up step %" PRIu64 ", loss %.3f, version %" PRIu64 "\n",
                seconds, f->warmup_step, f->warmup_loss, f->newest);
    } else if (demo_facts_step(f) != v->told_step) {
        const demo_step *s = &f->steps[f->n_steps - 1], *p = last_published(f);
        fprintf(v->out,
                "%4.0f s  step %" PRIu64 "  reward %.3f  won %.1f %%  invalid %.1f %%",
                seconds, s->step, s->reward, 100 * s->win_rate, 100 * s->invalid_rate);
        if (p)
            fprintf(v->out,
                    "  version %" PRIu64 ": %" PRIu64 " bytes, %.2f bits a change",
                    p->version, p->bytes, bits_a_change(p));
        for (size_t i = 0; i < f->n_servers; i++)
            if (f->servers[i].version != UINT64_MAX)
                fprintf(v->out, "  rollout-%zu at %" PRIu64, i, f->servers[i].version);
        fputc('\n', v->out);
    }
    v->told_step = demo_facts_step(f);
    fflush(v->out);
}

void demo_view_show(demo_view *v, const demo_facts *f, double seconds)
{
    if (v->terminal)
        draw(v, f, seconds);
    else
        tell(v, f, seconds);
}

void demo_view_leave(demo_view *v)
{
    v->n_lines = 0;
}

/* ---- the summary ---- */

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void tell_pauses(demo_view *v, const demo_facts *f)
{
    for (size_t i = 0; i < f->n_servers; i++) {
        const demo_server *s = &f->servers[i];
        double *sorted = malloc((s->n_pauses + 1) * sizeof *sorted);
        if (!sorted || s->n_pauses == 0) {
            free(sorted);
            continue;
        }
        memcpy(sorted, s->pauses_ms, s->n_pauses * sizeof *sorted);
        qsort(sorted, s->n_pauses, sizeof *sorted, by_size);
        fprintf(v->out,
                "  rollout-%zu   %zu updates, paused %.2f ms in the median, %.2f ms at "
                "most\n",
                i, s->n_pauses, sorted[s->n_pauses / 2], sorted[s->n_pauses - 1]);
        free(sorted);
    }
}

static void tell_bytes(demo_view *v, const demo_facts *f)
{
    uint64_t n = 0, bytes = 0, changed = 0;
    for (size_t i = 0; i < f->n_steps; i++)
        if (f->steps[i].version > 0) {
            n++;
            bytes += f->steps[i].bytes;
            changed += f->steps[i].changed;
        }
    if (n == 0) {
        fprintf(v->out, "  bytes       nothing was published after the warm-up\n");
        return;
    }
    fprintf(v->out,
            "  bytes       %" PRIu64
            " steps: %.2f MB as deltas, %.2f MB as whole models, "
            "%.1f times as much;\n              %.0f bytes a step, %.2f bits a change, "
            "%.1f %% of the weights a step\n",
            n, (double)bytes / 1e6, (double)(n * f->full_bytes) / 1e6,
            (double)(n * f->full_bytes) / (double)bytes, (double)bytes / (double)n,
            8 * (double)bytes / (double)changed,
            100 * (double)changed / (double)n / (double)f->params);
}

static void tell_tenths(demo_view *v, const demo_facts *f, const char *name,
                        size_t offset, double scale, const char *unit)
{
    const demo_mean a = demo_facts_tenth(f, 0, offset),
                    b = demo_facts_tenth(f, 9, offset);
    fprintf(v->out,
            "  %-11s %.2f ± %.2f%s in the first tenth, %s%.2f ± %.2f%s%s in the last\n",
            name, scale * a.mean, scale * a.spread, unit, style(v, BOLD), scale * b.mean,
            scale * b.spread, unit, style(v, PLAIN));
}

void demo_view_summary(demo_view *v, const demo_facts *f)
{
    fputc('\n', v->out);
    if (f->n_steps > 0) {
        plot(v, f);
        fputc('\n', v->out);
        tell_tenths(v, f, "reward", offsetof(demo_step, reward), 1, "");
        tell_tenths(v, f, "win rate", offsetof(demo_step, win_rate), 100, " %");
        tell_tenths(v, f, "no words", offsetof(demo_step, invalid_rate), 100, " %");
        tell_tenths(v, f, "fitting", offsetof(demo_step, consistent_rate), 100, " %");
    }
    if (f->n_evaluated > 0)
        fprintf(v->out,
                "  in the end  %" PRIu64
                " games with the last weights: reward %.2f, %.1f %% won, %.1f %% of\n"
                "              guesses after the first fit the feedback\n",
                f->n_evaluated, f->final_reward, 100 * f->final_win_rate,
                100 * f->final_consistent_rate);
    tell_bytes(v, f);
    tell_pauses(v, f);
    fflush(v->out);
}
