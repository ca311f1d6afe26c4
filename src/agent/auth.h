/* Access control: tokens, hosts, origins, and the TLS files. */
#ifndef DW_AGENT_AUTH_H
#define DW_AGENT_AUTH_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/listen.h"
#include "base/hash.h"
#include "agent/agent.h"

typedef struct dw_guard {
    bool has_token;
    uint8_t token[DW_SHA256_BYTES]; /* its hash; the token itself is not kept */
    bool is_loopback;
    char host[DW_HOST_TEXT]; /* the name of --listen */
} dw_guard;

/* Refuses options that would let strangers in: an address that others can reach needs a
 * token, and TLS unless `plain` is set. */
dw_status dw_guard_init(dw_guard *guard, const dw_agent_options *options,
                        const dw_listener *listener, dw_error *err);

/* Whether the request carries the token, or none is needed. */
bool dw_guard_knows(const dw_guard *guard, struct MHD_Connection *connection);

/* Whether the request is for this server. A page of another site can make its own name
 * resolve to loopback, but the Host header then still has that name. */
bool dw_guard_is_host(const dw_guard *guard, struct MHD_Connection *connection);

/* False if a page of another origin sent it. */
bool dw_guard_is_own_origin(struct MHD_Connection *connection);

/* The contents of the two files, each with a NUL at its end; NULL without TLS. */
typedef struct dw_tls_files {
    char *cert;
    char *key;
} dw_tls_files;

/* Reads them, and checks that the key is the certificate's. */
dw_status dw_tls_files_read(dw_tls_files *out, const dw_agent_options *options,
                            dw_error *err);
void dw_tls_files_release(dw_tls_files *files);

#endif
