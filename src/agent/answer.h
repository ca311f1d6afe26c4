/* HTTP answers, and the headers that all of them have. */
#ifndef DW_AGENT_ANSWER_H
#define DW_AGENT_ANSWER_H

#include <microhttpd.h>

#include "base/bytes.h"

typedef struct dw_answer {
    unsigned code;
    const char *type;   /* of the body */
    dw_writer body;     /* owned until it is sent */
    const void *fixed;  /* a static body instead, or NULL */
    size_t n_fixed;     /* its bytes */
    const char *allow;  /* 405: the methods; else NULL */
    bool closes;        /* the connection is closed after it */
    const char *policy; /* a Content-Security-Policy; NULL: nothing is allowed */
} dw_answer;

/* One line of plain text. */
dw_answer dw_answer_text(unsigned code, const char *text);

/* Sends it, and frees its body. */
enum MHD_Result dw_answer_send(struct MHD_Connection *connection, dw_answer *answer);

#endif
