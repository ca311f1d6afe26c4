/* Lines of JSON, one for each event. */
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

/* Adds a number to LINE; null if it is not finite. */
void metrics_put(json_t *line, const char *name, double number);

/* Writes {"event": EVENT, "t": seconds, ...LINE}; owns LINE. The line is complete in the
 * file when this returns. If it cannot be written, it is lost. */
void metrics_write(metrics *m, const char *event, json_t *line);

#endif
