/* What must hold of a stream, and of what follows it, whoever was killed when. Each check
 * says on stdout what does not. */
#ifndef DW_SOAK_CHECK_H
#define DW_SOAK_CHECK_H

#include "deltawire/stream.h"

/* The log as it was seen so far. */
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

/* Commits are without holes, those seen before have the same bytes, the new ones have the
 * digest of their step. Takes the new ones in. */
bool soak_check_log(soak_history *history, dw_store *store);

/* Every line 'VERSION STEP' of the file PATH is in the log; removes the file. */
bool soak_check_acked(const soak_history *history, const char *path);

/* The directory, as a kill left it, is a version: the one that its file says it was at or
 * was to become; then it can go on to the head. COLLECT runs a collection in between. */
bool soak_check_dir(const soak_history *history, dw_store *store, const char *dir,
                    const char *id, bool collect);

/* A follower that starts from nothing reaches the head. */
bool soak_check_fresh(const soak_history *history, dw_store *store);

/* dw_stream_verify finds nothing. */
bool soak_check_verify(dw_store *store);

/* A collection of a stream at rest; its floor is above no listed follower. */
bool soak_check_collect(dw_store *store, uint64_t n_keep);

#endif
