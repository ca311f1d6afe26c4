/* Lists a stream's followers for the status page. */
#ifndef CLI_AGENT_FOLLOWERS_H
#define CLI_AGENT_FOLLOWERS_H

#include "agent/agent.h"

/* Reads the reports of all followers and passes them to AGENT. DW_CORRUPT if one of them
 * cannot go on to HEAD, because its next version is missing. If HEAD is DW_NO_VERSION,
 * this is not checked. */
dw_status cli_agent_show_followers(dw_agent *agent, dw_stream *stream, uint64_t head,
                                   dw_error *err);

#endif
