/* Engines from inside: what rollouts call, and what drivers are made of. */
#ifndef DW_ENGINE_ENGINE_H
#define DW_ENGINE_ENGINE_H

#include "deltawire/engine.h"

/* ---- calling ---------------------------------------------------------------- */

/* As in dw_engine_driver. A function that the driver does not have is DW_OK. An error is
 * always filled, also where the driver forgot. */

/* Where there is nobody to ask, OUT names no version and no software. */
dw_status dw_engine_probe(dw_engine *engine, dw_engine_info *out, dw_error *err);
bool dw_engine_can_probe(const dw_engine *engine);

dw_status dw_engine_pause(dw_engine *engine, const dw_engine_update *update,
                          dw_error *err);

/* *WHOLE is true after DW_OK. */
dw_status dw_engine_apply(dw_engine *engine, const dw_engine_update *update, bool *whole,
                          dw_error *err);
dw_status dw_engine_resume(dw_engine *engine, const dw_engine_update *update,
                           dw_error *err);

/* Whether the last call failed because nobody listens at the engine's address: its
 * process has ended, or has not begun to serve. Any other DW_UNAVAILABLE (no answer in
 * time, half an answer, a name that is not known) leaves open what the engine did and
 * whether it reads weights. Always false of drivers that cannot tell, those of
 * dw_engine_new among them. */
bool dw_engine_is_gone(const dw_engine *engine);

/* Whether that is so. Never of drivers of the host's own. */
bool dw_engine_has_own_weights(const dw_engine *engine);

/* ---- drivers ---------------------------------------------------------------- */

/* dw_engine_new, with a flag in SELF that dw_engine_is_gone reads. */
dw_status dw_engine_make(dw_engine **out, const dw_engine_driver *driver, void *self,
                         const char *where, const bool *gone, dw_error *err);

/* Says that such an engine reads the directory only during an update: what it serves from
 * is memory of its own. */
void dw_engine_set_own_weights(dw_engine *engine);

/* URL is what stands behind `vllm=` or `sglang=`; of OPTIONS no limit is 0. */
dw_status dw_vllm_open(dw_engine **out, const char *url, const dw_engine_options *options,
                       dw_error *err);
dw_status dw_sglang_open(dw_engine **out, const char *url,
                         const dw_engine_options *options, dw_error *err);
dw_status dw_exec_open(dw_engine **out, const dw_engine_options *options, dw_error *err);

#endif
