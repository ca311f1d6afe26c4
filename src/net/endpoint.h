/* The address of a service: https://HOST[:PORT][/PATH]. */
#ifndef DW_NET_ENDPOINT_H
#define DW_NET_ENDPOINT_H

#include "deltawire/base.h"

typedef struct dw_endpoint {
    char *scheme; /* "http" or "https" */
    char *host;   /* as in the Host header: with its port if that is not the scheme's */
    char *path;   /* "" or "/a/b", no slash at its end */
} dw_endpoint;

/* DW_INVALID, with WHERE, if TEXT is no such URL, or has credentials or a query. Libcurl
 * must have been started (dw_http_init). Release it also after a failure. */
dw_status dw_endpoint_parse(dw_endpoint *out, const char *text, const char *where,
                            dw_error *err);
void dw_endpoint_release(dw_endpoint *endpoint);

#endif
