/* Fills a dw_error. */
#ifndef WORDLE_FAIL_H
#define WORDLE_FAIL_H

#include <stdarg.h>

#include <deltawire/deltawire.h>

/* Fills ERR, if it is not NULL, and returns CODE. WHERE names the file or object. */
__attribute__((format(printf, 4, 5))) dw_status
wordle_fail(dw_error *err, dw_status code, const char *where, const char *format, ...);

#endif
