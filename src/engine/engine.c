#include "engine/engine_int.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "deltawire/stream.h"

enum { COMMAND_MS = 30000, PAUSE_MS = 10000, APPLY_MS = 600000, PROBE_MS = 5000 };

struct dw_engine {
    dw_engine_driver driver;
    void *self;
    char *name;
    char *where;
    const bool *gone; /* in SELF; NULL: the driver cannot know */
    bool own_weights;
    uint64_t away_at;
};

/* ---- opening ---- */

dw_status dw_engine_make(dw_engine **out, const dw_engine_driver *driver, void *self,
                         const char *where, const bool *gone, dw_error *err)
{
    dw_engine *engine = dw_alloc_zeroed(1, sizeof *engine);
    char *name = dw_copy_string(driver->name);
    char *copy = where ? dw_copy_string(where) : NULL;
    if (!engine || !name || (where && !copy)) {
        dw_free(engine);
        dw_free(name);
        dw_free(copy);
        return dw_fail_memory(err, where);
    }
    *engine = (dw_engine){*driver, self, name, copy, gone, false, 0};
    engine->driver.name = name;
    *out = engine;
    return DW_OK;
}

void dw_engine_set_own_weights(dw_engine *engine)
{
    engine->own_weights = true;
}

bool dw_engine_has_own_weights(const dw_engine *engine)
{
    return engine->own_weights;
}

void dw_engine_set_away(dw_engine *engine, uint64_t since)
{
    engine->away_at = since;
}

uint64_t dw_engine_away_at(const dw_engine *engine)
{
    return engine->away_at;
}

dw_status dw_engine_new(dw_engine **out, const dw_engine_driver *driver, void *self,
                        const char *where, dw_error *err)
{
    *out = NULL;
    dw_engine_driver own = {0};
    dw_status status = dw_options_take(&own, sizeof own, driver, "dw_engine_driver", err);
    if (status != DW_OK)
        return status;
    if (!own.name || !own.name[0])
        return dw_fail(err, DW_INVALID, where, "a driver of an engine needs a name");
    return dw_engine_make(out, &own, self, where, NULL, err);
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
    dw_engine_options all;
    dw_status status = DW_OPTIONS_TAKE(dw_engine_options, &all, options, err);
    if (status != DW_OK)
        return status;
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
    if (engine->driver.close)
        engine->driver.close(engine->self);
    dw_free(engine->name);
    dw_free(engine->where);
    dw_free(engine);
}

const char *dw_engine_driver_name(const dw_engine *engine)
{
    return engine->name;
}

const char *dw_engine_where(const dw_engine *engine)
{
    return engine->where;
}

/* ---- calling ---- */

/* Fills ERR if the driver returned a code and left it as it was. */
static dw_status checked(const dw_engine *engine, dw_status status, const char *doing,
                         dw_error *err)
{
    if (status == DW_OK || !err || err->code == status)
        return status;
    return dw_fail(err, status, engine->where, "the engine '%s' failed to %s: %s",
                   engine->name, doing, dw_status_name(status));
}

static void forget(dw_error *err)
{
    if (err)
        *err = (dw_error){0};
}

dw_status dw_engine_probe(dw_engine *engine, dw_engine_info *out, dw_error *err)
{
    *out = (dw_engine_info){.version = DW_NO_VERSION};
    if (!engine->driver.probe)
        return DW_OK;
    forget(err);
    dw_status status = engine->driver.probe(engine->self, out, err);
    out->software[sizeof out->software - 1] = '\0';
    return checked(engine, status, "answer", err);
}

bool dw_engine_can_probe(const dw_engine *engine)
{
    return engine->driver.probe != NULL;
}

dw_status dw_engine_pause(dw_engine *engine, const dw_engine_update *update,
                          dw_error *err)
{
    if (!engine->driver.pause)
        return DW_OK;
    forget(err);
    return checked(engine, engine->driver.pause(engine->self, update, err), "pause", err);
}

dw_status dw_engine_apply(dw_engine *engine, const dw_engine_update *update, bool *whole,
                          dw_error *err)
{
    *whole = true;
    if (!engine->driver.apply)
        return DW_OK;
    *whole = false;
    forget(err);
    dw_status status = engine->driver.apply(engine->self, update, whole, err);
    if (status == DW_OK)
        *whole = true;
    return checked(engine, status, "take the update over", err);
}

dw_status dw_engine_resume(dw_engine *engine, const dw_engine_update *update,
                           dw_error *err)
{
    if (!engine->driver.resume)
        return DW_OK;
    forget(err);
    return checked(engine, engine->driver.resume(engine->self, update, err), "resume",
                   err);
}

bool dw_engine_is_gone(const dw_engine *engine)
{
    return engine->gone && *engine->gone;
}
