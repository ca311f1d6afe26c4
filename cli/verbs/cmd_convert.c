
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

static const char help[] =
    "usage: deltawire convert DELTA -o OUT --base CKPT [--codec CODEC] [--trl v1|v3]\n"
    "\n"
    "Writes the same change in another codec. CKPT is the checkpoint that DELTA starts\n"
    "from: class codes changes given the old weights.\n"
    "\n"
    "  -o, --output OUT     the file to write\n"
    "  --base CKPT          the checkpoint that DELTA starts from\n"
    "  --codec CODEC        class (the default), gap or raw\n"
    "  --trl v1|v3          a file that TRL reads: raw, or with v3 gap if --codec says "
    "so\n"
    "  --json  --threads N  --quiet  --help\n"
    "\n"
    "  deltawire convert trl.safetensors -o small.safetensors --base model/\n"
    "  deltawire convert small.safetensors -o trl.safetensors --base model/ --trl v1\n";

typedef struct arguments {
    const char *delta, *output, *base;
    cli_codec_choice choice;
    dw_diff_options recode;
} arguments;

static arguments parse(cli_session *s, int argc, char **argv)
{
    enum { CODEC = CLI_OPT_OWN, TRL, BASE };
    static const struct option options[] = {
        {"output", required_argument, NULL, 'o'},
        {"codec", required_argument, NULL, CODEC},
        {"trl", required_argument, NULL, TRL},
        {"base", required_argument, NULL, BASE},
        CLI_COMMON_OPTIONS,
    };
    arguments a = {0};
    dw_diff_options_init(&a.recode);
    for (int option; (option = cli_next_option(s, argc, argv, options)) != -1;) {
        if (option == 'o')
            a.output = optarg;
        else if (option == CODEC)
            a.choice.codec = optarg;
        else if (option == TRL)
            a.choice.trl = optarg;
        else if (option == BASE)
            a.base = optarg;
    }
    cli_expect_arguments(s, argc, 1, 1);
    if (!a.output || !a.base)
        cli_usage_error(s, "%s is missing", a.output ? "--base CKPT" : "-o OUT");
    cli_choose_codec(s, a.choice, &a.recode.codec, &a.recode.trl_layout);
    a.recode.n_threads = s->n_threads;
    a.delta = argv[optind];
    return a;
}

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
    cli_print_text(stdout, a->output);
    putchar('\n');
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

int dw_cmd_convert(int argc, char **argv)
{
    cli_session s = cli_session_start(argc, argv, help);
    arguments a = parse(&s, argc, argv);
    dw_delta *delta;
    dw_error err;
    if (dw_delta_open(&delta, a.delta, &err) != DW_OK)
        return cli_fail(&s, &err, a.delta, NULL);
    cli_weights base;
    int exit_code = cli_weights_open(&base, &s, a.base);
    if (exit_code == 0)
        exit_code = convert(&a, &s, delta, &base);
    cli_weights_close(&base);
    dw_delta_close(delta);
    return exit_code;
}
