/* The weights that are served: those that a follower keeps in a directory, mapped.
 *
 * Each step of the model holds the snapshot (deltawire/snapshot.h), so its weights are of
 * one version from the first layer to the last, whether or not the follower drives this
 * server. A pause keeps steps from beginning: who drives it, with vLLM's interface, finds
 * that nothing is held.
 *
 * One thread steps; any other threads call the rest.
 */
#ifndef WORDLE_SERVING_H
#define WORDLE_SERVING_H

#include <stdbool.h>
#include <stdint.h>

#include "qwen.h"

typedef struct serving serving;

/* DIR need not be there yet; it is borrowed. */
dw_status serving_new(serving **out, const char *dir, dw_error *err);
void serving_free(serving *s);

/* Ends all waits for good. */
void serving_stop(serving *s);

/* ---- steps --------------------------------------------------------------------------
 */

typedef struct serving_view {
    const qwen_weights *weights;
    uint64_t version;
    dw_digest state; /* of the weights: another stream may have the same version */
} serving_view;

/* Waits while it is paused, at most TIMEOUT_MS, then holds the weights for a step of a
 * model of CONFIG. DW_UNAVAILABLE where it is paused or the weights are being written,
 * DW_NOT_FOUND where there are none yet, DW_CANCELLED after serving_stop. After DW_OK
 * alone comes serving_end. */
dw_status serving_begin(serving *s, const qwen_config *config, unsigned timeout_ms,
                        serving_view *view, dw_error *err);
void serving_end(serving *s);

/* ---- the rest -----------------------------------------------------------------------
 */

/* When it returns no step is under way, and none begins before serving_resume. */
void serving_pause(serving *s);
void serving_resume(serving *s);
bool serving_is_paused(serving *s);

/* Whether weights can be read, or will be once the follower has written them; while it is
 * paused: whether they could when it was not. */
dw_status serving_check(serving *s, dw_error *err);

typedef struct serving_proof {
    uint64_t version;
    dw_digest told;     /* that the follower says the weights have */
    dw_digest computed; /* that they have */
    char stream[64];    /* the stream's id */
} serving_proof;

/* Reads all of the weights, once for each version. DW_UNAVAILABLE where they are not to
 * be read now. */
dw_status serving_prove(serving *s, serving_proof *out, dw_error *err);

/* Whether the directory holds VERSION with digest STATE, whole: DW_STALE where not. */
dw_status serving_expect(serving *s, uint64_t version, dw_digest state, dw_error *err);

/* The stream that the weights were last seen to be of; empty: none. */
void serving_stream(serving *s, char out[64]);

#endif
