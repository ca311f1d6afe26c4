#include "command_line.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"

#define MAX_THREADS 256                       /* the library's own limit */
#define MAX_VERSION ((UINT64_C(1) << 53) - 1) /* docs/PROTOCOL.md, section 2 */

static bool wants_remarks = true;

bool cli_wants_remarks(void)
{
    return wants_remarks;
}

cli_session cli_session_start(const cli_verb *table, char **words)
{
    cli_session s = {.verb = words[0], .table = table, .args = words + 1};
    bool is_option = true;
    for (; s.args[s.n_args]; s.n_args++) {
        is_option &= strcmp(s.args[s.n_args], "--") != 0;
        s.json |= is_option && strcmp(s.args[s.n_args], "--json") == 0;
    }
    return s;
}

void cli_session_begin(const cli_session *s)
{
    wants_remarks = !s->quiet && !s->json;
    if (s->n_threads > MAX_THREADS)
        cli_usage_error(s, "--threads: at most %d", MAX_THREADS);
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

/* The name of argument N, counted from 0, in the usage line. Skips options with their
 * values, and everything in brackets. */
static void find_argument_name(char out[32], const cli_session *s, int n)
{
    char line[256], *rest;
    snprintf(line, sizeof line, "%.*s", (int)strcspn(s->table->usage, "\n"),
             s->table->usage);
    snprintf(out, 32, "argument %d", n + 1);
    bool is_value = false;
    int at = 0;
    for (char *word = strtok_r(line, " ", &rest); word && word[0] != '[';
         word = strtok_r(NULL, " ", &rest)) {
        if (word[0] != '-' && !is_value && at++ == n)
            snprintf(out, 32, "%s", word);
        is_value = word[0] == '-';
    }
}

void cli_expect_arguments(const cli_session *s, int n_least, int n_most)
{
    const int n = (int)s->n_args;
    if (n < n_least) {
        char name[32];
        find_argument_name(name, s, n);
        cli_usage_error(s, "%s is missing", name);
    }
    if (n_most >= 0 && n > n_most)
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

const cli_option cli_codec_options[] = {
    {CLI_OPTION(TEXT, cli_codec_choice, codec, "codec", "CODEC",
                "auto (the default, which is class), class, gap or raw")},
    {CLI_OPTION(TEXT, cli_codec_choice, trl, "trl", "v1|v3",
                "a file that TRL reads: raw, or with v3 gap if --codec says so")},
    {0},
};

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
