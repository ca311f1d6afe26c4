#include "option_table.h"

#include <stdlib.h>
#include <string.h>

#include "command_line.h"
#include "fail.h"

#define WIDTH       84
#define HELP_COLUMN 23

const cli_option cli_common_options[] = {
    {CLI_OPTION(
        FLAG, cli_session, json_given, "json", NULL,
        "one JSON object on stdout, errors too; of a verb that runs on, one a line "
        "for each event")},
    {CLI_OPTION(NUMBER, cli_session, n_threads, "threads", "N",
                "threads to use; 0, the default: all cores")},
    {CLI_OPTION(FLAG, cli_session, quiet, "quiet", NULL,
                "print only errors, and what a verb exists to show"),
     .letter = 'q'},
    {CLI_OPTION(FLAG, cli_session, help, "help", NULL, "print a summary with examples"),
     .letter = 'h'},
    {0},
};

/* ---- parsing ---- */

/* An option that was found, and the member it sets. */
typedef struct place {
    const cli_option *option;
    char *member;
} place;

static place find(const cli_option *table, char *into, const char *name, size_t n,
                  char letter)
{
    for (const cli_option *o = table; o && o->kind != CLI_END; o++) {
        const bool same = name ? strlen(o->name) == n && memcmp(o->name, name, n) == 0
                               : o->letter == letter;
        const place inner = o->kind == CLI_ROWS
                                ? find(o->rows, into + o->offset, name, n, letter)
                                : (place){0};
        if (inner.option || (same && o->kind != CLI_ROWS))
            return inner.option ? inner : (place){o, into + o->offset};
    }
    return (place){0};
}

static place find_any(cli_session *s, void *into, const char *name, size_t n, char letter)
{
    const place own = find(s->table->options, into, name, n, letter);
    return own.option ? own : find(cli_common_options, (char *)s, name, n, letter);
}

static bool takes_value(const cli_option *o)
{
    return o->kind != CLI_FLAG && o->kind != CLI_MAYBE;
}

/* NAME is the option as it was given. */
static void set(cli_session *s, place p, const char *name, const char *value)
{
    switch ((cli_kind)p.option->kind) {
    case CLI_FLAG:
        *(bool *)p.member = true;
        break;
    case CLI_TEXT:
    case CLI_MAYBE:
        *(const char **)p.member = value ? value : "";
        break;
    case CLI_LIST: {
        cli_list *list = (cli_list *)p.member;
        if (list->n == CLI_MAX_LIST)
            cli_usage_error(s, "%s: at most %d times", name, CLI_MAX_LIST);
        list->items[list->n++] = value;
        break;
    }
    case CLI_COUNT:
        *(uint64_t *)p.member = cli_parse_count(s, name, value);
        break;
    case CLI_NUMBER: {
        const uint64_t n = cli_parse_count(s, name, value);
        if (n > 1000000000)
            cli_usage_error(s, "%s: at most 1000000000", name);
        *(unsigned *)p.member = (unsigned)n;
        break;
    }
    case CLI_VERSION:
        *(uint64_t *)p.member = cli_parse_version(s, name, value);
        break;
    case CLI_SIZE:
        *(uint64_t *)p.member = cli_parse_scaled(s, name, value);
        break;
    case CLI_POSITIVE:
        *(double *)p.member = cli_parse_positive(s, name, value);
        break;
    case CLI_SECONDS:
        *(double *)p.member = cli_parse_seconds(s, name, value);
        break;
    case CLI_MS: /* 0 would mean the default */
        *(unsigned *)p.member = (unsigned)(1000 * cli_parse_seconds(s, name, value)) + 1;
        break;
    case CLI_END:
    case CLI_ROWS:
        break;
    }
}

/* --name, --name=VALUE or --name VALUE. Returns the number of words taken. */
static int take_long(cli_session *s, void *into, char **words)
{
    const size_t n = strcspn(words[0] + 2, "=");
    const char *value = words[0][2 + n] ? words[0] + 3 + n : NULL;
    const place p = find_any(s, into, words[0] + 2, n, 0);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)n + 2, words[0]);
    if (!p.option)
        cli_usage_error(s, "unknown option '%s'", name);
    if (value && p.option->kind == CLI_FLAG)
        cli_usage_error(s, "option '%s' takes no value", name);
    const bool is_next = takes_value(p.option) && !value;
    if (is_next && !words[1])
        cli_usage_error(s, "option '%s' needs a value", name);
    set(s, p, name, is_next ? words[1] : value);
    return is_next ? 2 : 1;
}

/* -x, -xVALUE, -x VALUE, or several letters of flags. */
static int take_short(cli_session *s, void *into, char **words)
{
    for (const char *at = words[0] + 1; *at; at++) {
        const char name[] = {'-', *at, '\0'};
        const place p = find_any(s, into, NULL, 0, *at);
        if (!p.option)
            cli_usage_error(s, "unknown option '%s'", name);
        if (!takes_value(p.option)) {
            set(s, p, name, NULL);
            continue;
        }
        if (!at[1] && !words[1])
            cli_usage_error(s, "option '%s' needs a value", name);
        set(s, p, name, at[1] ? at + 1 : words[1]);
        return at[1] ? 1 : 2;
    }
    return 1;
}

