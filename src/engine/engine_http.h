/* Requests to an engine over HTTP: one connection, kept open, one request at a time. */
#ifndef DW_ENGINE_ENGINE_HTTP_H
#define DW_ENGINE_ENGINE_HTTP_H

#include "base/json_tree.h"
#include "engine/engine.h"
#include "net/http_easy.h"

typedef struct dw_engine_http {
    char *url; /* without a slash at its end */
    char *token;
    char *authorization; /* the header line; NULL if there is no token */
    unsigned pause_ms, apply_ms, probe_ms;
    CURL *easy;
    dw_http_sockets sockets;
    bool gone; /* the last connection was refused: nobody listens */
} dw_engine_http;

/* URL is http[s]://HOST[:PORT][/PATH]. HTTP must be released even after a failure. */
dw_status dw_engine_http_init(dw_engine_http *http, const char *url,
                              const dw_engine_options *options, dw_error *err);
void dw_engine_http_release(dw_engine_http *http);

typedef struct dw_engine_question {
    const char *method;  /* GET or POST */
    const char *path;    /* begins with a slash; may have a query */
    const char *json;    /* to send; NULL: nothing */
    unsigned limit_ms;   /* for the request and its answer */
    const char *missing; /* what to do if the engine has no such path */
} dw_engine_question;

typedef struct dw_engine_answer {
    int status;      /* of HTTP; 0: no answer came */
    dw_json *body;   /* after DW_OK an object, to be freed with dw_json_free; else NULL */
    char words[512]; /* its message for people; may be empty */
} dw_engine_answer;

/* DW_OK: it answered with success and a JSON object. ANSWER is always filled. Errors are
 * those of dw_engine_driver. Redirects are not followed and proxies are not used: an
 * engine reads files of this machine. */
dw_status dw_engine_ask(dw_engine_http *http, const dw_engine_question *question,
                        dw_engine_answer *answer, dw_error *err);

/* The same for a request whose answer only confirms it: `status` must be DONE. */
dw_status dw_engine_order(dw_engine_http *http, const dw_engine_question *question,
                          const char *done, dw_error *err);

/* The error for a successful answer without the expected content. */
dw_status dw_engine_nonsense(const dw_engine_http *http,
                             const dw_engine_question *question, const char *problem,
                             dw_error *err);

/* The string NAME of OBJECT, or NULL. */
const char *dw_engine_text(const dw_json *object, const char *name);

enum { DW_LABEL_SIZE = 64, DW_STREAM_SIZE = 33 };

/* The label of an engine's weights, STREAM:VERSION. It outlives the process that set it,
 * and any program can set it: so no version is believed before this process has brought
 * the engine to one of the same stream. From the first store of an update on the weights
 * are not those of the label, whichever version it names. So an update takes it away:
 * until the end the engine says `none`, and an engine with any other label is whole. */
typedef struct dw_engine_label {
    uint64_t version; /* when the engine was last asked or updated; DW_NO_VERSION: none
                         that can be believed */
    char stream[DW_STREAM_SIZE]; /* of the last update that succeeded; empty: none has */
    bool unsure;                 /* it was not asked yet, or an update has failed since */
    char text[DW_LABEL_SIZE];    /* what the engine says; empty: not known */
    bool owed; /* an update took TEXT away, or may have, and touched no weights */
} dw_engine_label;

#define DW_FIRST_LABEL   "default" /* of an engine that took no update over */
#define DW_LABEL_UNKNOWN ((dw_engine_label){.version = DW_NO_VERSION, .unsure = true})

/* Notes TEXT, which the engine reports. */
void dw_engine_label_found(dw_engine_label *label, const char *text);

/* The label of UPDATE's version. */
void dw_engine_label_write(char out[DW_LABEL_SIZE], const dw_engine_update *update);

/* Notes what UPDATE, which ended with STATUS, made of the label. */
void dw_engine_label_updated(dw_engine_label *label, const dw_engine_update *update,
                             dw_status status, bool whole);

/* Takes the label away before an update, unless the engine is known to say `none`. An
 * engine that cannot do this keeps its label. */
dw_status dw_engine_drop_label(dw_engine_http *http, dw_engine_label *label,
                               dw_error *err);

/* Before a resume: brings back the label that an update took away, if its weights are
 * still there. So no answer of a whole engine says `none`. */
dw_status dw_engine_restore_label(dw_engine_http *http, dw_engine_label *label,
                                  dw_error *err);

/* Whether the engine NAME may be resumed. It may if it is known to be whole, or if its
 * LABEL shows it: then *WHOLE is set. Else DW_CONFLICT. */
dw_status dw_engine_check_whole(dw_engine_http *http, const char *name, bool *whole,
                                const dw_engine_label *label,
                                const dw_engine_update *update, dw_error *err);

/* "NAME VERSION" in printable ASCII. VERSION may be NULL. */
void dw_engine_software(char out[64], const char *name, const char *version);

#endif
