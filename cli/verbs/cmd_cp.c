#include <inttypes.h>
#include <stdio.h>

#include <deltawire/stream.h>

#include "command_line.h"
#include "commands.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"
#include "stream_open.h"

typedef struct arguments {
    cli_stream from;
    const char *to_url;
    dw_store_options to;
} arguments;

static void print_report(const cli_session *s, const arguments *a,
                         const dw_copy_report *report, double t_copy)
{
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "from", a->from.url);
        cli_json_text(object, "to", a->to_url);
        cli_json_count(object, "objects", report->n_objects);
        cli_json_count(object, "bytes", report->n_bytes);
        cli_json_count(object, "present", report->n_present);
        cli_json_version(object, "version", report->head);
        cli_json_real(object, "seconds", t_copy);
        cli_json_print(object);
        return;
    }
    if (s->quiet)
        return;
    char size[CLI_NUMBER_SIZE];
    cli_print_line(a->to_url);
    if (report->head != DW_NO_VERSION)
        cli_print_row("version", "%" PRIu64, report->head);
    cli_print_row("copied", "%" PRIu64 " object%s, %s, in %.3f s", report->n_objects,
                  cli_plural(report->n_objects), cli_format_size(size, report->n_bytes),
                  t_copy);
    cli_print_row("present", "%" PRIu64 " objects before", report->n_present);
}

static int copy(arguments *a, const cli_session *s, dw_store *to)
{
    dw_error err;
    dw_copy_report report = {0};
    cli_progress bar = cli_progress_start(s, "copying");
    dw_progress hook = cli_progress_hook(&bar);
    dw_status status = dw_stream_copy(a->from.stream, to, &hook, &report, &err);
    cli_progress_end(&bar);
    if (status != DW_OK)
        return cli_stream_fail(s, &err, a->from.url);
    print_report(s, a, &report, cli_now() - bar.t_start);
    return 0;
}

static int run(cli_session *s)
{
    arguments a = {0};
    cli_parse(s, &a);
    a.to.deadline_ms = a.from.options.deadline_ms;
    a.from.url = s->args[0];
    a.to_url = s->args[1];
    dw_store *to = NULL;
    int exit_code = cli_stream_open(&a.from, s);
    if (exit_code == 0)
        exit_code = cli_store_open(&to, s, a.to_url, &a.to);
    if (exit_code == 0)
        exit_code = copy(&a, s, to);
    dw_store_close(to);
    cli_stream_close(&a.from);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_GROUP("to", arguments, to, dw_store_options, cli_to_store_options)},
    {CLI_GROUP("stream", arguments, from, cli_stream, cli_stream_options)},
    {0},
};

const cli_verb cli_verb_cp = {
    .name = "cp",
    .summary = "copy a stream to another store",
    .usage = "URL TO-URL [OPTION...]",
    .about =
        "Copies a stream to another store: all records and objects that it still "
        "has. Each is checked. Followers of the copy see only whole versions. Run it "
        "again to copy new versions.",
    .examples =
        "  deltawire cp s3://bucket/run file:///mirror/run\n"
        "  deltawire cp s3://a/run s3://b/run --endpoint https://s3.one.example \\\n"
        "      --to-endpoint https://s3.two.example --to-profile two\n",
    .options = options,
    .n_least = 2,
    .n_most = 2,
    .run = run,
};
