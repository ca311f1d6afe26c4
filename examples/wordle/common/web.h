/* A small HTTP server that speaks JSON. One thread handles the requests in order, so a
 * handler needs no lock for its own data. */
#ifndef WORDLE_WEB_H
#define WORDLE_WEB_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include <deltawire/deltawire.h>

typedef struct web web;
typedef struct web_call web_call;

/* Answers the call. */
typedef void (*web_handler)(void *context, web_call *call);

/* Listens at HOST:PORT, port 0 for any free one, and begins to serve. Bodies of more than
 * MAX_BODY bytes, and those that are no JSON object, are refused before the handler is
 * called. Block the signals that end the program first: a thread is made here. */
dw_status web_start(web **out, const char *listen, size_t max_body, web_handler handler,
                    void *context, dw_error *err);
void web_stop(web *server);

/* "http://127.0.0.1:8000" */
const char *web_url(const web *server);

/* ---- in the handler ---- */

/* Whether it is METHOD and PATH. */
bool web_is(const web_call *call, const char *method, const char *path);
const char *web_path(const web_call *call);
const char *web_method(const web_call *call);

/* The object that was sent; an empty one if there is no body. Borrowed. */
json_t *web_body(const web_call *call);

/* Owns BODY. NULL means out of memory, which is reported. */
void web_reply(web_call *call, unsigned status, json_t *body);

/* {"error": {"message": ..., "code": status}} */
__attribute__((format(printf, 3, 4))) void web_refuse(web_call *call, unsigned status,
                                                      const char *format, ...);

#endif
