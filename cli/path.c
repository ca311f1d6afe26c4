#include "path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *cli_path_join(const char *dir, const char *name)
{
    size_t n_bytes = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n_bytes);
    if (path)
        snprintf(path, n_bytes, "%s/%s", dir, name);
    return path;
}

char *cli_path_parent(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    return n == 0 ? strdup(".") : strndup(path, n);
}
