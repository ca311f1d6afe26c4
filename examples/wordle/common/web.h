/* A small HTTP server that speaks JSON, for the programs of this example.
 *
 * One thread takes the requests, one after the other in the order in which they came, so
 * a handler has its own data to itself. An answer that takes longer is given later:
 * the handler puts the call off, and another thread has it taken up again.
 */
#ifndef WORDLE_WEB_H
#define WORDLE_WEB_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include <deltawire/deltawire.h>

typedef struct web web;
typedef struct web_call web_call;

/* Answers the call, or puts it off. */
typedef void (*web_handler)(void *context, web_call *call);

/* Listens at HOST:PORT or [IPV6]:PORT, port 0 for any that is free, and begins to serve.
 * Bodies of more than MAX_BODY bytes, and those that are no JSON object, are refused
 * before the handler hears of them. Block the signals that end the program first: threads
 * are made here. */
dw_status web_start(web **out, const char *listen, size_t max_body, web_handler handler,
                    void *context, dw_error *err);

/* Calls that were put off must have been taken up again; they are given a second to be
 * answered. */
void web_stop(web *server);

/* "http://127.0.0.1:8000" */
const char *web_url(const web *server);

/* ---- calls: in the handler ----------------------------------------------------------
 */

/* Whether it is METHOD and PATH. A path that ends with a slash matches all below. */
bool web_is(const web_call *call, const char *method, const char *path);
const char *web_path(const web_call *call);
const char *web_method(const web_call *call);

/* The value of ?NAME=, or NULL. */
const char *web_query(const web_call *call, const char *name);

/* The object that was sent; an empty one where nothing was. Borrowed. */
json_t *web_body(const web_call *call);

/* Takes BODY; one that is NULL was lost to memory, and is said so. */
void web_reply(web_call *call, unsigned status, json_t *body);

/* {"error": {"message": ..., "code": status}} */
__attribute__((format(printf, 3, 4))) void web_refuse(web_call *call, unsigned status,
                                                      const char *format, ...);

/* Puts the call off. FINISH is called by the server's thread after web_resume, and
 * answers; RELEASE once, when the call is over. Any thread may resume, once. */
void web_put_off(web_call *call, void *job, void (*finish)(web_call *call, void *job),
                 void (*release)(void *job));
void web_resume(web_call *call);

/* Whether the client of a call that was put off has closed its side. Any thread, before
 * web_resume. */
bool web_is_gone(const web_call *call);

#endif
