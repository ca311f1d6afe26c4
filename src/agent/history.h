/* The history of a stream's newest versions, one row each.
 *
 * A row comes from a commit of the stream, or from a step that this process made. The row
 * of a step has more members, so it replaces that of a commit. Rows come in any order.
 */
#ifndef DW_AGENT_HISTORY_H
#define DW_AGENT_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/rollout.h"

#define DW_HISTORY_VERSIONS 512 /* that an agent keeps */

typedef struct dw_history_row {
    dw_rollout_step step; /* `version` is the row's key */
    int64_t time_ms;      /* of the apply, or of the commit */
    bool applied;         /* by this process: the times are measured */
} dw_history_row;

typedef struct dw_history {
    dw_history_row *rows; /* by version, ascending; owned */
    size_t n_rows;
    size_t n_room;
    uint64_t sequence; /* changes whenever a row changes that is not the newest */
} dw_history;

/* False when out of memory. */
bool dw_history_init(dw_history *history, size_t n_room);
void dw_history_release(dw_history *history);

void dw_history_add_commit(dw_history *history, const dw_version_info *version);
void dw_history_add_step(dw_history *history, const dw_rollout_step *step,
                         int64_t time_ms);

/* The index of the first row above VERSION; n_rows if there is none. */
size_t dw_history_above(const dw_history *history, uint64_t version);

/* Copies FROM's rows. Both must have the same room. */
void dw_history_copy(dw_history *to, const dw_history *from);

/* Bits fetched for each changed element; -1 if nothing changed, or if the step does not
 * start from another version. */
double dw_step_bits_per_change(const dw_rollout_step *step);

/* The durations of a step, by name. */
typedef struct dw_step_time {
    const char *name; /* "fetch", ... */
    size_t offset;    /* in dw_rollout_step */
} dw_step_time;

#define DW_N_STEP_TIMES 8
extern const dw_step_time dw_step_times[DW_N_STEP_TIMES];

uint64_t dw_step_time_us(const dw_rollout_step *step, const dw_step_time *time);

#endif
