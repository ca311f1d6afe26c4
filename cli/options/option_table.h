/* One table describes the options of a verb. Parsing, --help, the manual page's lists
 * (scripts/manual.sh) and the completion for bash all come from it.
 *
 *     static const cli_option options[] = {
 *         {CLI_OPTION(TEXT, arguments, output, "output", "FILE", "the file to write"),
 *          .letter = 'o', .required = true},
 *         {CLI_GROUP("store", arguments, store, dw_store_options, cli_store_options)},
 *         {0},
 *     };
 */
#ifndef CLI_OPTION_TABLE_H
#define CLI_OPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum cli_kind {
    CLI_END,
    CLI_ROWS,     /* the rows of another table */
    CLI_FLAG,     /* true if given */
    CLI_TEXT,     /* borrowed from argv */
    CLI_MAYBE,    /* a text after '='; "" if there is none */
    CLI_LIST,     /* may be repeated */
    CLI_COUNT,    /* a whole number */
    CLI_NUMBER,   /* one up to 10^9 */
    CLI_VERSION,  /* of a stream */
    CLI_SIZE,     /* 16M, 0.6B */
    CLI_POSITIVE, /* a real number */
    CLI_SECONDS,  /* up to a day */
    CLI_MS,       /* given in seconds, kept in milliseconds, never 0 */
} cli_kind;

#define CLI_MAX_LIST 64

/* The values of an option that may be repeated. */
typedef struct cli_list {
    const char *items[CLI_MAX_LIST];
    size_t n;
} cli_list;

#define CLI_TYPE_FLAG     bool
#define CLI_TYPE_TEXT     const char *
#define CLI_TYPE_MAYBE    const char *
#define CLI_TYPE_LIST     cli_list
#define CLI_TYPE_COUNT    uint64_t
#define CLI_TYPE_NUMBER   unsigned
#define CLI_TYPE_VERSION  uint64_t
#define CLI_TYPE_SIZE     uint64_t
#define CLI_TYPE_POSITIVE double
#define CLI_TYPE_SECONDS  double
#define CLI_TYPE_MS       unsigned

typedef struct cli_option {
    const char *name;  /* without the dashes; of rows: what they are about */
    const char *value; /* as help shows it; NULL: a flag */
    const char *help;  /* wrapped when it is printed */
    const struct cli_option *rows;
    uint16_t offset; /* of the member in the verb's arguments */
    uint8_t kind;
    char letter;   /* also a short option; 0: none */
    bool required; /* a text that must be given */
} cli_option;

/* The offset of MEMBER. It does not compile if the member is not of type T. */
#define CLI_OFFSET(type, member, T)                                                      \
    _Generic(&((type *)0)->member, T * : (uint16_t)offsetof(type, member))

#define CLI_OPTION(KIND, type, member, option_name, option_value, text)                  \
    .name = option_name, .value = option_value, .help = text, .kind = CLI_##KIND,        \
    .offset = CLI_OFFSET(type, member, CLI_TYPE_##KIND)

/* All rows of TABLE, whose offsets are those in T. */
#define CLI_GROUP(about, type, member, T, table)                                         \
    .name = about, .rows = table, .kind = CLI_ROWS, .offset = CLI_OFFSET(type, member, T)

typedef struct cli_session cli_session;

typedef struct cli_verb {
    const char *name;
    const char *summary; /* in the list of verbs */
    const char *usage;   /* arguments and main options, a line for each form */
    const char *about;   /* paragraphs, wrapped when they are printed */
    const char *examples;
    const cli_option *options;
    int n_least, n_most; /* arguments beside options; n_most -1: any number */
    int (*run)(cli_session *s);
} cli_verb;

/* The options that every verb takes. Their offsets are those in cli_session. */
extern const cli_option cli_common_options[];

/* Sets the member of INTO, the verb's arguments, for each option, and leaves the other
 * arguments in s->args. A wrong command line, and --help, end the process. */
void cli_parse(cli_session *s, void *into);

/* Whether any of the rows of TABLE was given: its member in INTO is not zero. */
bool cli_any_given(const cli_option *table, const void *into);

void cli_print_verb_help(const cli_verb *verb);

/* A line for each option: the group it is in, '-o, --output', the value, the help, with
 * tabs between them. */
void cli_print_options(const cli_verb *verb);

#endif
