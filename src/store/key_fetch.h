/* What the sources of keys share. */
#ifndef DW_STORE_KEY_FETCH_H
#define DW_STORE_KEY_FETCH_H

#include "net/http_once.h"
#include "store/key_ring.h"

#define DW_HOST_TEXT 200

/* Scheme and host of a URL. The rest may be secret: the path of a container's endpoint,
 * user and password. */
const char *dw_key_host(char out[DW_HOST_TEXT], const char *url);

/* One request to a service; KEYS names it. Fails also without a 200; WHERE is the
 * host. */
dw_status dw_key_ask(dw_http_call *call, const dw_keys *keys, dw_error *err);

/* The error of an answer without keys: DW_UNAVAILABLE if another try may help. CODE and
 * MESSAGE are the service's, or "". */
dw_status dw_key_refused(const dw_keys *keys, int http_status, const char *code,
                         const char *message, const char *where, dw_error *err);

/* Wipes the reply. */
void dw_key_call_release(dw_http_call *call);

/* Appends "&NAME=VALUE", encoded. Does nothing if VALUE is NULL. */
void dw_key_add_field(dw_writer *body, const char *name, const char *value);

#endif
