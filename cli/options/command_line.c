#include "command_line.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"

#define MAX_THREADS 256 /* the library's own limit */
#define MAX_SHORTS  64
#define MAX_VERSION ((UINT64_C(1) << 53) - 1) /* docs/PROTOCOL.md, section 2 */

static bool wants_remarks = true;

bool cli_wants_remarks(void)
{
    return wants_remarks;
}

cli_session cli_session_start(int argc, char **argv, const char *help)
{
    cli_session s = {.verb = argv[0], .help = help};
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        s.json |= strcmp(argv[i], "--json") == 0;
    return s;
}

void cli_usage_error(const cli_session *s, const char *format, ...)
{
    dw_error err = {.code = DW_INVALID};
    va_list args;
    va_start(args, format);
    vsnprintf(err.text, sizeof err.text, format, args);
    va_end(args);
    exit(cli_fail(s, &err, s->verb, "deltawire %s --help", s->verb));
}

/* The short options of a table, as getopt wants them. The colon in front lets getopt
 * distinguish a missing value from an unknown option. */
static void list_shorts(char out[MAX_SHORTS], const struct option *options)
{
    size_t n = 0;
    out[n++] = ':';
    for (; options->name && n + 3 < MAX_SHORTS; options++) {
        if (options->val >= CLI_OPT_JSON)
            continue;
        out[n++] = (char)options->val;
        if (options->has_arg == required_argument)
            out[n++] = ':';
    }
    out[n] = '\0';
}

/* Refuses abbreviated long options. getopt accepts any unique prefix, so a new option
 * could change what a script means. AT is the option's number in the table, or -1 for a
 * short one. */
static void refuse_abbreviation(const cli_session *s, char **argv,
                                const struct option *options, int at)
{
    if (at < 0)
        return;
    const char *word = argv[optind - 1];
    if (optarg == word) /* the value is an argument of its own */
        word = argv[optind - 2];
    size_t n = strcspn(word + 2, "=");
    if (n != strlen(options[at].name))
        cli_usage_error(s, "unknown option '%.*s': --%s in full", (int)n + 2, word,
                        options[at].name);
}

int cli_next_option(cli_session *s, int argc, char **argv, const struct option *options)
{
    char shorts[MAX_SHORTS];
    list_shorts(shorts, options);
    opterr = 0;
    for (;;) {
        int at = -1;
        int option = getopt_long(argc, argv, shorts, options, &at);
        if (option != -1 && option != '?' && option != ':')
            refuse_abbreviation(s, argv, options, at);
        switch (option) {
        case 'h':
            fputs(s->help, stdout);
            exit(fflush(stdout) == 0 ? 0 : CLI_EXIT_IO);
        case 'q':
            s->quiet = true;
            break;
        case CLI_OPT_JSON:
            s->json_given = true;
            break;
        case -1:
            s->json = s->json_given;
            wants_remarks = !s->quiet && !s->json;
            return -1;
        case CLI_OPT_THREADS: {
            uint64_t n = cli_parse_count(s, "--threads", optarg);
            if (n > MAX_THREADS)
                cli_usage_error(s, "--threads: at most %d", MAX_THREADS);
            s->n_threads = (unsigned)n;
            break;
        }
        case ':':
            cli_usage_error(s, "option '%s' needs a value", argv[optind - 1]);
        case '?':
            if (optopt > 0 && optopt < CLI_OPT_JSON && argv[optind - 1][1] != '-')
                cli_usage_error(s, "unknown option '-%c'", optopt);
            cli_usage_error(s, "unknown option '%s'", argv[optind - 1]);
        default:
            return option;
        }
    }
}

/* The name of argument N, counted from 0, in the usage line. Skips "usage: deltawire
 * VERB", options with their values, and everything in brackets. */
static void find_argument_name(char out[32], const cli_session *s, int n)
{
    char line[256], *rest;
    snprintf(line, sizeof line, "%.*s", (int)strcspn(s->help, "\n"), s->help);
    snprintf(out, 32, "argument %d", n + 1);
    bool is_value = false;
    int at = -3;
    for (char *word = strtok_r(line, " ", &rest); word && word[0] != '[';
         word = strtok_r(NULL, " ", &rest)) {
        if (word[0] != '-' && !is_value && at++ == n)
            snprintf(out, 32, "%s", word);
        is_value = word[0] == '-';
    }
}

void cli_expect_arguments(const cli_session *s, int argc, int n_least, int n_most)
{
    int n = argc - optind;
    if (n < n_least) {
        char name[32];
        find_argument_name(name, s, n);
        cli_usage_error(s, "%s is missing", name);
    }
    if (n > n_most)
        cli_usage_error(s, "too many arguments");
}

uint64_t cli_parse_count(const cli_session *s, const char *option, const char *text)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno)
        cli_usage_error(s, "%s: '%s' is not a whole number", option, text);
    return n;
}

uint64_t cli_parse_version(const cli_session *s, const char *option, const char *text)
{
    uint64_t version = cli_parse_count(s, option, text);
    if (version > MAX_VERSION)
        cli_usage_error(s, "%s: '%s' is no version of a stream", option, text);
    return version;
}

uint64_t cli_parse_scaled(const cli_session *s, const char *option, const char *text)
{
    static const char suffixes[] = "KMGT";
    char *end;
    double n = strtod(text, &end);
    const char *suffix = *end ? strchr(suffixes, *end == 'B' ? 'G' : *end) : NULL;
    if (suffix) {
        n *= pow(1000, (double)(suffix - suffixes + 1));
        end++;
    }
    if (end == text || *end || !(n >= 1 && n < 1e18))
        cli_usage_error(s, "%s: '%s' is not a size such as 16M or 0.6B", option, text);
    return (uint64_t)n;
}

double cli_parse_positive(const cli_session *s, const char *option, const char *text)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v > 0 && isfinite(v)))
        cli_usage_error(s, "%s: '%s' is not a positive number", option, text);
    return v;
}

double cli_parse_seconds(const cli_session *s, const char *option, const char *text)
{
    double seconds = cli_parse_positive(s, option, text);
    if (seconds > 86400)
        cli_usage_error(s, "%s: at most 86400 seconds, a day", option);
    return seconds;
}

void cli_choose_codec(const cli_session *s, cli_codec_choice choice, dw_codec *codec,
                      unsigned *trl_layout)
{
    static const struct {
        const char *name;
        dw_codec codec;
    } codecs[] = {{"auto", DW_CODEC_CLASS},
                  {"class", DW_CODEC_CLASS},
                  {"gap", DW_CODEC_GAP},
                  {"raw", DW_CODEC_RAW}};
    const size_t n_codecs = sizeof codecs / sizeof codecs[0];
    const char *name = choice.codec ? choice.codec : choice.trl ? "raw" : "auto";
    size_t i = 0;
    while (i < n_codecs && strcmp(name, codecs[i].name) != 0)
        i++;
    if (i == n_codecs)
        cli_usage_error(s, "--codec: '%s' is none of auto, class, gap, raw", name);
    *codec = codecs[i].codec;
    *trl_layout = 3;
    if (!choice.trl)
        return;
    if (strcmp(choice.trl, "v1") == 0)
        *trl_layout = 1;
    else if (strcmp(choice.trl, "v3") != 0)
        cli_usage_error(s, "--trl: '%s' is neither v1 nor v3", choice.trl);
    if (*codec == DW_CODEC_CLASS)
        cli_usage_error(s, "--trl: TRL has no codec class: raw, or gap with v3");
    if (*codec == DW_CODEC_GAP && *trl_layout == 1)
        cli_usage_error(s, "--trl v1 has no codec gap: take v3");
}
