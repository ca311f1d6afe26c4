/* Filling dw_error records. */
#ifndef DW_BASE_ERROR_H
#define DW_BASE_ERROR_H

#include "deltawire/base.h"

/* Fills ERR, if it is not NULL, and returns CODE, so that a fault is one statement:
 *
 *     return dw_fail(err, DW_CORRUPT, path, "tensor '%s' ends past the file", name);
 *
 * WHERE names the file or object and may be NULL. Bytes that would break a terminal or a
 * log line are escaped, because names come from outside. */
dw_status dw_fail(dw_error *err, dw_status code, const char *where, const char *format,
                  ...) __attribute__((format(printf, 4, 5)));

/* The same for a fault of one tensor: the text reads `tensor 'NAME': fault`, with a
 * very long name cut, so that the fault is never lost behind it. */
dw_status dw_fail_tensor(dw_error *err, dw_status code, const char *path,
                         const char *name, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* For a failed system call: appends the text of errno. The code is DW_NOT_FOUND,
 * DW_CONFLICT if the name is taken, or DW_IO. */
dw_status dw_fail_errno(dw_error *err, const char *where, const char *doing);

dw_status dw_fail_memory(dw_error *err, const char *where);

#endif
