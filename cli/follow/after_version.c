#include "after_version.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/mem.h"
#include "fail.h"
#include "hook.h"
#include "json_out.h"
#include "outage.h"
#include "progress_bar.h"

void cli_command_set_due(cli_command *command)
{
    command->is_due = command->text != NULL;
    command->n_failed = 0;
}

/* One event for each version, and one when a command that failed ends well. */
static void report_run(const cli_session *s, const cli_command *command, uint64_t version,
                       const char *fate, bool is_good)
{
    if (!s->json || (command->n_failed > 0 && !is_good))
        return;
    json_t *object = json_object();
    cli_json_text(object, "event", "exec");
    cli_json_count(object, "version", version);
    cli_json_text(object, "command", command->text);
    cli_json_text(object, "fate", fate);
    cli_json_event(object);
}

/* The text goes into reports that others read: the command, which may hold secrets, is
 * only in `where`. */
static dw_status judge(const cli_session *s, const cli_command *command, uint64_t version,
                       const cli_hook_end *end, dw_error *err)
{
    const bool is_good = end->status == 0 && !end->timed_out;
    char fate[32];
    cli_hook_fate(fate, end);
    dw_status status = is_good ? DW_OK : cli_check_signal(err);
    if (status != DW_OK)
        return status;
    report_run(s, command, version, fate, is_good);
    if (is_good)
        return DW_OK;
    if (end->timed_out)
        return dw_fail(err, DW_UNAVAILABLE, command->text,
                       "version %" PRIu64 ": --exec was killed: it took longer than %g s",
                       version, command->limit);
    return dw_fail(err, DW_UNAVAILABLE, command->text,
                   "version %" PRIu64 ": --exec ended with %s", version, fate);
}

static dw_status run(const cli_session *s, const cli_command *command, const char *dir,
                     uint64_t version, const char *step, const char *state, dw_error *err)
{
    char number[24];
    snprintf(number, sizeof number, "%" PRIu64, version);
    char *variables[] = {dw_environment_variable("DELTAWIRE_VERSION", number),
                         dw_environment_variable("DELTAWIRE_DIR", dir),
                         dw_environment_variable("DELTAWIRE_STEP", step),
                         dw_environment_variable("DELTAWIRE_STATE", state), NULL};
    cli_hook_end end;
    bool complete = variables[0] && variables[1] && variables[2] && variables[3];
    dw_status status =
        complete ? cli_hook_run(s, command->text, variables, command->limit, &end, err)
                 : dw_fail_memory(err, "");
    if (status == DW_OK)
        status = judge(s, command, version, &end, err);
    for (size_t i = 0; i < 4; i++)
        dw_free(variables[i]);
    return status;
}

dw_status cli_after_version(const cli_session *s, cli_command *command, const char *dir,
                            dw_stream *stream, uint64_t version, dw_error *err)
{
    dw_version_info info;
    char state[17] = "";
    const char *step = "";
    /* the weights are there even without this text, so the command still runs */
    if (dw_stream_version(stream, version, &info, err) == DW_OK) {
        step = info.step;
        snprintf(state, sizeof state, "%016" PRIx64, info.state);
    } else if (command->n_failed == 0) {
        cli_report_error(s, "error", "--exec", err);
    }
    char *absolute = realpath(dir, NULL);
    dw_status status = absolute
                           ? run(s, command, absolute, version, step, state, err)
                           : dw_fail_errno(err, dir, "find the directory for --exec");
    free(absolute);
    command->is_due = status != DW_OK;
    command->n_failed = status == DW_OK ? 0 : command->n_failed + 1;
    if (status != DW_OK && status != DW_CANCELLED)
        err->code = DW_UNAVAILABLE; /* so that the command is run again */
    return status == DW_OK || status == DW_CANCELLED ? status : DW_UNAVAILABLE;
}

int cli_command_fail(const cli_session *s, const dw_error *err)
{
    return cli_fail_as(s, "exec failed", err->where, err->text, NULL);
}
