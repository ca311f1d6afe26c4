/* Internals of engines: the calls for rollouts, and helpers of drivers. */
#ifndef DW_ENGINE_ENGINE_INT_H
#define DW_ENGINE_ENGINE_INT_H

#include "engine/engine.h"

struct dw_engine {
    const dw_engine_driver *driver;
    void *self;
    char *where;      /* the URL, or NULL */
    const bool *gone; /* in SELF; NULL: the driver cannot know */
    bool own_weights; /* reads the directory only during an update: it serves from memory
                         of its own */
    uint64_t away_at; /* the dw_clock_ms() of the first request that it did not do, or 0.
                         Rollouts note it here: one that cannot be opened is opened again,
                         and patience does not begin anew */
};

/* DRIVER stays; WHERE is copied. dw_engine_close calls the driver's close. If this fails,
 * SELF stays the caller's. */
dw_status dw_engine_new(dw_engine **out, const dw_engine_driver *driver, void *self,
                        const char *where, const bool *gone, dw_error *err);

/* These call the driver's function. If it has none, the result is DW_OK; OUT then names
 * no version and no software. */
dw_status dw_engine_probe(dw_engine *engine, dw_engine_info *out, dw_error *err);
dw_status dw_engine_pause(dw_engine *engine, const dw_engine_update *update,
                          dw_error *err);
/* *WHOLE is true after DW_OK. */
dw_status dw_engine_apply(dw_engine *engine, const dw_engine_update *update, bool *whole,
                          dw_error *err);
dw_status dw_engine_resume(dw_engine *engine, const dw_engine_update *update,
                           dw_error *err);

/* Whether the last call failed because nobody listens at the engine's address: its
 * process has ended, or has not begun to serve. After any other DW_UNAVAILABLE (no answer
 * in time, half an answer, an unknown name) it is not known what the engine did and
 * whether it reads weights. Always false for drivers that cannot know. */
bool dw_engine_is_gone(const dw_engine *engine);

/* URL is the value of `vllm=` or `sglang=`. No limit in OPTIONS is 0. */
dw_status dw_vllm_open(dw_engine **out, const char *url, const dw_engine_options *options,
                       dw_error *err);
dw_status dw_sglang_open(dw_engine **out, const char *url,
                         const dw_engine_options *options, dw_error *err);
dw_status dw_exec_open(dw_engine **out, const dw_engine_options *options, dw_error *err);

#endif
