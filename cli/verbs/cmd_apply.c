#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <deltawire/deltawire.h>

#include "base/error.h"
#include "checkpoint_read.h"
#include "command_line.h"
#include "commands.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"

/* A delta and the result of applying it. */
typedef struct item {
    const char *path;
    dw_delta *delta;
    dw_delta_info info;
    dw_apply_report report;
    double t_apply; /* seconds */
} item;

typedef struct job {
    const char *checkpoint; /* as the user named it */
    item *items;
    size_t n_items;
} job;

/* ---- applying ---- */

static dw_status apply_one(item *it, const char *path, const cli_session *s,
                           dw_error *err)
{
    dw_status status = cli_check_signal(err);
    if (status != DW_OK)
        return status;
    cli_progress bar = cli_progress_start(s, "applying");
    dw_apply_options options;
    dw_apply_options_init(&options);
    options.n_threads = s->n_threads;
    options.progress = cli_progress_hook(&bar);
    status = dw_checkpoint_apply(path, it->delta, &options, &it->report, err);
    cli_progress_end(&bar);
    it->t_apply = cli_now() - bar.t_start;
    return status;
}

/* How many of the deltas were applied to the checkpoint before: its digest is the new
 * digest of the last of them. */
static dw_status count_applied(size_t *n, const job *j, const cli_session *s,
                               dw_error *err)
{
    cli_weights weights;
    *n = 0;
    dw_status status = cli_weights_load(&weights, j->checkpoint, err);
    if (status != DW_OK)
        return status;
    dw_digest state = 0;
    dw_digest *digests = calloc(weights.n_tensors + 1, sizeof *digests);
    status = digests ? cli_weights_digest(digests, &state, &weights, s, err)
                     : dw_fail_memory(err, j->checkpoint);
    for (size_t i = 0; status == DW_OK && i < j->n_items; i++)
        if (j->items[i].info.has_digests && j->items[i].info.new_state == state)
            *n = i + 1;
    free(digests);
    cli_weights_close(&weights);
    return status;
}

/* If a run was killed between two deltas, the user repeats it with all of them. The first
 * is then stale, and the ones applied before are skipped. Sets *N to their number. If
 * there are none, ERR stays as it is. */
static dw_status pass_over_applied(size_t *n, const job *j, const cli_session *s,
                                   dw_error *err)
{
    dw_error sweep_err;
    dw_status status = count_applied(n, j, s, &sweep_err);
    if (status != DW_OK) {
        *err = sweep_err;
        return status;
    }
    for (size_t i = 0; i < *n; i++) {
        dw_apply_report *report = &j->items[i].report;
        report->already_applied = true;
        report->verified = true;
        report->new_state = j->items[i].info.new_state;
    }
    return *n > 0 ? DW_OK : DW_STALE;
}

/* Sets *AT to the delta that failed. */
static dw_status apply_all(const job *j, size_t *at, const cli_session *s, dw_error *err)
{
    *at = 0;
    while (*at < j->n_items) {
        size_t n_done = 1;
        dw_status status = apply_one(&j->items[*at], j->checkpoint, s, err);
        if (status == DW_STALE && *at == 0)
            status = pass_over_applied(&n_done, j, s, err);
        if (status != DW_OK)
            return status;
        *at += n_done;
    }
    return DW_OK;
}

/* ---- reporting ---- */

static void print_json(const job *j)
{
    json_t *object = json_object(), *list = json_array();
    cli_json_text(object, "checkpoint", j->checkpoint);
    for (size_t i = 0; i < j->n_items; i++) {
        const item *it = &j->items[i];
        json_t *row = json_object();
        cli_json_text(row, "delta", it->path);
        cli_json_count(row, "new_version", it->info.new_version);
        cli_json_count(row, "changed", it->report.n_changed);
        cli_json_flag(row, "already_applied", it->report.already_applied);
        cli_json_flag(row, "recovered", it->report.recovered);
        cli_json_flag(row, "verified", it->report.verified);
        cli_json_digest(row, "new_state", it->report.new_state);
        cli_json_real(row, "seconds", it->t_apply);
        json_array_append_new(list, row);
    }
    json_object_set_new(object, "deltas", list);
    cli_json_print(object);
}

