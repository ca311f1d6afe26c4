/* The HTTP server: one thread, which sleeps until a request comes. */
#ifndef DW_AGENT_SERVER_H
#define DW_AGENT_SERVER_H

#include "agent/agent.h"

typedef struct dw_server dw_server;

/* Binds and starts to answer for AGENT, which must outlive it. */
dw_status dw_server_start(dw_server **out, dw_agent *agent,
                          const dw_agent_options *options, dw_error *err);

/* Ends all connections. Accepts NULL. */
void dw_server_stop(dw_server *server);

/* "http://127.0.0.1:9470/" */
const char *dw_server_url(const dw_server *server);

#endif
