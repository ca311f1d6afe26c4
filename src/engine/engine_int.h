/* Internals of engines: the calls for rollouts, and helpers of drivers. */
#ifndef DW_ENGINE_ENGINE_INT_H
#define DW_ENGINE_ENGINE_INT_H

#include "engine/engine.h"

/* ---- calling ---------------------------------------------------------------- */

/* These call the driver's function (dw_engine_driver). If it has none, the result is
 * DW_OK. The error is always filled, even if the driver did not. */

/* Without a probe, OUT names no version and no software. */
dw_status dw_engine_probe(dw_engine *engine, dw_engine_info *out, dw_error *err);
bool dw_engine_can_probe(const dw_engine *engine);

dw_status dw_engine_pause(dw_engine *engine, const dw_engine_update *update,
                          dw_error *err);

/* *WHOLE is true after DW_OK. */
dw_status dw_engine_apply(dw_engine *engine, const dw_engine_update *update, bool *whole,
                          dw_error *err);
dw_status dw_engine_resume(dw_engine *engine, const dw_engine_update *update,
                           dw_error *err);

/* "vllm", ..., and the URL or NULL. They live as long as the engine. */
const char *dw_engine_driver_name(const dw_engine *engine);
const char *dw_engine_where(const dw_engine *engine);

/* Whether the last call failed because nobody listens at the engine's address: its
 * process has ended, or has not begun to serve. After any other DW_UNAVAILABLE (no answer
 * in time, half an answer, an unknown name) it is not known what the engine did and
 * whether it reads weights. Always false for drivers that cannot know, and for those of
 * dw_engine_new. */
bool dw_engine_is_gone(const dw_engine *engine);

/* Whether the engine serves from memory of its own: dw_engine_set_own_weights. */
bool dw_engine_has_own_weights(const dw_engine *engine);

/* The dw_clock_ms() of the first request that it did not do, or 0. Rollouts note it here:
 * one that cannot be opened is opened again, and patience does not begin anew. */
void dw_engine_set_away(dw_engine *engine, uint64_t since);
uint64_t dw_engine_away_at(const dw_engine *engine);

/* ---- drivers ---------------------------------------------------------------- */

/* dw_engine_new with GONE, a flag in SELF that dw_engine_is_gone reads, or NULL. */
dw_status dw_engine_make(dw_engine **out, const dw_engine_driver *driver, void *self,
                         const char *where, const bool *gone, dw_error *err);

/* The engine reads the directory only during an update. It serves from memory of its
 * own. */
void dw_engine_set_own_weights(dw_engine *engine);

/* URL is the value of `vllm=` or `sglang=`. No limit in OPTIONS is 0. */
dw_status dw_vllm_open(dw_engine **out, const char *url, const dw_engine_options *options,
                       dw_error *err);
dw_status dw_sglang_open(dw_engine **out, const char *url,
                         const dw_engine_options *options, dw_error *err);
dw_status dw_exec_open(dw_engine **out, const dw_engine_options *options, dw_error *err);

#endif
