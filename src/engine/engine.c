#include "engine/engine_int.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "deltawire/stream.h"

enum { COMMAND_MS = 30000, PAUSE_MS = 10000, APPLY_MS = 600000, PROBE_MS = 5000 };

/* ---- opening ---- */

dw_status dw_engine_new(dw_engine **out, const dw_engine_driver *driver, void *self,
                        const char *where, const bool *gone, dw_error *err)
{
    dw_engine *engine = dw_alloc_zeroed(1, sizeof *engine);
    char *copy = where ? dw_copy_string(where) : NULL;
    *out = engine;
    if (engine && (!where || copy)) {
        *engine =
            (dw_engine){.driver = driver, .self = self, .where = copy, .gone = gone};
        return DW_OK;
    }
    dw_free(engine);
    dw_free(copy);
    *out = NULL;
    return dw_fail_memory(err, where);
}

/* The text after NAME= in SPEC, or NULL. */
static const char *value_of(const char *spec, const char *name)
{
    size_t n = strlen(name);
    return strncmp(spec, name, n) == 0 && spec[n] == '=' ? spec + n + 1 : NULL;
}

dw_status dw_engine_open(dw_engine **out, const char *spec,
                         const dw_engine_options *options, dw_error *err)
{
    *out = NULL;
    dw_engine_options all = options ? *options : (dw_engine_options){0};
    const bool is_exec = spec && strcmp(spec, "exec") == 0;
    if (all.pause_ms == 0)
        all.pause_ms = is_exec ? COMMAND_MS : PAUSE_MS;
    all.apply_ms = all.apply_ms ? all.apply_ms : APPLY_MS;
    all.probe_ms = all.probe_ms ? all.probe_ms : PROBE_MS;
    const char *url;
    if (spec && (url = value_of(spec, "vllm")))
        return dw_vllm_open(out, url, &all, err);
    if (spec && (url = value_of(spec, "sglang")))
        return dw_sglang_open(out, url, &all, err);
    if (is_exec)
        return dw_exec_open(out, &all, err);
    /* the text after an unknown name may be secret */
    return dw_fail(err, DW_INVALID, NULL,
                   "unknown engine '%.*s': give vllm=URL, sglang=URL or exec",
                   spec ? (int)strcspn(spec, "=") : 0, spec ? spec : "");
}

void dw_engine_close(dw_engine *engine)
{
    if (!engine)
        return;
    if (engine->driver->close)
        engine->driver->close(engine->self);
    dw_free(engine->where);
    dw_free(engine);
}

/* ---- calling ---- */

dw_status dw_engine_probe(dw_engine *engine, dw_engine_info *out, dw_error *err)
{
    *out = (dw_engine_info){.version = DW_NO_VERSION};
    return engine->driver->probe ? engine->driver->probe(engine->self, out, err) : DW_OK;
}

dw_status dw_engine_pause(dw_engine *engine, const dw_engine_update *update,
                          dw_error *err)
{
    return engine->driver->pause ? engine->driver->pause(engine->self, update, err)
                                 : DW_OK;
}

dw_status dw_engine_apply(dw_engine *engine, const dw_engine_update *update, bool *whole,
                          dw_error *err)
{
    *whole = false;
    const dw_status status = engine->driver->apply
                                 ? engine->driver->apply(engine->self, update, whole, err)
                                 : DW_OK;
    *whole |= status == DW_OK;
    return status;
}

dw_status dw_engine_resume(dw_engine *engine, const dw_engine_update *update,
                           dw_error *err)
{
    return engine->driver->resume ? engine->driver->resume(engine->self, update, err)
                                  : DW_OK;
}

bool dw_engine_is_gone(const dw_engine *engine)
{
    return engine->gone && *engine->gone;
}
