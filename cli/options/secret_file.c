#include "secret_file.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define MAX_BYTES 4096

dw_status cli_secret_file_read(char **out, const char *path, dw_error *err)
{
    char text[MAX_BYTES + 2];
    *out = NULL;
    FILE *file = fopen(path, "re");
    if (!file)
        return dw_fail_errno(err, path, "open");
    size_t n = fread(text, 1, sizeof text - 1, file);
    const int failed = ferror(file);
    fclose(file);
    if (failed)
        return dw_fail(err, DW_IO, path, "cannot read it");
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    text[n] = '\0';
    bool printable = n > 0 && n <= MAX_BYTES && strlen(text) == n;
    for (size_t i = 0; printable && i < n; i++)
        printable = text[i] > ' ' && text[i] <= '~';
    if (!printable)
        return dw_fail(err, DW_INVALID, path,
                       "no token in it: one line of at most %d bytes, as `openssl "
                       "rand -hex 32` gives",
                       MAX_BYTES);
    *out = strdup(text);
    return *out ? DW_OK : dw_fail_memory(err, path);
}
