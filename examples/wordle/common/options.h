/* Command lines of wordle-train and wordle-demo. */
#ifndef WORDLE_OPTIONS_H
#define WORDLE_OPTIONS_H

#include <getopt.h>

typedef struct command_line {
    const char *program;
    const char *help;           /* what --help prints */
    const struct option *table; /* codes from 1 on, in order; --help is added */
    int argc;
    char **argv;
} command_line;

enum { OPTION_HELP = 'h' };

#define OPTIONS_END                                                                      \
    {"help", no_argument, NULL, OPTION_HELP},                                            \
    {                                                                                    \
        NULL, 0, NULL, 0                                                                 \
    }

/* The next option, its value in optarg, or -1 after the last. Help, wrong options and
 * other arguments end the program. */
int options_next(const command_line *line);

/* Prints the error, and ends the program with exit status 2. */
_Noreturn void options_wrong(const command_line *line, const char *what);

#endif
