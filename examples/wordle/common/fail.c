#include "fail.h"

#include <stdio.h>
#include <string.h>

/* Names may come from a file: print one line without control characters. */
static void clean(char *text)
{
    for (char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == '\x7f')
            *c = '?';
}

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
    clean(err->where);
    clean(err->text);
    return code;
}
