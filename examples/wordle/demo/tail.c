#include "tail.h"

#include <stdio.h>
#include <string.h>

enum { MAX_LINE_BYTES = 16384 };

void tail_read(tail *t, void (*take)(void *context, const json_t *line), void *context)
{
    char line[MAX_LINE_BYTES];
    FILE *file = fopen(t->path, "r");
    if (!file)
        return; /* it does not exist yet */
    fseek(file, t->at, SEEK_SET);
    while (fgets(line, sizeof line, file)) {
        size_t n = strlen(line);
        if (n == 0 || line[n - 1] != '\n')
            break; /* the rest comes later */
        t->at += (long)n;
        json_t *object = json_loads(line, 0, NULL);
        if (json_is_object(object))
            take(context, object);
        json_decref(object);
    }
    fclose(file);
}
