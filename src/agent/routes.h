/* Requests and their answers. */
#ifndef DW_AGENT_ROUTES_H
#define DW_AGENT_ROUTES_H

#include <microhttpd.h>

#include "agent/agent_int.h"
#include "agent/auth.h"
#include "agent/page.h"

/* The data that answers are made from. Only the server's thread uses it. */
typedef struct dw_desk {
    dw_agent *agent;
    bool stream_only;
    dw_guard guard;
    dw_report view;
    char page_policy[DW_PAGE_POLICY];
} dw_desk;

/* Called by MHD with the head of a request, then with each piece of its body, then once
 * more at its end. CONTEXT is the desk. */
enum MHD_Result dw_desk_handle(void *context, struct MHD_Connection *connection,
                               const char *path, const char *method, const char *version,
                               const char *body, size_t *n_body, void **request);

/* Called by MHD when a request is over. */
void dw_desk_completed(void *context, struct MHD_Connection *connection, void **request,
                       enum MHD_RequestTerminationCode code);

#endif
