/* Command lines: the options that every verb takes, and the parsing of values. */
#ifndef CLI_COMMAND_LINE_H
#define CLI_COMMAND_LINE_H

#include <stdbool.h>
#include <stdint.h>

#include <deltawire/delta.h>

#include "option_table.h"

struct cli_session {
    const char *verb;
    const cli_verb *table;
    char **args; /* first all words after the verb; after cli_parse those that are no
                    options */
    size_t n_args;
    bool json;
    bool json_given; /* given as an option; the look ahead may have mistaken a value for
                        it */
    bool quiet;
    bool help;
    unsigned n_threads; /* 0: all cores */
};

/* Looks ahead for --json, so that errors of the command line itself obey it. WORDS: the
 * verb, what follows, and a NULL. TABLE: NULL if there is no such verb. */
cli_session cli_session_start(const cli_verb *table, char **words);

/* Called when the options are known. */
void cli_session_begin(const cli_session *s);

/* Whether to print remarks on stderr: neither --quiet nor --json was given. */
bool cli_wants_remarks(void);

/* Reports an error in the command line and ends the process with exit code 2. */
_Noreturn void cli_usage_error(const cli_session *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Checks the number of arguments besides the options. N_MOST -1: any number. */
void cli_expect_arguments(const cli_session *s, int n_least, int n_most);

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

extern const cli_option cli_codec_options[]; /* of a cli_codec_choice */

void cli_choose_codec(const cli_session *s, cli_codec_choice choice, dw_codec *codec,
                      unsigned *trl_layout);

#endif
