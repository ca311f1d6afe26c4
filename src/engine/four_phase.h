/* One step of a rollout host through the four phases. */
#ifndef DW_ENGINE_FOUR_PHASE_H
#define DW_ENGINE_FOUR_PHASE_H

#include "engine/rollout_int.h"
#include "weights/position.h"

/* Makes one step of the route to GOAL, or finishes the current one. */
dw_status dw_four_phases(dw_rollout *rollout, uint64_t goal, const dw_progress *progress,
                         dw_error *err);

/* The strings of an update; release them after it. */
typedef struct dw_update_paths {
    char *dir;
    char *patch;
} dw_update_paths;

/* The update that brings an engine to the version of the weights. */
dw_status dw_update_of_version(dw_engine_update *out, dw_update_paths *paths,
                               dw_follower *follower, dw_error *err);

/* The same without a follower: the weights in DIR are at AT. */
dw_status dw_update_of_position(dw_engine_update *out, dw_update_paths *paths,
                                const dw_position *at, const char *dir, dw_error *err);

void dw_update_paths_release(dw_update_paths *paths);

#endif
