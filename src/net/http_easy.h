/* One call on one easy handle of libcurl. */
#ifndef DW_NET_HTTP_EASY_H
#define DW_NET_HTTP_EASY_H

#include <curl/curl.h>

#include "net/http.h"

/* AWS_CA_BUNDLE, or NULL; libcurl itself reads SSL_CERT_FILE. */
const char *dw_http_ca_bundle(void);

#define DW_HTTP_MAX_SOCKETS 512

/* The sockets of a thread, also those of idle connections. */
typedef struct dw_http_sockets {
    int fds[DW_HTTP_MAX_SOCKETS];
    unsigned n;
} dw_http_sockets;

/* Sets EASY up for CALL. False when out of memory; the handle stays the caller's. SOCKETS
 * must outlive the connections. */
bool dw_http_easy_attach(dw_http_call *call, CURL *easy, dw_http_sockets *sockets,
                         const char *ca_bundle);

/* Fills the result from libcurl's. */
void dw_http_easy_finish(dw_http_call *call, CURLcode code);
void dw_http_easy_fail(dw_http_call *call, dw_http_result result, const char *problem);

/* Detaches the handle from the call. */
void dw_http_easy_detach(dw_http_call *call);

#endif
