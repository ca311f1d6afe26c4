#include "after_version.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "hook.h"
#include "json.h"
#include "print.h"
#include "trouble.h"

static dw_status tell_command(const cli_session *s, const cli_command *command,
                              uint64_t version, const cli_hook_end *end, dw_error *err)
{
    char fate[32], text[96];
    cli_hook_fate(fate, end);
    if (end->timed_out)
        snprintf(text, sizeof text, "--exec was killed: it took longer than %g s",
                 command->limit);
    else
        snprintf(text, sizeof text, "--exec ended with %s", fate);
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", "exec");
        cli_json_count(object, "version", version);
        cli_json_text(object, "command", command->text);
        cli_json_text(object, "fate", fate);
        cli_json_event(object);
    } else if (end->status != 0 || end->timed_out) {
        fprintf(stderr, "deltawire: version %" PRIu64 ": %s: ", version, text);
        cli_print_text(stderr, command->text);
        fputc('\n', stderr);
    }
    if (end->status == 0 && !end->timed_out)
        return DW_OK;
    return cli_error_set(err, end->timed_out ? DW_UNAVAILABLE : DW_CONFLICT, "--exec",
                         "version %" PRIu64 ": %s", version, text);
}

/* NAME=VALUE on the heap, or NULL. */
static char *make_variable(const char *name, const char *value)
{
    size_t n_bytes = strlen(name) + strlen(value) + 2;
    char *variable = malloc(n_bytes);
    if (variable)
        snprintf(variable, n_bytes, "%s=%s", name, value);
    return variable;
}

dw_status cli_after_version(const cli_session *s, const cli_command *command,
                            const char *dir, dw_stream *stream, uint64_t version,
                            dw_error *err)
{
    dw_version_info info;
    char state[17] = "";
    const char *step = "";
    /* the weights are there all the same, and whoever waits for them wants to know */
    if (dw_stream_version(stream, version, &info, err) == DW_OK) {
        step = info.step;
        snprintf(state, sizeof state, "%016" PRIx64, info.state);
    } else {
        cli_tell_error(s, "error", "--exec", err);
    }
    return cli_after_weights(s, command, dir, version, step, state, err);
}

dw_status cli_after_weights(const cli_session *s, const cli_command *command,
                            const char *dir, uint64_t version, const char *step,
                            const char *state, dw_error *err)
{
    char number[24];
    snprintf(number, sizeof number, "%" PRIu64, version);
    char *variables[] = {make_variable("DELTAWIRE_VERSION", number),
                         make_variable("DELTAWIRE_DIR", dir),
                         make_variable("DELTAWIRE_STEP", step),
                         make_variable("DELTAWIRE_STATE", state), NULL};
    cli_hook_end end;
    bool complete = variables[0] && variables[1] && variables[2] && variables[3];
    dw_status status =
        complete ? cli_hook_run(s, command->text, variables, command->limit, &end, err)
                 : cli_error_set(err, DW_NO_MEMORY, "", "out of memory");
    if (status == DW_OK)
        status = tell_command(s, command, version, &end, err);
    else
        cli_tell_error(s, "error", command->text, err);
    for (size_t i = 0; i < 4; i++)
        free(variables[i]);
    return status;
}
