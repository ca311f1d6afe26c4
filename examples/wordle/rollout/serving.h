/* The served weights: those of a follower's directory, mapped.
 *
 * Each step of the model holds the snapshot (deltawire/snapshot.h), so all layers use one
 * version, whether or not the follower controls this server. During a pause no step
 * begins, so a follower that uses vLLM's interface finds that nothing is held.
 *
 * One thread steps; any other threads call the rest.
 */
#ifndef WORDLE_SERVING_H
#define WORDLE_SERVING_H

#include <stdbool.h>
#include <stdint.h>

#include "qwen.h"

typedef struct serving serving;

/* DIR need not exist yet; it is borrowed. */
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
 * model of CONFIG. DW_UNAVAILABLE if it is paused or the weights are being written,
 * DW_NOT_FOUND if there are none yet, DW_CANCELLED after serving_stop. Call serving_end
 * only after DW_OK. */
dw_status serving_begin(serving *s, const qwen_config *config, unsigned timeout_ms,
                        serving_view *view, dw_error *err);
void serving_end(serving *s);

/* ---- the rest -----------------------------------------------------------------------
 */

/* When it returns, no step is running, and none begins before serving_resume. */
void serving_pause(serving *s);
void serving_resume(serving *s);
bool serving_is_paused(serving *s);

/* Whether weights can be read, or will be once the follower has written them; while it is
 * paused: whether they could when it was not. */
dw_status serving_check(serving *s, dw_error *err);

typedef struct serving_proof {
    uint64_t version;
    dw_digest told;     /* the digest that the follower reports */
    dw_digest computed; /* the actual digest */
    char stream[64];    /* the stream's id */
} serving_proof;

/* Reads all of the weights, once for each version. DW_UNAVAILABLE if they cannot be read
 * now. */
dw_status serving_prove(serving *s, serving_proof *out, dw_error *err);

/* DW_STALE unless the directory holds VERSION with digest STATE. */
dw_status serving_expect(serving *s, uint64_t version, dw_digest state, dw_error *err);

/* The stream of the weights when they were last read; empty: none. */
void serving_stream(serving *s, char out[64]);

#endif
