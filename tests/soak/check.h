/* Conditions that a stream and its followers must meet after any kills. Each check prints
 * failures on stdout. */
#ifndef DW_SOAK_CHECK_H
#define DW_SOAK_CHECK_H

#include "deltawire/stream.h"

/* The log as read so far. */
typedef struct soak_history {
    struct soak_commit {
        uint8_t *bytes;
        size_t n_bytes;
        uint64_t step;
    } * commits;
    size_t n;
    uint64_t seed;
} soak_history;

void soak_history_forget(soak_history *history);

/* Checks that commits have no gaps, that known ones have the same bytes, and that new
 * ones have the digest of their step. Adds the new ones. */
bool soak_check_log(soak_history *history, dw_store *store);

/* Checks that every line 'VERSION STEP' of the file PATH is in the log. Removes the file.
 */
bool soak_check_acked(const soak_history *history, const char *path);

/* Checks that the directory after a kill is a version: the one in its record or the one
 * it was going to. Then it must reach the head. With COLLECT a collection runs in
 * between. */
bool soak_check_dir(const soak_history *history, dw_store *store, const char *dir,
                    const char *id, bool collect);

/* Checks that a new follower reaches the head. */
bool soak_check_fresh(const soak_history *history, dw_store *store);

/* Checks that dw_stream_verify finds no fault. */
bool soak_check_verify(dw_store *store);

/* Collects an idle stream. Its floor must not be above a listed follower. */
bool soak_check_collect(dw_store *store, uint64_t n_keep);

#endif
