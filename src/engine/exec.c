/* An engine that is paused, updated and resumed by the user's commands. */
#include "engine/engine_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/shell.h"
#include "deltawire/stream.h"

enum {
    NOTHING_TOUCHED = 75, /* EX_TEMPFAIL of sysexits.h */
    N_VARIABLES = 6,
};

typedef struct commands {
    char *pause, *apply, *resume; /* each may be NULL */
    unsigned pause_ms, apply_ms;
} commands;

/* ---- the environment ---- */

static const char *number_text(char out[32], uint64_t version)
{
    out[0] = '\0';
    if (version != DW_NO_VERSION)
        snprintf(out, 32, "%" PRIu64, version);
    return out;
}

static void free_variables(char *variables[N_VARIABLES + 1])
{
    for (size_t i = 0; i < N_VARIABLES; i++)
        dw_free(variables[i]);
}

/* Variables without a value are set to nothing, so that none is inherited. */
static bool make_variables(char *variables[N_VARIABLES + 1],
                           const dw_engine_update *update)
{
    static const dw_engine_update none = {.from = DW_NO_VERSION,
                                          .version = DW_NO_VERSION};
    const dw_engine_update *u = update ? update : &none;
    char version[32], from[32], state[32];
    snprintf(state, sizeof state, "%016" PRIx64, u->state);
    const struct {
        const char *name, *value;
    } all[N_VARIABLES] = {
        {"DELTAWIRE_VERSION", number_text(version, u->version)},
        {"DELTAWIRE_FROM", number_text(from, u->patch ? u->from : DW_NO_VERSION)},
        {"DELTAWIRE_DIR", u->dir},
        {"DELTAWIRE_PATCH", u->patch},
        {"DELTAWIRE_STATE", update ? state : NULL},
        {"DELTAWIRE_STREAM", u->stream},
    };
    bool good = true;
    for (size_t i = 0; i < N_VARIABLES; i++) {
        variables[i] =
            dw_environment_variable(all[i].name, all[i].value ? all[i].value : "");
        good = good && variables[i];
    }
    variables[N_VARIABLES] = NULL;
    return good;
}

/* ---- running ---- */

static dw_status judge(const char *command, const dw_shell_end *end, unsigned limit_ms,
                       dw_error *err)
{
    const char *colon = *end->last_line ? ": " : "";
    if (end->timed_out)
        return dw_fail(err, DW_UNAVAILABLE, command,
                       "was killed: it took longer than %u ms%s%s", limit_ms, colon,
                       end->last_line);
    if (end->signal)
        return dw_fail(err, DW_CONFLICT, command, "was ended by signal %d%s%s",
                       end->signal, colon, end->last_line);
    if (end->code != 0)
        return dw_fail(err, DW_CONFLICT, command, "failed with exit code %d%s%s",
                       end->code, colon, end->last_line);
    return DW_OK;
}

static dw_status run(const char *command, const dw_engine_update *update,
                     unsigned limit_ms, dw_shell_end *end, dw_error *err)
{
    *end = (dw_shell_end){0};
    if (!command)
        return DW_OK;
    char *variables[N_VARIABLES + 1];
    dw_status status = make_variables(variables, update)
                           ? dw_shell_run(command, variables, limit_ms, NULL, end, err)
                           : dw_fail_memory(err, command);
    free_variables(variables);
    return status == DW_OK ? judge(command, end, limit_ms, err) : status;
}

static dw_status pause_engine(void *self, const dw_engine_update *update, dw_error *err)
{
    const commands *c = self;
    dw_shell_end end;
    return run(c->pause, update, c->pause_ms, &end, err);
}

static dw_status resume_engine(void *self, const dw_engine_update *update, dw_error *err)
{
    const commands *c = self;
    dw_shell_end end;
    return run(c->resume, update, c->pause_ms, &end, err);
}

static dw_status apply(void *self, const dw_engine_update *update, bool *whole,
                       dw_error *err)
{
    const commands *c = self;
    dw_shell_end end;
    dw_status status = run(c->apply, update, c->apply_ms, &end, err);
    *whole =
        status == DW_OK || !end.began || (!end.timed_out && end.code == NOTHING_TOUCHED);
    return status;
}

/* ---- opening ---- */

static void close_driver(void *self)
{
    commands *c = self;
    dw_free(c->pause);
    dw_free(c->apply);
    dw_free(c->resume);
    dw_free(c);
}

/* There is no probe: no command reports a version. */
static const dw_engine_driver exec_driver = {
    .name = "exec",
    .pause = pause_engine,
    .apply = apply,
    .resume = resume_engine,
    .close = close_driver,
};

static bool copy_command(char **out, const char *command)
{
    *out = command ? dw_copy_string(command) : NULL;
    return !command || *out;
}

dw_status dw_exec_open(dw_engine **out, const dw_engine_options *options, dw_error *err)
{
    if (!options->shell_pause && !options->shell_apply && !options->shell_resume)
        return dw_fail(err, DW_INVALID, NULL,
                       "the engine `exec` needs at least one command: to pause, to apply "
                       "or to resume");
    commands *c = dw_alloc_zeroed(1, sizeof *c);
    if (!c)
        return dw_fail_memory(err, NULL);
    c->pause_ms = options->pause_ms;
    c->apply_ms = options->apply_ms;
    if (!copy_command(&c->pause, options->shell_pause) ||
        !copy_command(&c->apply, options->shell_apply) ||
        !copy_command(&c->resume, options->shell_resume)) {
        close_driver(c);
        return dw_fail_memory(err, NULL);
    }
    dw_status status = dw_engine_new(out, &exec_driver, c, NULL, NULL, err);
    if (status != DW_OK)
        close_driver(c);
    return status;
}
