/* The snapshot in a directory, mapped, over restarts of its follower and of the directory
 * itself. One thread at a time. */
#ifndef WORDLE_MAPPED_H
#define WORDLE_MAPPED_H

#include "qwen.h"

typedef struct mapped mapped;

/* DIR need not be there yet; it is borrowed. */
dw_status mapped_new(mapped **out, const char *dir, dw_error *err);
void mapped_free(mapped *m);

/* Holds the newest version (deltawire/snapshot.h) until mapped_release. Opens what is not
 * open; waits a moment where it is being written. */
dw_status mapped_hold(mapped *m, dw_snapshot_view *view, dw_error *err);
void mapped_release(mapped *m);

/* The weights of what is held, for a model of CONFIG; good until mapped_release. */
dw_status mapped_bind(mapped *m, const qwen_config *config, const dw_snapshot_view *view,
                      const qwen_weights **weights, dw_error *err);

/* The next hold sees whether the directory was made anew; else it does so now and then.
 */
void mapped_look(mapped *m);

/* Whether a follower is there. Where a hold was DW_UNAVAILABLE, it is writing. */
bool mapped_has_writer(const mapped *m);

/* How often files were mapped anew: what was known of them before is not known now. */
uint64_t mapped_n_opened(const mapped *m);

/* The stream's id when it was last held, 64 bytes; empty: never. */
const char *mapped_stream(const mapped *m);

#endif
