/* Lines of JSON, one for each thing that happened, for those who watch. */
#ifndef WORDLE_METRICS_H
#define WORDLE_METRICS_H

#include <jansson.h>

#include <deltawire/deltawire.h>

typedef struct metrics metrics;

/* Appends to PATH; NULL: to standard output. */
dw_status metrics_open(metrics **out, const char *path, dw_error *err);
void metrics_close(metrics *m);

/* Seconds since it was opened. */
double metrics_seconds(const metrics *m);

/* Adds a number to LINE; null, which JSON has instead, where it is not finite. */
void metrics_put(json_t *line, const char *name, double number);

/* Writes {"event": EVENT, "t": seconds, ...what LINE has}; takes LINE. The line is whole
 * in the file when this returns. What cannot be written is lost. */
void metrics_write(metrics *m, const char *event, json_t *line);

#endif
