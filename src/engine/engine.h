/* Engines: inference servers that take new weights.
 *
 * An engine has four functions: probe, pause, apply and resume. There are drivers for
 * vLLM, for SGLang and for commands. rollout.h calls them in the right order.
 *
 * Every call of a driver ends within the time limits of the options.
 */
#ifndef DW_ENGINE_ENGINE_H
#define DW_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "deltawire/tensor.h"
#include "deltawire/base.h"

typedef struct dw_engine dw_engine;

/* ---- opening ---------------------------------------------------------------- */

/* NULL and 0 mean the default. */
typedef struct dw_engine_options {
    unsigned pause_ms;       /* the time limit of a pause or a resume; default 10,000, of
                                a command 30,000 */
    unsigned apply_ms;       /* of an update; default 600,000 */
    unsigned probe_ms;       /* of a probe; default 5,000 */
    const char *token;       /* sent as `Authorization: Bearer`; it is in no message */
    const char *shell_pause; /* exec: commands for sh -c; NULL: nothing to do */
    const char *shell_apply;
    const char *shell_resume;
} dw_engine_options;

/* Opens the engine that SPEC names. Sends nothing to it yet.
 *
 *     vllm=URL      POST /pause?mode=keep, /start_weight_update, /update_weights with
 *                   the path of the patch, /finish_weight_update, /resume
 *     sglang=URL    POST /pause_generation, /update_weights_from_disk with the
 *                   directory, /continue_generation
 *     exec          the commands of OPTIONS, with DELTAWIRE_VERSION, DELTAWIRE_FROM,
 *                   DELTAWIRE_DIR, DELTAWIRE_PATCH, DELTAWIRE_STATE and
 *                   DELTAWIRE_STREAM in their environment
 */
dw_status dw_engine_open(dw_engine **out, const char *spec,
                         const dw_engine_options *options, dw_error *err);
void dw_engine_close(dw_engine *engine);

/* ---- drivers ------------------------------------------------------------------ */

/* The version that an engine is brought to. */
typedef struct dw_engine_update {
    const char *stream; /* its id */
    uint64_t from;      /* the version that PATCH starts from; else DW_NO_VERSION */
    uint64_t version;
    dw_digest state; /* of VERSION */
    const char *dir; /* absolute: the checkpoint directory, which holds VERSION when apply
                        is called. NULL: the weights are the program's own memory, which
                        then holds VERSION */
    const char *patch; /* absolute: the patch from FROM to VERSION, as a file (FORMAT.md).
                          NULL: there is none; take all weights from DIR */
} dw_engine_update;

typedef struct dw_engine_info {
    uint64_t version;  /* that it serves; DW_NO_VERSION if it does not report it */
    char software[64]; /* "vLLM 0.32.0"; empty: not known */
} dw_engine_info;

/* The functions fill the error, and return DW_NOT_FOUND if the
 * engine does not run or does not serve yet; DW_UNAVAILABLE if it does not answer in time
 * or not completely, so that nobody knows what it did; DW_DENIED; DW_UNSUPPORTED if it
 * cannot do it; DW_INVALID for a wrong answer; DW_CONFLICT if it refuses. A function may
 * be NULL if there is nothing to do. To call a function twice has the same effect as
 * once; for apply, with the same update. */
typedef struct dw_engine_driver {
    const char *name;

    /* Reports if the engine serves, and which version. */
    dw_status (*probe)(void *self, dw_engine_info *out, dw_error *err);

    /* After DW_OK the engine reads no weights until resume. After an error it may be
     * paused or not. */
    dw_status (*pause)(void *self, const dw_engine_update *update, dw_error *err);

    /* After DW_OK and resume the engine serves UPDATE's version. If it fails, it sets
     * *WHOLE if the engine's weights are still those of one version, no matter which. */
    dw_status (*apply)(void *self, const dw_engine_update *update, bool *whole,
                       dw_error *err);

    /* DW_CONFLICT, and the engine stays paused, if the driver cannot know that the
     * weights are those of one version: it found the engine paused, perhaps in the middle
     * of an update of a process that was killed. UPDATE may be NULL. */
    dw_status (*resume)(void *self, const dw_engine_update *update, dw_error *err);

    void (*close)(void *self);
} dw_engine_driver;

/* ---- the state of an engine, as a rollout reports it --------------------------- */

typedef enum dw_engine_state {
    DW_ENGINE_UNKNOWN = 0, /* not asked yet */
    DW_ENGINE_SERVING,     /* serves the version of the directory */
    DW_ENGINE_BEHIND,      /* serves another version, or does not report which */
    DW_ENGINE_PAUSED,      /* for an update in progress */
    DW_ENGINE_BROKEN,      /* paused; its weights may be a mix and are being replaced */
    DW_ENGINE_AWAY,        /* does not answer */
} dw_engine_state;

/* "serving", "broken", ... */
const char *dw_engine_state_name(dw_engine_state state);

typedef struct dw_engine_status {
    const char *driver;
    const char *where; /* may be NULL */
    dw_engine_state state;
    uint64_t version;  /* that it serves, or DW_NO_VERSION */
    char software[64]; /* may be empty */
    dw_error error;    /* the last one; code DW_OK if there is none */
} dw_engine_status;

#endif
