/* `deltawire pull` of another system's versions. */
#include <stdio.h>

#include "json_out.h"
#include "peer_verbs.h"
#include "print.h"
#include "stream_open.h"

int cli_peer_pull(dw_peer *peer, const cli_session *s, const char *url,
                  const dw_follow_options *follow, uint64_t goal)
{
    dw_error err;
    dw_peer_replica *replica = NULL;
    dw_peer_sync_report report = {0};
    cli_progress bar = cli_progress_start(s, "pulling");
    dw_progress hook = cli_progress_hook(&bar);
    cli_peer_notes notes = {s, &bar, s->json ? json_array() : NULL};
    const dw_peer_replica_options options = cli_peer_replica_options(follow, &notes);
    dw_status status = dw_peer_replica_open(&replica, peer, &options, &err);
    if (status == DW_OK)
        status = dw_peer_replica_sync(replica, goal, &hook, &report, &err);
    const dw_digest state = replica ? dw_peer_replica_state(replica) : 0;
    dw_peer_replica_close(replica);
    cli_progress_end(&bar);
    if (status == DW_OK && s->json) {
        json_t *object = json_object();
        cli_json_text(object, "url", url);
        cli_json_text(object, "into", follow->into);
        cli_json_digest(object, "state", state);
        cli_peer_report_json(object, peer, &report, cli_now() - bar.t_start);
        json_object_set(object, "notes", notes.list);
        cli_json_print(object);
    } else if (status == DW_OK && !s->quiet) {
        cli_print_text(stdout, follow->into);
        fputs(": ", stdout);
        cli_peer_report_line(peer, &report, cli_now() - bar.t_start);
    }
    json_decref(notes.list);
    return status == DW_OK ? 0 : cli_stream_fail(s, &err, url);
}
