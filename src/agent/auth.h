/* Who may ask: tokens, hosts, origins, and the files of TLS. */
#ifndef DW_AGENT_AUTH_H
#define DW_AGENT_AUTH_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/listen.h"
#include "base/hash.h"
#include "deltawire/agent.h"

typedef struct dw_guard {
    bool has_token;
    uint8_t token[DW_SHA256_BYTES]; /* its hash: all that is kept of it */
    bool is_loopback;
    char host[DW_HOST_TEXT]; /* the name it was told to listen at */
} dw_guard;

/* Refuses what would let strangers in: an address that others can reach wants a token,
 * and TLS unless it is `plain`. */
dw_status dw_guard_init(dw_guard *guard, const dw_agent_options *options,
                        const dw_listener *listener, dw_error *err);

/* Whether the request carries the token, where there is one. */
bool dw_guard_knows(const dw_guard *guard, struct MHD_Connection *connection);

/* Whether it is meant for this server: a page elsewhere whose name was made to resolve to
 * loopback says its own name. */
bool dw_guard_is_host(const dw_guard *guard, struct MHD_Connection *connection);

/* Whether no page of another origin sent it. */
bool dw_guard_is_own_origin(struct MHD_Connection *connection);

/* The contents of the two files, each ended by a NUL, to be freed; NULL without TLS. */
typedef struct dw_tls_files {
    char *cert;
    char *key;
} dw_tls_files;

/* Reads them, and sees that they belong together. */
dw_status dw_tls_files_read(dw_tls_files *out, const dw_agent_options *options,
                            dw_error *err);
void dw_tls_files_release(dw_tls_files *files);

#endif
