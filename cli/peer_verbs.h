/* The buckets of other systems, for the verbs that read them as well as deltawire
 * streams: pull, follow, log, verify. Each looks for a deltawire stream first. */
#ifndef CLI_PEER_VERBS_H
#define CLI_PEER_VERBS_H

#include <jansson.h>

#include <deltawire/peer.h>

#include "cmd_follow.h"
#include "command_line.h"
#include "progress_bar.h"

/* Notes about what a format cannot express: collected for --json, otherwise printed on
 * stderr. */
typedef struct cli_peer_notes {
    const cli_session *s;
    cli_progress *bar; /* wiped before a line; or NULL */
    json_t *list;      /* NULL: lines */
} cli_peer_notes;

/* A dw_peer_note_fn; CONTEXT is a cli_peer_notes. */
void cli_peer_note(void *context, const char *note);

/* Opens STORE if it holds a peer's versions; else returns false. ERR, the error of the
 * search for a deltawire stream, stays as it is. */
bool cli_peer_found(dw_peer **out, dw_store *store, const dw_error *err);

/* Whether PATH, without a scheme, is a directory with a peer's versions. */
bool cli_peer_is_dir(const char *path);

/* Refuses --trust: a peer's versions are not signed. Returns 0 or the exit code. */
int cli_peer_check_trust(const dw_peer *peer, const cli_session *s, const cli_keys *keys,
                         const char *url);

/* Opens the replica with these options. */
dw_peer_replica_options cli_peer_replica_options(const dw_follow_options *follow,
                                                 cli_peer_notes *notes);

/* Make the JSON members of a report, and print its lines on stdout. */
void cli_peer_report_json(json_t *object, const dw_peer *peer,
                          const dw_peer_sync_report *report, double seconds);
void cli_peer_report_line(const dw_peer *peer, const dw_peer_sync_report *report,
                          double seconds);

/* ---- the verbs; each returns the exit code and leaves the peer open ---- */

int cli_peer_pull(dw_peer *peer, const cli_session *s, const char *url,
                  const dw_follow_options *follow, uint64_t goal);
int cli_peer_follow(dw_peer *peer, cli_follow *f);
int cli_peer_log(dw_peer *peer, const cli_session *s, const char *url, uint64_t n_most);
int cli_peer_verify(dw_peer *peer, const cli_session *s, const char *url,
                    const char *base);

#endif
