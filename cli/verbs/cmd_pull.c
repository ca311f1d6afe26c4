#include <stdio.h>

#include <deltawire/follow.h>

#include "command_line.h"
#include "commands.h"
#include "follow_options.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"
#include "stream_info.h"
#include "stream_open.h"
#include "sync_report.h"

typedef struct arguments {
    const char *url;
    dw_store_options store;
    cli_fork_opener fork_opener;
    cli_keys keys;
    dw_follow_options follow;
    uint64_t goal;
} arguments;

static void print_report(const arguments *a, const cli_session *s,
                         const dw_follower *follower, const dw_follow_report *report,
                         double seconds, json_t *warnings)
{
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "url", a->url);
        cli_json_text(object, "into", a->follow.into);
        cli_sync_report_json(object, report, seconds);
        cli_json_count(object, "private_files", report->n_private);
        cli_sync_files_json(object, follower, report);
        cli_json_warnings(object, warnings);
        cli_json_print(object);
        return;
    }
    if (s->quiet)
        return;
    cli_print_text(stdout, a->follow.into);
    fputs(": ", stdout);
    cli_sync_report_line(report, seconds);
}

static int pull(arguments *a, const cli_session *s, dw_store *store)
{
    dw_error err;
    dw_follower *follower = NULL;
    dw_follow_report report = {0};
    a->follow.trust = cli_keys_trust(&a->keys);
    a->follow.open_store = cli_store_open_fork;
    a->fork_opener = (cli_fork_opener){a->url, &a->store};
    a->follow.open_context = &a->fork_opener;
    cli_progress bar = cli_progress_start(s, "pulling");
    dw_progress hook = cli_progress_hook(&bar);
    dw_status status = dw_follower_open(&follower, store, &a->follow, &err);
    dw_follow_report totals = {0};
    if (status == DW_OK)
        status = dw_follower_sync(follower, a->goal, &hook, &report, &err);
    cli_progress_end(&bar);
    json_t *warnings = s->json ? json_array() : NULL;
    if (status == DW_OK) {
        dw_stream *stream = dw_follower_stream(follower);
        cli_warn_lost(s, stream, warnings);
        cli_warn_base(s, stream, &a->keys, a->follow.base, warnings);
        cli_warn_kept(s, follower, warnings);
    }
    if (follower)
        dw_follower_totals(follower, &totals);
    cli_warn_healed(s, a->follow.into, totals.n_healed, warnings);
    cli_warn_stray(s, a->follow.into, totals.n_stray, warnings);
    report.n_private = totals.n_private;
    if (!s->json)
        cli_report_private(s, a->follow.into, totals.n_private);
    if (status == DW_OK)
        print_report(a, s, follower, &report, cli_now() - bar.t_start, warnings);
    dw_follower_close(follower);
    json_decref(warnings);
    return status == DW_OK ? 0 : cli_open_fail(s, store, &err, a->url);
}

static int run(cli_session *s)
{
    arguments a = {.goal = DW_NEWEST};
    dw_follow_options_init(&a.follow);
    cli_parse(s, &a);
    a.follow.n_threads = s->n_threads;
    a.url = s->args[0];
    dw_store *store = NULL;
    int exit_code = cli_keys_load(&a.keys, s);
    if (exit_code == 0)
        exit_code = cli_store_open(&store, s, a.url, &a.store);
    if (exit_code == 0)
        exit_code = pull(&a, s, store);
    dw_store_close(store);
    cli_keys_release(&a.keys);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(TEXT, arguments, follow.into, "into", "DIR", CLI_INTO_HELP),
     .required = true},
    {CLI_OPTION(VERSION, arguments, goal, "at", "N", "the version; default: the newest")},
    {CLI_GROUP("own", arguments, follow, dw_follow_options, cli_follow_options)},
    {CLI_GROUP("trust", arguments, keys, cli_keys, cli_trust_options)},
    {CLI_GROUP("store", arguments, store, dw_store_options, cli_store_options)},
    {0},
};

const cli_verb cli_verb_pull = {
    .name = "pull",
    .summary = "bring a directory to a version of a stream",
    .usage = "URL --into DIR [--at N] [OPTION...]",
    .about =
        "Brings a checkpoint directory to a version of a stream by the cheapest route. "
        "The directory is made if it is missing, and patched in place if it holds an "
        "older "
        "version. Every step is verified before the first byte of the directory changes. "
        "If it is killed, the same command run again finishes the work. Weights that are "
        "links, as in the Hugging Face cache, become private files of DIR; the files "
        "they "
        "point to stay as they are.\n\n"
        "Files that the version carries beside the weights, such as config.json and "
        "those "
        "of the tokenizer, are installed in DIR. Files of your own in DIR are never "
        "replaced.",
    .examples = "  deltawire pull s3://bucket/run --into model/\n"
                "  deltawire pull s3://bucket/run --into model/ --at 120 "
                "--trust trainer.key.pub\n",
    .options = options,
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
