/* The verb `follow`, in parts: arguments, the loop, and what its HTTP face is told. */
#ifndef CLI_FOLLOW_H
#define CLI_FOLLOW_H

#include <deltawire/agent.h>

#include "after_version.h"
#include "agent_options.h"
#include "engine_options.h"
#include "keys.h"
#include "options.h"
#include "store.h"
#include "outage.h"

typedef struct cli_follow {
    const char *url;
    dw_store_options store_options;
    cli_fork_opener fork_opener;
    cli_keys keys;
    dw_follow_options follow;
    cli_command command;
    double interval; /* seconds */
    uint64_t max_behind;
    uint64_t until; /* or DW_NO_VERSION */
    bool report;
    cli_engines engines;
    cli_agent_options agent_options;

    const cli_session *session;
    dw_store *store;
    dw_rollout *rollout;
    dw_follower *follower; /* the rollout's */
    dw_peer *peer;         /* another system's versions, instead; or NULL */
    dw_agent *agent;       /* NULL: nobody is told */
    cli_outage outage;
    bool is_by_command; /* the last error: the command failed */
    bool is_unreported; /* the last report failed, and that was told */
    bool is_lost;       /* the newest version was lost, and that was told */

    uint64_t newest;     /* as far as known, or DW_NO_VERSION */
    uint64_t agent_head; /* to the agent */
    double t_followers;  /* when it was last told of the other followers */
    double t_report;     /* when the stream was last told where this one is */
    double t_check;      /* when the engines were last looked at */

    /* of the move under way */
    uint64_t stopped_us; /* the engines, in all */
    uint64_t n_stops;
} cli_follow;

/* Follows until --until is reached (DW_OK), a signal asks to stop (DW_CANCELLED), or
 * something fails that waiting does not mend. */
dw_status cli_follow_loop(cli_follow *f, dw_error *err);

/* Reports to the stream, unless --no-report. If that fails, following goes on. It is told
 * once, and so is its end. */
void cli_follow_report(cli_follow *f, const char *status, const char *message);

/* ---- what the HTTP face is told (follow_tell.c); all do nothing where there is none
 * ---- */

/* Hooks for the rollout. */
dw_rollout_watch cli_follow_watch(cli_follow *f);

/* The stream, and its last versions, once it is open. */
void cli_follow_introduce_stream(cli_follow *f);

/* Where it stands now, and what is new in the stream. */
void cli_follow_update_agent(cli_follow *f);

#endif
