/* The output of the demo: a screen that is redrawn, or lines now and then; and a summary.
 */
#ifndef WORDLE_DEMO_VIEW_H
#define WORDLE_DEMO_VIEW_H

#include <stdbool.h>
#include <stdio.h>

#include "demo_facts.h"

typedef struct demo_view {
    FILE *out;
    bool terminal;
    int n_lines;      /* of the screen, as drawn last */
    uint64_t told_ms; /* when the last line was printed */
    uint64_t told_step;
} demo_view;

void demo_view_open(demo_view *v, FILE *out);

/* Redraws the screen, or prints a line if one is due. */
void demo_view_show(demo_view *v, const demo_facts *f, double seconds);

/* Leaves the screen; later output comes below it. */
void demo_view_leave(demo_view *v);

/* The learning curve, bytes and pauses. */
void demo_view_summary(demo_view *v, const demo_facts *f);

#endif
