/* To be preloaded: writes into the file COUNT_FILE how many records of a directory store
 * the process opened. The name of a record begins with a digit and ends in .json. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_int n_opened;

typedef int openat_fn(int, const char *, int, ...);

int openat(int dir, const char *name, int flags, ...)
{
    const size_t n = strlen(name);
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (isdigit((unsigned char)name[0]) && n > 5 && strcmp(name + n - 5, ".json") == 0)
        atomic_fetch_add(&n_opened, 1);
    openat_fn *next = (openat_fn *)dlsym(RTLD_NEXT, "openat");
    return next(dir, name, flags, mode);
}

__attribute__((destructor)) static void write_count(void)
{
    const char *path = getenv("COUNT_FILE");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%d\n", atomic_load(&n_opened));
        fclose(file);
    }
}
