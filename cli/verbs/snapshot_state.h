/* The record that a follower keeps in its directory: the stream and the version of its
 * weights. */
#ifndef CLI_SNAPSHOT_STATE_H
#define CLI_SNAPSHOT_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include <deltawire/tensor.h>
#include <deltawire/base.h>

#define CLI_SNAPSHOT_STATE_NAME ".deltawire/state.json"

typedef struct cli_snapshot_state {
    bool present;
    char stream[33];
    uint64_t version;
    dw_digest state;
    bool has_next; /* an update is under way, or was interrupted: the weights may be */
    uint64_t next_version;
    dw_digest next_state;
} cli_snapshot_state;

/* Reads the record in the checkpoint PATH. `present` is false if PATH is no directory or
 * has no record. */
dw_status cli_snapshot_state_read(cli_snapshot_state *out, const char *path,
                                  dw_error *err);

#endif
