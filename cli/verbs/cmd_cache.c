#include <stdio.h>
#include <time.h>

#include "cache_dir.h"
#include "command_line.h"
#include "commands.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"

#define PRUNE_DAYS 30
#define DAY_S      86400.0
#define NOT_GIVEN  UINT64_MAX

typedef struct arguments {
    bool prune;
    bool dry_run;
    uint64_t days; /* or NOT_GIVEN */
} arguments;

static double days_unused(const cli_cached *c)
{
    return difftime(time(NULL), c->t_used) / DAY_S;
}

static bool is_chosen(const arguments *a, const cli_cached *c)
{
    if (a->days != NOT_GIVEN)
        return days_unused(c) >= (double)a->days;
    return !a->prune || c->is_aside || days_unused(c) >= PRUNE_DAYS;
}

static json_t *cached_json(const cli_cached *c, bool removed)
{
    json_t *row = json_object();
    cli_json_text(row, "path", c->path);
    cli_json_text(row, "url", c->url);
    cli_json_count(row, "bytes", c->n_bytes);
    cli_json_count(row, "last_used", (uint64_t)c->t_used);
    cli_json_flag(row, "set_aside", c->is_aside);
    cli_json_flag(row, "in_use", c->in_use);
    cli_json_flag(row, "removed", removed);
    return row;
}

static void print_cached(const cli_cached *c, const char *fate, bool with_header)
{
    if (with_header)
        printf("%9s  %-16s  %-9s  %s\n", "size", "last used (UTC)", "state",
               "stream and path");
    char size[CLI_NUMBER_SIZE], used[32] = "";
    struct tm t;
    if (gmtime_r(&c->t_used, &t))
        strftime(used, sizeof used, "%Y-%m-%d %H:%M", &t);
    printf("%9s  %-16s  %-9s  ", cli_format_size(size, c->n_bytes), used, fate);
    cli_print_text(stdout, c->url[0] ? c->url : "(unknown)");
    fputs("  ", stdout);
    cli_print_line(c->path);
}

static const char *fate_of(const arguments *a, const cli_cached *c, bool removed)
{
    if (removed)
        return a->dry_run ? "would go" : "removed";
    return c->in_use ? "in use" : c->is_aside ? "set aside" : "kept";
}

/* The last line: how many copies were shown, and their size. */
static void print_total(size_t n, uint64_t n_bytes)
{
    char size[CLI_NUMBER_SIZE];
    if (n == 0)
        puts("no copies");
    else
        printf("%9s  in %zu cop%s\n", cli_format_size(size, n_bytes), n,
               n == 1 ? "y" : "ies");
}

static dw_status show(const arguments *a, const cli_session *s, const cli_cached *list,
                      size_t n, json_t *rows, dw_error *err)
{
    size_t n_shown = 0;
    uint64_t n_bytes = 0;
    const bool is_silent = s->quiet && a->prune && !a->dry_run;
    for (size_t i = 0; i < n; i++) {
        const cli_cached *c = &list[i];
        if (!is_chosen(a, c))
            continue;
        const bool goes = a->prune && !c->in_use;
        dw_status status = goes && !a->dry_run ? cli_cache_remove(c, err) : DW_OK;
        if (status != DW_OK && status != DW_CONFLICT)
            return status;
        const bool removed = goes && status == DW_OK;
        if (s->json)
            json_array_append_new(rows, cached_json(c, removed && !a->dry_run));
        else if (!is_silent)
            print_cached(c, fate_of(a, c, removed), n_shown == 0 && !s->quiet);
        n_shown++;
        n_bytes += c->n_bytes;
    }
    if (!s->json && !s->quiet)
        print_total(n_shown, n_bytes);
    return DW_OK;
}

static int run(cli_session *s)
{
    arguments a = {.days = NOT_GIVEN};
    cli_parse(s, &a);
    if (a.dry_run && !a.prune)
        cli_usage_error(s, "--dry-run needs --prune");
    dw_error err;
    cli_cached *list = NULL;
    size_t n = 0;
    json_t *rows = json_array();
    dw_status status = cli_cache_list(&list, &n, &err);
    if (status == DW_OK)
        status = show(&a, s, list, n, rows, &err);
    if (status == DW_OK && s->json) {
        json_t *object = json_object();
        json_object_set(object, "copies", rows);
        cli_json_print(object);
    }
    json_decref(rows);
    cli_cache_free(list, n);
    return status == DW_OK ? 0 : cli_fail(s, &err, "cache", NULL);
}

static const cli_option options[] = {
    {CLI_OPTION(FLAG, arguments, prune, "prune", NULL,
                "remove copies that were not used for 30 days, and those of streams that "
                "were deleted and made again")},
    {CLI_OPTION(COUNT, arguments, days, "unused-for", "DAYS",
                "list or remove only those unused for so long; 0: all")},
    {CLI_OPTION(FLAG, arguments, dry_run, "dry-run", NULL,
                "with --prune: only show what would be removed")},
    {0},
};

const cli_verb cli_verb_cache = {
    .name = "cache",
    .summary = "list and remove the copies of models kept on this machine",
    .usage = "[--prune] [--unused-for DAYS] [OPTION...]",
    .about =
        "Lists the copies of models that `publish` and `mirror` keep in "
        "~/.cache/deltawire: the stream each is for, its size, and when it was last "
        "used. A copy only saves time: if it is gone, the next publish reads it back "
        "from the stream.",
    .examples = "  deltawire cache\n"
                "  deltawire cache --prune --unused-for 0\n",
    .options = options,
    .run = run,
};
