#include "options.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void options_wrong(const command_line *line, const char *what)
{
    fprintf(stderr, "%s: %s; see %s --help\n", line->program, what, line->program);
    exit(2);
}

int options_next(const command_line *line)
{
    int option = getopt_long(line->argc, line->argv, "h", line->table, NULL);
    if (option == '?')
        options_wrong(line, "that is no option");
    if (option == OPTION_HELP) {
        fputs(line->help, stdout);
        exit(0);
    }
    if (option == -1 && optind < line->argc)
        options_wrong(line, "there is an argument that is no option");
    return option;
}