static void print_text(const job *j)
{
    char count[CLI_NUMBER_SIZE];
    for (size_t i = 0; i < j->n_items; i++) {
        const item *it = &j->items[i];
        if (it->report.recovered)
            puts("finished an earlier apply that was interrupted");
        cli_print_text(stdout, it->path);
        if (it->report.already_applied)
            printf(": already applied, version %" PRIu64 "\n", it->info.new_version);
        else
            printf(": applied %s changes in %.3f s, version %" PRIu64 "\n",
                   cli_format_count(count, it->report.n_changed), it->t_apply,
                   it->info.new_version);
        if (!it->report.verified)
            puts("  not verified: the delta names no digests to verify against");
    }
    cli_print_text(stdout, j->checkpoint);
    printf(": state %016" PRIx64 "\n", j->items[j->n_items - 1].report.new_state);
}

static int fail_apply(const job *j, size_t at, const cli_session *s, const dw_error *err)
{
    if (!s->quiet && !s->json && at > 0)
        fprintf(stderr, "%zu of %zu deltas are applied\n", at, j->n_items);
    if (err->code == DW_STALE)
        return cli_fail(s, err, j->items[at].path, "deltawire inspect %s",
                        j->items[at].path);
    return cli_fail(s, err, j->checkpoint, NULL);
}

/* ---- the verb ---- */

/* Opens all deltas, which checks their checksums, before the first is applied. */
static int open_deltas(job *j, char **paths, size_t n, const cli_session *s)
{
    j->items = calloc(n, sizeof *j->items);
    for (j->n_items = 0; j->items && j->n_items < n; j->n_items++) {
        item *it = &j->items[j->n_items];
        dw_error err;
        it->path = paths[j->n_items];
        if (dw_delta_open(&it->delta, it->path, &err) != DW_OK)
            return cli_fail(s, &err, it->path, NULL);
        dw_delta_get_info(it->delta, &it->info);
    }
    return j->items ? 0 : cli_fail_as(s, "no memory", "", "out of memory", NULL);
}

static void close_deltas(job *j)
{
    for (size_t i = 0; i < j->n_items; i++)
        dw_delta_close(j->items[i].delta);
    free(j->items);
}

static int run(cli_session *s)
{
    job j = {0};
    cli_parse(s, &j);
    int exit_code = open_deltas(&j, s->args, s->n_args, s);
    dw_error err;
    size_t at = 0;
    if (exit_code == 0 && apply_all(&j, &at, s, &err) != DW_OK)
        exit_code = fail_apply(&j, at, s, &err);
    if (exit_code == 0 && s->json)
        print_json(&j);
    else if (exit_code == 0 && !s->quiet)
        print_text(&j);
    close_deltas(&j);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(TEXT, job, checkpoint, "to", "CKPT",
                "the checkpoint: file, index file or directory"),
     .required = true},
    {0},
};

const cli_verb cli_verb_apply = {
    .name = "apply",
    .summary = "bring a checkpoint to a delta's new version",
    .usage = "DELTA... --to CKPT",
    .about =
        "Brings a checkpoint to the version that the last delta leads to, in place. Each "
        "delta is decoded and verified before the first byte of the checkpoint changes. "
        "If it is killed, the same command run again finishes the work. Links and files "
        "with several names are refused, because others use the same data: copy them "
        "first.",
    .examples = "  deltawire apply step_000007.safetensors --to model/\n"
                "  deltawire apply deltas/step_*.safetensors --to model/\n",
    .options = options,
    .n_least = 1,
    .n_most = -1,
    .run = run,
};
