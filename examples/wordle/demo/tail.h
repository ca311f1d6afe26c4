/* Lines of JSON that another process appends to a file. */
#ifndef WORDLE_TAIL_H
#define WORDLE_TAIL_H

#include <jansson.h>

typedef struct tail {
    char path[1024];
    long at; /* bytes that were read */
} tail;

/* Passes every new whole line to TAKE as an object; skips invalid ones. */
void tail_read(tail *t, void (*take)(void *context, const json_t *line), void *context);

#endif
