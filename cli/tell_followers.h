/* The followers of a stream, told to who shows them. */
#ifndef CLI_TELL_FOLLOWERS_H
#define CLI_TELL_FOLLOWERS_H

#include <deltawire/agent.h>

/* Reads what every follower reports and tells AGENT of all of them. */
dw_status cli_tell_followers(dw_agent *agent, dw_stream *stream, dw_error *err);

#endif
