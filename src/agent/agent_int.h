/* Inside the agent: the report, behind one lock, and the server that shows it. */
#ifndef DW_AGENT_AGENT_INT_H
#define DW_AGENT_AGENT_INT_H

#include <pthread.h>

#include "agent/server.h"
#include "agent/report.h"

struct dw_agent {
    dw_server *server;

    pthread_mutex_t lock;
    pthread_cond_t pin_asked;
    /* guarded by the lock: */
    dw_report report;
    uint64_t n_pins;       /* calls of /pin and /unpin */
    uint64_t n_pins_seen;  /* those before the last wait */
    uint64_t t_watched_ms; /* the last request for the status; 0: never */
};

/* Copies the report to VIEW, which dw_report_init made with room for as many versions.
 */
void dw_agent_view(dw_agent *agent, dw_report *view);

/* Notes a request for the status. */
void dw_agent_watch(dw_agent *agent);

/* Holds VERSION; NULL: the current version. *PINNED is the version held. DW_CONFLICT if
 * there is no such version. */
dw_status dw_agent_pin(dw_agent *agent, const uint64_t *version, uint64_t *pinned,
                       dw_error *err);
void dw_agent_unpin(dw_agent *agent);

#endif
