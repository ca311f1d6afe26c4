/* Engines: what serves the weights, and how it is brought over a change of them.
 *
 * An engine is four functions: probe, pause, apply, resume. There are drivers for vLLM,
 * for SGLang and for commands; a host that serves in this very process hands in functions
 * of its own (dw_engine_new). rollout.h calls them in the right order.
 *
 * Every call of a driver ends by itself, within the limits it was opened with.
 */
#ifndef DELTAWIRE_ENGINE_H
#define DELTAWIRE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deltawire/digest.h"
#include "deltawire/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_engine dw_engine;

/* ---- opening ---------------------------------------------------------------- */

/* Strings are borrowed for the call; NULL and 0 mean the default. */
typedef struct dw_engine_options {
    unsigned pause_ms; /* to wait for an answer to a pause or a resume; default 30,000 */
    unsigned apply_ms; /* to the update itself; default 600,000 */
    unsigned probe_ms; /* to a question; default 5,000 */
    const char *token; /* sent as `Authorization: Bearer`; in no message */
    const char *shell_pause; /* exec: commands for sh -c; NULL: nothing to do */
    const char *shell_apply;
    const char *shell_resume;
} dw_engine_options;

/* Opens the engine that SPEC names; nothing is asked of it yet. OPTIONS may be NULL.
 *
 *     vllm=URL      POST /pause?mode=keep, /start_weight_update, /update_weights with
 *                   the path of the patch, /finish_weight_update, /resume
 *     sglang=URL    POST /pause_generation, /update_weights_from_disk with the
 *                   directory, /continue_generation
 *     exec          the commands of OPTIONS, with DELTAWIRE_VERSION, DELTAWIRE_FROM,
 *                   DELTAWIRE_DIR, DELTAWIRE_PATCH, DELTAWIRE_STATE and
 *                   DELTAWIRE_STREAM in their environment
 */
DW_API dw_status dw_engine_open(dw_engine **out, const char *spec,
                                const dw_engine_options *options, dw_error *err);
DW_API void dw_engine_close(dw_engine *engine);

/* "vllm", ..., and the URL or NULL. Live as long as the engine. */
DW_API const char *dw_engine_driver_name(const dw_engine *engine);
DW_API const char *dw_engine_where(const dw_engine *engine);

/* ---- drivers: engines of one's own ------------------------------------------ */

/* What an engine is brought to. */
typedef struct dw_engine_update {
    const char *stream; /* its id */
    uint64_t from;      /* the version that PATCH starts from; else DW_NO_VERSION */
    uint64_t version;
    dw_digest state;   /* of VERSION */
    const char *dir;   /* absolute: the checkpoint directory, which holds VERSION whole
                          when apply is called; NULL where the weights are the host's own
                          memory, which then holds it */
    const char *patch; /* absolute: the stores that lead from FROM to VERSION, as a file
                          (FORMAT.md); NULL: there is none, the weights are to be taken
                          from DIR whole */
} dw_engine_update;

typedef struct dw_engine_info {
    uint64_t version;  /* that it says it serves; DW_NO_VERSION where it says none */
    char software[64]; /* "vLLM 0.32.0"; empty where unknown */
} dw_engine_info;

/* `self` is what dw_engine_new was given. Codes: DW_NOT_FOUND where nobody is there: its
 * process has ended, or has not begun to serve; DW_UNAVAILABLE where it does not answer
 * in time, or half, so that nobody knows what it did; DW_DENIED, DW_UNSUPPORTED where it
 * cannot do what is asked for, DW_INVALID for an answer that makes no sense, DW_CONFLICT
 * where it refuses. Any function may be NULL where there is nothing to do. All but apply
 * can be asked twice with the same result as once; so can apply, with the same update. */
typedef struct dw_engine_driver {
    size_t struct_bytes; /* sizeof(dw_engine_driver) */
    const char *name;

    /* Is it there, and which version does it serve? */
    dw_status (*probe)(void *self, dw_engine_info *out, dw_error *err);

    /* DW_OK: until resume it reads no weights. After an error it may be paused or not. */
    dw_status (*pause)(void *self, const dw_engine_update *update, dw_error *err);

    /* DW_OK: once resumed it serves UPDATE's version. Where it fails *WHOLE says whether
     * its weights are still those of one version, whichever: it comes in as false. */
    dw_status (*apply)(void *self, const dw_engine_update *update, bool *whole,
                       dw_error *err);

    /* DW_CONFLICT, and it stays as it is, where the driver cannot know that the weights
     * are whole: an engine that it found paused, perhaps amid an update of somebody who
     * was killed, and that took none over since. UPDATE may be NULL. */
    dw_status (*resume)(void *self, const dw_engine_update *update, dw_error *err);

    void (*close)(void *self);
} dw_engine_driver;

/* WHERE is for people, and may be NULL; it is copied. Takes SELF: close is called in the
 * end, also where this fails. */
DW_API dw_status dw_engine_new(dw_engine **out, const dw_engine_driver *driver,
                               void *self, const char *where, dw_error *err);

#ifdef __cplusplus
}
#endif

#endif
