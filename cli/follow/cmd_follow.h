/* The verb `follow`, in parts: arguments, the loop, and the agent. */
#ifndef CLI_CMD_FOLLOW_H
#define CLI_CMD_FOLLOW_H

#include "agent/agent.h"

#include "after_version.h"
#include "agent_options.h"
#include "command_line.h"
#include "engine_options.h"
#include "keys.h"
#include "outage.h"
#include "stream_open.h"

typedef struct cli_follow {
    const char *url;
    dw_store_options store_options;
    cli_fork_opener fork_opener;
    cli_keys keys;
    dw_follow_options follow;
    cli_command command;
    double interval; /* seconds */
    uint64_t until;  /* or DW_NO_VERSION */
    bool no_report;
    cli_engines engines;
    cli_agent_options agent_options;

    const cli_session *session;
    dw_store *store;
    dw_rollout *rollout;
    dw_follower *follower; /* the rollout's */
    dw_agent *agent;       /* NULL: none */
    cli_outage outage;
    bool is_by_command; /* the last error: the command failed */
    bool is_unreported; /* the last report failed, and that was printed */
    bool is_lost;       /* the newest version was lost, and that was printed */
    uint64_t n_healed;  /* of the follower, when a warning was shown */
    char *kept_shown;   /* the user's files that a warning was about; or NULL */

    uint64_t newest;     /* as far as known, or DW_NO_VERSION */
    uint64_t agent_head; /* the head that the agent shows */
    double t_followers;  /* when the agent last got the other followers */
    double t_report;     /* when this follower last reported to the stream */
    double t_check;      /* when the engines were last checked */

    /* for the current sync */
    uint64_t stopped_us; /* how long the engines were stopped, in all */
    uint64_t n_stops;
} cli_follow;

/* Follows until --until is reached (DW_OK), a signal asks to stop (DW_CANCELLED), or
 * something fails that waiting cannot cure. */
dw_status cli_follow_loop(cli_follow *f, dw_error *err);

/* Reports to the stream, unless --no-report. If that fails, following goes on. The
 * failure is printed once, and its end too. */
void cli_follow_report(cli_follow *f, const char *status, const char *message);

/* ---- the agent (follow_agent.c): all do nothing if there is none ---- */

/* Hooks for the rollout. */
dw_rollout_watch cli_follow_watch(cli_follow *f);

/* Shows the stream and its last versions, once it is open. */
void cli_follow_introduce_stream(cli_follow *f);

/* Shows the version of the weights, and new versions of the stream. */
void cli_follow_update_agent(cli_follow *f);

#endif