static void check_required(const cli_session *s, const char *into)
{
    for (const cli_option *o = s->table->options; o && o->kind != CLI_END; o++) {
        if (!o->required || *(const char *const *)(into + o->offset))
            continue;
        if (o->letter)
            cli_usage_error(s, "-%c %s is missing", o->letter, o->value);
        cli_usage_error(s, "--%s %s is missing", o->name, o->value);
    }
}

void cli_parse(cli_session *s, void *into)
{
    char **const words = s->args;
    size_t at = 0;
    const size_t n = s->n_args;
    for (s->n_args = 0; at < n;) {
        const char *word = words[at];
        if (strcmp(word, "--") == 0) {
            for (at++; at < n;)
                words[s->n_args++] = words[at++];
        } else if (word[0] != '-' || !word[1]) {
            words[s->n_args++] = words[at++];
        } else {
            at += (size_t)(word[1] == '-' ? take_long : take_short)(s, into, words + at);
        }
        if (s->help) {
            cli_print_verb_help(s->table);
            exit(fflush(stdout) == 0 ? 0 : CLI_EXIT_IO);
        }
    }
    s->json = s->json_given;
    cli_session_begin(s);
    cli_expect_arguments(s, s->table->n_least, s->table->n_most);
    check_required(s, into);
}

bool cli_any_given(const cli_option *table, const void *into)
{
    static const cli_list none;
    static const size_t sizes[] = {
        [CLI_FLAG] = sizeof(bool),        [CLI_TEXT] = sizeof(char *),
        [CLI_MAYBE] = sizeof(char *),     [CLI_LIST] = sizeof(cli_list),
        [CLI_COUNT] = sizeof(uint64_t),   [CLI_NUMBER] = sizeof(unsigned),
        [CLI_VERSION] = sizeof(uint64_t), [CLI_SIZE] = sizeof(uint64_t),
        [CLI_POSITIVE] = sizeof(double),  [CLI_SECONDS] = sizeof(double),
        [CLI_MS] = sizeof(unsigned),
    };
    for (const cli_option *o = table; o->kind != CLI_END; o++) {
        const char *member = (const char *)into + o->offset;
        if (o->kind == CLI_ROWS ? cli_any_given(o->rows, member)
                                : memcmp(member, &none, sizes[o->kind]) != 0)
            return true;
    }
    return false;
}

/* ---- help ---- */

/* Prints words, wrapped, with INDENT spaces before all lines but the first, which begins
 * at COLUMN. Line ends in TEXT stay. */
static void print_wrapped(const char *text, int column, int indent)
{
    while (*text) {
        const int n = (int)strcspn(text, " \n");
        if (column > indent && column + 1 + n > WIDTH) {
            printf("\n%*s", indent, "");
            column = indent;
        }
        printf("%s%.*s", column > indent ? " " : "", n, text);
        column += n + (column > indent);
        text += n;
        for (; *text == '\n'; text++, column = indent)
            printf("\n%*s", text[1] == '\n' ? 0 : indent, "");
        text += strspn(text, " ");
    }
    putchar('\n');
}

static int format_option(char out[96], const cli_option *o)
{
    const char *before = o->kind == CLI_MAYBE ? "[=" : o->value ? " " : "";
    const char *after = o->kind == CLI_MAYBE ? "]" : "";
    int n = o->letter ? snprintf(out, 96, "-%c, ", o->letter) : 0;
    return n + snprintf(out + n, 96 - (size_t)n, "--%s%s%s%s", o->name, before,
                        o->value ? o->value : "", after);
}

static void print_rows(const cli_option *table)
{
    for (const cli_option *o = table; o && o->kind != CLI_END; o++) {
        char left[96];
        if (o->kind == CLI_ROWS) {
            print_rows(o->rows);
            continue;
        }
        const int n = 2 + format_option(left, o);
        printf("  %s", left);
        if (n >= HELP_COLUMN)
            putchar('\n');
        printf("%*s", n >= HELP_COLUMN ? HELP_COLUMN : HELP_COLUMN - n, "");
        print_wrapped(o->help, HELP_COLUMN, HELP_COLUMN);
    }
}

/* Prints lines, each after PREFIX. */
static void print_lines(const char *text, const char *first, const char *rest,
                        const char *verb)
{
    for (const char *prefix = first; *text; prefix = rest) {
        const int n = (int)strcspn(text, "\n");
        printf("%sdeltawire %s %.*s\n", prefix, verb, n, text);
        text += n + (text[n] == '\n');
    }
}

void cli_print_verb_help(const cli_verb *verb)
{
    print_lines(verb->usage, "usage: ", "       ", verb->name);
    putchar('\n');
    print_wrapped(verb->about, 0, 0);
    putchar('\n');
    print_rows(verb->options);
    print_rows(cli_common_options);
    printf("\n%s", verb->examples);
}

static void print_option_lines(const char *group, const cli_option *table)
{
    for (const cli_option *o = table; o && o->kind != CLI_END; o++) {
        if (o->kind == CLI_ROWS) {
            print_option_lines(o->name, o->rows);
            continue;
        }
        printf("%s\t%c\t%s\t%s\t%s\n", group, o->letter ? o->letter : '-', o->name,
               o->value ? o->value : "", o->help);
    }
}

void cli_print_options(const cli_verb *verb)
{
    print_option_lines("own", verb->options);
    print_option_lines("common", cli_common_options);
}
