#include "base/environment.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

extern char **environ;

char *dw_environment_variable(const char *name, const char *value)
{
    size_t n_bytes = strlen(name) + strlen(value) + 2;
    char *variable = dw_alloc(n_bytes);
    if (variable)
        snprintf(variable, n_bytes, "%s=%s", name, value);
    return variable;
}

static bool is_replaced(const char *entry, char *const *extra)
{
    size_t n = strcspn(entry, "=") + 1;
    for (; *extra; extra++)
        if (strncmp(*extra, entry, n) == 0)
            return true;
    return false;
}

char **dw_environment_extend(char *const *extra)
{
    size_t n = 0, n_all = 0;
    while (environ && environ[n])
        n++;
    while (extra[n_all])
        n_all++;
    char **all = dw_alloc_zeroed(n + n_all + 1, sizeof *all);
    if (!all)
        return NULL;
    memcpy(all, extra, n_all * sizeof *all);
    for (size_t i = 0; i < n; i++)
        if (!is_replaced(environ[i], extra))
            all[n_all++] = environ[i];
    return all;
}
