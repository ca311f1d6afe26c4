/* Command lines: the options that every verb takes, and the parsing of values. */
#ifndef CLI_COMMAND_LINE_H
#define CLI_COMMAND_LINE_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>

#include <deltawire/delta.h>

typedef struct cli_session {
    const char *verb;
    const char *help; /* for --help */
    bool json;
    bool json_given; /* given as an option; the look ahead may have mistaken a value for
                        it */
    bool quiet;
    unsigned n_threads; /* 0: all cores */
} cli_session;

/* Codes of long options. A letter is also a short option. */
enum { CLI_OPT_JSON = 256, CLI_OPT_THREADS, CLI_OPT_OWN };

/* Ends a verb's table of options. */
#define CLI_COMMON_OPTIONS                                                               \
    {"json", no_argument, NULL, CLI_OPT_JSON},                                           \
        {"threads", required_argument, NULL, CLI_OPT_THREADS},                           \
        {"quiet", no_argument, NULL, 'q'}, {"help", no_argument, NULL, 'h'},             \
    {                                                                                    \
        NULL, 0, NULL, 0                                                                 \
    }

/* Looks ahead for --json, so that errors of the command line itself obey it. */
cli_session cli_session_start(int argc, char **argv, const char *help);

/* Returns the verb's next own option, with its value in optarg, or -1 after the last. The
 * other arguments then begin at argv[optind]. --help and wrong or abbreviated options end
 * the process. */
int cli_next_option(cli_session *s, int argc, char **argv, const struct option *options);

/* Whether to print remarks on stderr: neither --quiet nor --json was given. */
bool cli_wants_remarks(void);

/* Reports an error in the command line and ends the process with exit code 2. */
_Noreturn void cli_usage_error(const cli_session *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Checks the number of arguments besides the options. */
void cli_expect_arguments(const cli_session *s, int argc, int n_least, int n_most);

/* Parse values. A wrong one is a usage error that names the option. */
uint64_t cli_parse_count(const cli_session *s, const char *option, const char *text);
uint64_t cli_parse_version(const cli_session *s, const char *option, const char *text);
uint64_t cli_parse_scaled(const cli_session *s, const char *option, const char *text);
double cli_parse_positive(const cli_session *s, const char *option, const char *text);
double cli_parse_seconds(const cli_session *s, const char *option, const char *text);

/* --codec and --trl depend on each other: v1 has no gap, and TRL has no class. */
typedef struct cli_codec_choice {
    const char *codec; /* as given, or NULL */
    const char *trl;
} cli_codec_choice;

void cli_choose_codec(const cli_session *s, cli_codec_choice choice, dw_codec *codec,
                      unsigned *trl_layout);

#endif
