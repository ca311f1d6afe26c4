/* The snapshot in a directory, mapped, over restarts of its follower and of the directory
 * itself. One thread at a time. */
#ifndef WORDLE_MAPPED_H
#define WORDLE_MAPPED_H

#include "qwen.h"

typedef struct mapped mapped;

/* DIR need not exist yet; it is borrowed. */
dw_status mapped_new(mapped **out, const char *dir, dw_error *err);
void mapped_free(mapped *m);

/* Holds the newest version (deltawire/snapshot.h) until mapped_release. Opens it if
 * necessary; waits a moment if it is being written. */
dw_status mapped_hold(mapped *m, dw_snapshot_view *view, dw_error *err);
void mapped_release(mapped *m);

/* The weights of the held version, for a model of CONFIG; valid until mapped_release. */
dw_status mapped_bind(mapped *m, const qwen_config *config, const dw_snapshot_view *view,
                      const qwen_weights **weights, dw_error *err);

/* Makes the next hold check if the directory was made again; otherwise this happens now
 * and then.
 */
void mapped_look(mapped *m);

/* Whether a follower runs. If a hold was DW_UNAVAILABLE, it is writing. */
bool mapped_has_writer(const mapped *m);

/* How often files were mapped: after a change nothing is known of them. */
uint64_t mapped_n_opened(const mapped *m);

/* The stream's id when it was last held, 64 bytes; empty: never. */
const char *mapped_stream(const mapped *m);

#endif
