
#include <deltawire/deltawire.h>

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
    const char *delta, *output, *base;
    cli_codec_choice choice;
    dw_diff_options recode;
} arguments;

static void print_report(const arguments *a, const cli_session *s,
                         const cli_delta_report *before, const cli_delta_report *after)
{
    char text[CLI_NUMBER_SIZE];
    if (s->json) {
        json_t *object = cli_delta_report_json(after, 0);
        cli_json_text(object, "delta", a->output);
        cli_json_count(object, "bytes_before", before->info.n_bytes);
        cli_json_print(object);
        return;
    }
    if (s->quiet)
        return;
    cli_print_line(a->output);
    cli_delta_report_print(after, 0);
    cli_print_row("before", "%s bytes, %s", cli_format_count(text, before->info.n_bytes),
                  cli_codec_title(&before->info));
}

static int convert(arguments *a, const cli_session *s, const dw_delta *delta,
                   const cli_weights *base)
{
    dw_error err;
    dw_delta *recoded;
    if (cli_weights_own_file(base, a->output))
        cli_usage_error(s, "-o %s would overwrite the checkpoint", a->output);
    if (cli_path_check_output(a->output, &err) != DW_OK)
        return cli_fail(s, &err, a->output, NULL);
    cli_progress bar = cli_progress_start(s, "converting");
    a->recode.progress = cli_progress_hook(&bar);
    dw_status status = dw_delta_recode(&recoded, delta, base->tensors, base->n_tensors,
                                       &a->recode, &err);
    cli_progress_end(&bar);
    if (status == DW_STALE)
        return cli_fail(s, &err, a->delta, "deltawire inspect %s", a->delta);
    if (status != DW_OK)
        return cli_fail(s, &err, a->delta, NULL);
    cli_delta_report before = cli_delta_report_of(delta);
    cli_delta_report after = cli_delta_report_of(recoded);
    status = dw_delta_save(recoded, a->output, &err);
    dw_delta_close(recoded);
    if (status != DW_OK)
        return cli_fail(s, &err, a->output, NULL);
    print_report(a, s, &before, &after);
    return 0;
}

static int run(cli_session *s)
{
    arguments a = {0};
    dw_diff_options_init(&a.recode);
    cli_parse(s, &a);
    cli_choose_codec(s, a.choice, &a.recode.codec, &a.recode.trl_layout);
    a.recode.n_threads = s->n_threads;
    a.delta = s->args[0];
    dw_delta *delta;
    dw_error err;
    if (dw_delta_open(&delta, a.delta, &err) != DW_OK)
        return cli_fail(s, &err, a.delta, NULL);
    cli_weights base;
    int exit_code = cli_weights_open(&base, s, a.base);
    if (exit_code == 0)
        exit_code = convert(&a, s, delta, &base);
    cli_weights_close(&base);
    dw_delta_close(delta);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(TEXT, arguments, output, "output", "OUT", "the file to write"),
     .letter = 'o', .required = true},
    {CLI_OPTION(TEXT, arguments, base, "base", "CKPT",
                "the checkpoint that DELTA starts from"),
     .required = true},
    {CLI_GROUP("codec", arguments, choice, cli_codec_choice, cli_codec_options)},
    {0},
};

const cli_verb cli_verb_convert = {
    .name = "convert",
    .summary = "write a delta in another codec",
    .usage = "DELTA -o OUT --base CKPT [OPTION...]",
    .about = "Writes the same change in another codec. CKPT is the checkpoint that "
             "DELTA starts from: class codes changes given the old weights.",
    .examples = "  deltawire convert trl.safetensors -o small.safetensors --base model/\n"
                "  deltawire convert small.safetensors -o trl.safetensors --base model/ "
                "--trl v1\n",
    .options = options,
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
