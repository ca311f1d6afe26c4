/* The control interfaces of the test engine, as in docs/OPERATIONS.md. */
#ifndef DW_ENGINE_API_H
#define DW_ENGINE_API_H

#include <jansson.h>
#include <stdbool.h>

#include "mishap.h"

typedef struct request {
    const char *method;
    const char *path;
    const char *mode; /* of the query; NULL: none */
    json_t *body;     /* NULL: none, or no object */
    mishap fate;
} request;

typedef struct reply {
    unsigned status;
    char text[2048]; /* JSON */
} reply;

typedef void (*answer_fn)(const request *, reply *);

typedef struct route {
    const char *method;
    const char *path;
    answer_fn answer;
} route;

/* Both end with a route without a method. */
extern const route vllm_routes[];
extern const route sglang_routes[];

/* Both have this route: it takes the label away, and brings it back. */
void answer_update_label(const request *request, reply *reply);

/* Fills REPLY. */
void say(reply *reply, unsigned status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Notes an update: `p` for a patch, `s` for a snapshot. */
void note_update(char kind);

enum { LABEL_SIZE = 64 };

/* "STREAM:7", "default" before the first update, or "none" if it was taken away. */
const char *version_label(void);

/* Keeps the label and reads its version; false if it is none. */
bool take_label(const json_t *label, uint64_t *version);

#endif
