/* What the demo shows: a screen that is drawn anew, or lines now and then; a summary. */
#ifndef WORDLE_DEMO_VIEW_H
#define WORDLE_DEMO_VIEW_H

#include <stdbool.h>
#include <stdio.h>

#include "demo_facts.h"

typedef struct demo_view {
    FILE *out;
    bool terminal;
    int n_lines;      /* of the screen, as drawn last */
    uint64_t told_ms; /* when a line was printed last */
    uint64_t told_step;
} demo_view;

void demo_view_open(demo_view *v, FILE *out);

/* Draws the screen anew, or prints a line where one is due. */
void demo_view_show(demo_view *v, const demo_facts *f, double seconds);

/* Leaves the screen as it is; what is printed next comes below. */
void demo_view_leave(demo_view *v);

/* The learning curve, bytes and pauses. */
void demo_view_summary(demo_view *v, const demo_facts *f);

#endif
