#include "fail.h"

#include <stdio.h>
#include <string.h>

dw_status wordle_fail(dw_error *err, dw_status code, const char *where,
                      const char *format, ...)
{
    if (err == NULL)
        return code;
    va_list args;
    va_start(args, format);
    err->code = code;
    snprintf(err->where, sizeof err->where, "%s", where);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    /* names may come from a file: one line, and nothing that a terminal obeys */
    for (char *c = err->text; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == '\x7f')
            *c = '?';
    return code;
}
