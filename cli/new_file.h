/* A file that appears whole under its name, or not at all. */
#ifndef CLI_NEW_FILE_H
#define CLI_NEW_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include <deltawire/error.h>

typedef struct cli_new_file {
    const char *path; /* borrowed */
    char *name;       /* beside it, while it is written */
    FILE *file;
} cli_new_file;

dw_status cli_new_file_open(cli_new_file *out, const char *path, dw_error *err);

/* Gives it its name where WRITTEN says that every write went well; else removes it. */
dw_status cli_new_file_close(cli_new_file *file, bool written, dw_error *err);

#endif
