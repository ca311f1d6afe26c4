#include "metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "program.h"

struct metrics {
    FILE *file;
    uint64_t began_ms;
};

dw_status metrics_open(metrics **out, const char *path, dw_error *err)
{
    metrics *m = calloc(1, sizeof *m);
    if (!m)
        return wordle_fail(err, DW_NO_MEMORY, "metrics", "out of memory");
    m->file = path ? fopen(path, "a") : stdout;
    m->began_ms = program_clock_ms();
    if (!m->file) {
        free(m);
        return wordle_fail(err, DW_IO, path, "cannot be appended to");
    }
    *out = m;
    return DW_OK;
}

void metrics_close(metrics *m)
{
    if (m && m->file != stdout)
        fclose(m->file);
    free(m);
}

double metrics_seconds(const metrics *m)
{
    return (double)(program_clock_ms() - m->began_ms) / 1000;
}

void metrics_put(json_t *line, const char *name, double number)
{
    json_object_set_new(line, name, isfinite(number) ? json_real(number) : json_null());
}

void metrics_write(metrics *m, const char *event, json_t *line)
{
    json_t *all = json_pack("{s:s, s:f}", "event", event, "t", metrics_seconds(m));
    if (all && line)
        json_object_update(all, line);
    char *text = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(6));
    if (text) {
        fprintf(m->file, "%s\n", text);
        fflush(m->file);
    }
    free(text);
    json_decref(line);
    json_decref(all);
}
