/* Preloaded by make_v01.py: ends the process, like a kill, after the patch file appears
 * and before the first store to the weights. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

int rename(const char *from, const char *to)
{
    int (*next)(const char *, const char *) =
        (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    const int result = next(from, to);
    if (result == 0 && ends_in(to, ".deltawire-patch"))
        _exit(9);
    return result;
}
