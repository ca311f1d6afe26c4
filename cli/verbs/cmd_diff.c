#include <string.h>

#include <deltawire/deltawire.h>

#include "base/error.h"
#include "checkpoint_read.h"
#include "command_line.h"
#include "commands.h"
#include "delta_report.h"
#include "fail.h"
#include "json_out.h"
#include "path.h"
#include "print.h"
#include "progress_bar.h"

typedef struct arguments {
    const char *old_path, *new_path, *output;
    cli_codec_choice choice;
    dw_diff_options diff;
    const char *to; /* as given, or NULL */
    bool check;
} arguments;

/* Both lists are sorted, so the first name that differs is missing on one side. */
static dw_status check_same_names(const cli_weights *old, const cli_weights *new,
                                  const char *new_path, dw_error *err)
{
    size_t i = 0;
    while (i < old->n_tensors &&
           i < new->n_tensors &&strcmp(old->tensors[i].name, new->tensors[i].name) == 0)
        i++;
    if (i == old->n_tensors && i == new->n_tensors)
        return DW_OK;
    bool lacks =
        i == new->n_tensors ||
        (i < old->n_tensors && strcmp(old->tensors[i].name, new->tensors[i].name) < 0);
    return dw_fail(err, DW_MISMATCH, new_path, "tensor '%.200s': %s",
                   lacks ? old->tensors[i].name : new->tensors[i].name,
                   lacks ? "it is missing here, but the old checkpoint has it"
                         : "the old checkpoint has no tensor of that name");
}

/* Opens the written file again and, with --check, decodes it against OLD. */
static dw_status check_written(const arguments *a, const cli_weights *old,
                               const cli_delta_report *written, const cli_session *s,
                               dw_error *err)
{
    dw_delta *delta;
    dw_status status = dw_delta_open(&delta, a->output, err);
    if (status != DW_OK)
        return status;
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    if (info.n_changed != written->info.n_changed ||
        info.new_state != written->info.new_state)
        status = dw_fail(err, DW_CORRUPT, a->output,
                         "reads back as another delta than was written");
    if (status == DW_OK && a->check) {
        cli_progress bar = cli_progress_start(s, "checking");
        dw_apply_options options;
        dw_apply_options_init(&options);
        options.n_threads = s->n_threads;
        options.progress = cli_progress_hook(&bar);
        status = dw_delta_verify(delta, old->tensors, old->n_tensors, &options, err);
        cli_progress_end(&bar);
    }
    dw_delta_close(delta);
    return status;
}

static void print_report(const arguments *a, const cli_session *s,
                         const cli_delta_report *report, uint64_t full_bytes,
                         double t_encode)
{
    double rate = cli_ratio((double)full_bytes, t_encode);
    if (s->json) {
        json_t *object = cli_delta_report_json(report, full_bytes);
        cli_json_text(object, "delta", a->output);
        cli_json_real(object, "encode_seconds", t_encode);
        cli_json_flag(object, "checked", a->check);
        cli_json_print(object);
        return;
    }
    if (s->quiet)
        return;
    char text[CLI_NUMBER_SIZE];
    cli_print_line(a->output);
    cli_delta_report_print(report, full_bytes);
    cli_print_row("encoded", "in %.3f s, %s of model a second", t_encode,
                  cli_format_size(text, (uint64_t)rate));
    if (a->check)
        cli_print_row("checked", "decodes to the new version");
}

static int diff(arguments *a, const cli_session *s, const cli_weights *old,
                const cli_weights *new)
{
    dw_error err = {0};
    dw_delta *delta = NULL;
    if (cli_weights_own_file(old, a->output) || cli_weights_own_file(new, a->output))
        cli_usage_error(s, "-o %s would overwrite a checkpoint", a->output);
    if (cli_path_check_output(a->output, &err) != DW_OK)
        return cli_fail(s, &err, a->output, NULL);
    dw_status status = check_same_names(old, new, a->new_path, &err);
    double t_start = cli_now();
    if (status == DW_OK) {
        cli_progress bar = cli_progress_start(s, "comparing");
        a->diff.progress = cli_progress_hook(&bar);
        status = dw_delta_diff(&delta, old->tensors, new->tensors, old->n_tensors,
                               &a->diff, &err);
        cli_progress_end(&bar);
    }
    double t_encode = cli_now() - t_start;
    if (status != DW_OK)
        return cli_fail(s, &err, a->new_path, NULL);
    cli_delta_report report = cli_delta_report_of(delta);
    status = dw_delta_save(delta, a->output, &err);
    dw_delta_close(delta);
    if (status == DW_OK)
        status = check_written(a, old, &report, s, &err);
    if (status != DW_OK)
        return cli_fail(s, &err, a->output, NULL);
    print_report(a, s, &report, new->n_bytes, t_encode);
    return 0;
}

static int run(cli_session *s)
{
    arguments a = {0};
    dw_diff_options_init(&a.diff);
    cli_parse(s, &a);
    a.diff.new_version =
        a.to ? cli_parse_count(s, "--to", a.to) : a.diff.base_version + 1;
    if (a.diff.new_version <= a.diff.base_version)
        cli_usage_error(s, "--to must be greater than --from");
    cli_choose_codec(s, a.choice, &a.diff.codec, &a.diff.trl_layout);
    a.diff.n_threads = s->n_threads;
    a.old_path = s->args[0];
    a.new_path = s->args[1];
    cli_weights old, new;
    int exit_code = cli_weights_open(&old, s, a.old_path);
    if (exit_code != 0)
        return exit_code;
    exit_code = cli_weights_open(&new, s, a.new_path);
    if (exit_code == 0)
        exit_code = diff(&a, s, &old, &new);
    cli_weights_close(&old);
    cli_weights_close(&new);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(TEXT, arguments, output, "output", "DELTA", "the file to write"),
     .letter = 'o', .required = true},
    {CLI_GROUP("codec", arguments, choice, cli_codec_choice, cli_codec_options)},
    {CLI_OPTION(COUNT, arguments, diff.base_version, "from", "N",
                "the version number of OLD that the delta carries (0)")},
    {CLI_OPTION(TEXT, arguments, to, "to", "N", "that of NEW; default: --from + 1")},
    {CLI_OPTION(FLAG, arguments, check, "check", NULL,
                "also decode the written file against OLD")},
    {0},
};

const cli_verb cli_verb_diff = {
    .name = "diff",
    .summary = "write what changed between two checkpoints",
    .usage = "OLD NEW -o DELTA [OPTION...]",
    .about = "Writes what changed between two checkpoints (files, index files or "
             "directories), bit for bit. The delta appears whole and synced, or not at "
             "all.",
    .examples =
        "  deltawire diff step_0/ step_1/ -o step_1.safetensors\n"
        "  deltawire diff old.safetensors new.safetensors -o d.safetensors --trl v1\n",
    .options = options,
    .n_least = 2,
    .n_most = 2,
    .run = run,
};
