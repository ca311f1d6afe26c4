/* One request that is waited for, on a connection of its own: for the services that give
 * keys, which are asked a few times an hour. */
#ifndef DW_NET_HTTP_ONCE_H
#define DW_NET_HTTP_ONCE_H

#include "net/http.h"

/* Sends CALL once, within its timeout_ms, and fills its reply; the caller releases it.
 * DW_OK if there is an answer, of any status. DW_UNAVAILABLE, with WHERE and the cause,
 * if there is none. */
dw_status dw_http_once(dw_http_call *call, const char *where, dw_error *err);

#endif
