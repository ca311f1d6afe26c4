#include <stdio.h>
#include <time.h>

#include "cache_dir.h"
#include "command_line.h"
#include "commands.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"

static const char help[] =
    "usage: deltawire cache [--prune] [--unused-for DAYS] [OPTION...]\n"
    "\n"
    "Lists the copies of models that `publish` and `mirror` keep in ~/.cache/deltawire:\n"
    "the stream each is for, its size, and when it was last used. A copy only saves\n"
    "time: if it is gone, the next publish reads it back from the stream.\n"
    "\n"
    "  --prune              remove copies that were not used for 30 days, and those of\n"
    "                       streams that were deleted and made again\n"
    "  --unused-for DAYS    list or remove only those unused for so long; 0: all\n"
    "  --dry-run            with --prune: only show what would be removed\n"
    "  --json  --quiet  --help\n"
    "\n"
    "  deltawire cache\n"
    "  deltawire cache --prune --unused-for 0\n";

#define PRUNE_DAYS 30
#define DAY_S      86400.0

typedef struct arguments {
    bool prune;
    bool dry_run;
    double days; /* negative: not given */
} arguments;

static double days_unused(const cli_cached *c)
{
    return difftime(time(NULL), c->t_used) / DAY_S;
}

static bool is_chosen(const arguments *a, const cli_cached *c)
{
    if (a->days >= 0)
        return days_unused(c) >= a->days;
    return !a->prune || c->is_aside || days_unused(c) >= PRUNE_DAYS;
}

static json_t *cached_json(const cli_cached *c, bool removed)
{
    json_t *row = json_object();
    cli_json_text(row, "path", c->path);
    cli_json_text(row, "url", c->url);
    cli_json_count(row, "bytes", c->n_bytes);
    cli_json_count(row, "last_used", (uint64_t)c->t_used);
    json_object_set_new(row, "set_aside", json_boolean(c->is_aside));
    json_object_set_new(row, "in_use", json_boolean(c->in_use));
    json_object_set_new(row, "removed", json_boolean(removed));
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
    cli_print_text(stdout, c->path);
    putchar('\n');
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

int dw_cmd_cache(int argc, char **argv)
{
    enum { PRUNE = CLI_OPT_OWN, UNUSED_FOR, DRY_RUN };
    static const struct option options[] = {
        {"prune", no_argument, NULL, PRUNE},
        {"unused-for", required_argument, NULL, UNUSED_FOR},
        {"dry-run", no_argument, NULL, DRY_RUN},
        CLI_COMMON_OPTIONS,
    };
    cli_session s = cli_session_start(argc, argv, help);
    arguments a = {.days = -1};
    for (int option; (option = cli_next_option(&s, argc, argv, options)) != -1;) {
        a.prune |= option == PRUNE;
        a.dry_run |= option == DRY_RUN;
        if (option == UNUSED_FOR)
            a.days = (double)cli_parse_count(&s, "--unused-for", optarg);
    }
    if (a.dry_run && !a.prune)
        cli_usage_error(&s, "--dry-run needs --prune");
    cli_expect_arguments(&s, argc, 0, 0);
    dw_error err;
    cli_cached *list = NULL;
    size_t n = 0;
    json_t *rows = json_array();
    dw_status status = cli_cache_list(&list, &n, &err);
    if (status == DW_OK)
        status = show(&a, &s, list, n, rows, &err);
    if (status == DW_OK && s.json) {
        json_t *object = json_object();
        json_object_set(object, "copies", rows);
        cli_json_print(object);
    }
    json_decref(rows);
    cli_cache_free(list, n);
    return status == DW_OK ? 0 : cli_fail(&s, &err, "cache", NULL);
}
