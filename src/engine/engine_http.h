/* Questions to an engine over HTTP: one connection, kept, one question at a time. */
#ifndef DW_ENGINE_ENGINE_HTTP_H
#define DW_ENGINE_ENGINE_HTTP_H

#include "base/json.h"
#include "deltawire/engine.h"
#include "net/http_easy.h"

typedef struct dw_engine_http {
    char *url; /* without a slash at its end */
    char *token;
    char *authorization; /* the header line; NULL where there is no token */
    unsigned pause_ms, apply_ms, probe_ms;
    CURL *easy;
    dw_http_sockets sockets;
    bool gone; /* the last question was refused a connection: nobody listens */
} dw_engine_http;

/* URL is http[s]://HOST[:PORT][/PATH]. Whatever it returns, the result is to be
 * released. */
dw_status dw_engine_http_init(dw_engine_http *http, const char *url,
                              const dw_engine_options *options, dw_error *err);
void dw_engine_http_release(dw_engine_http *http);

typedef struct dw_engine_question {
    const char *method;  /* GET or POST */
    const char *path;    /* from a slash on, with its query */
    const char *json;    /* to send; NULL: nothing */
    unsigned limit_ms;   /* for all of it */
    const char *missing; /* what to do where the engine has no such path */
} dw_engine_question;

typedef struct dw_engine_answer {
    int status;   /* 0: none came */
    json_t *body; /* after DW_OK an object, to be released with json_decref; else NULL */
    char words[512]; /* what it says for people; may be empty */
} dw_engine_answer;

/* DW_OK: it answered with success and a JSON object. ANSWER is filled in any case. Codes
 * as dw_engine_driver has them. No redirect is followed and no proxy is asked: an engine
 * reads files of this machine. */
dw_status dw_engine_ask(dw_engine_http *http, const dw_engine_question *question,
                        dw_engine_answer *answer, dw_error *err);

/* Asks where the answer says no more than that it is done: its member `status` must be
 * DONE. */
dw_status dw_engine_order(dw_engine_http *http, const dw_engine_question *question,
                          const char *done, dw_error *err);

/* For an answer of success that does not say what it should. */
dw_status dw_engine_nonsense(const dw_engine_http *http,
                             const dw_engine_question *question, const char *problem,
                             dw_error *err);

/* The text of member NAME, or NULL. */
const char *dw_engine_text(const json_t *object, const char *name);

/* What engines call a version: its number in decimal digits. Any other label is
 * DW_NO_VERSION. */
uint64_t dw_engine_label_version(const char *label);

/* Whether the engine NAME may be resumed: it is known to be whole, or its LABEL, which is
 * set at the end of an update, is that of UPDATE, which then sets *WHOLE. Else
 * DW_CONFLICT. */
dw_status dw_engine_check_whole(const dw_engine_http *http, const char *name, bool *whole,
                                uint64_t label, const dw_engine_update *update,
                                dw_error *err);

/* "NAME VERSION" with what is not plain text left out; VERSION may be NULL. */
void dw_engine_software(char out[64], const char *name, const char *version);

#endif
