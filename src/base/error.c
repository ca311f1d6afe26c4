#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* Leaves room in dw_error.text for the fault itself, even with every byte escaped. */
#define MAX_QUOTED_NAME 120

const char *dw_status_name(dw_status code)
{
    switch (code) {
    case DW_OK:
        return "ok";
    case DW_NO_MEMORY:
        return "no memory";
    case DW_IO:
        return "io";
    case DW_NOT_FOUND:
        return "not found";
    case DW_CORRUPT:
        return "corrupt";
    case DW_STALE:
        return "stale";
    case DW_MISMATCH:
        return "mismatch";
    case DW_UNSUPPORTED:
        return "unsupported";
    case DW_INVALID:
        return "invalid";
    case DW_CONFLICT:
        return "conflict";
    case DW_CANCELLED:
        return "cancelled";
    case DW_UNAVAILABLE:
        return "unavailable";
    case DW_DENIED:
        return "denied";
    case DW_UNTRUSTED:
        return "untrusted";
    case DW_NOT_FINITE:
        return "not finite";
    }
    return "unknown";
}

/* Length of TEXT without the first part of a UTF-8 character that was cut at the end. */
static size_t whole_characters(const char *text, size_t n)
{
    size_t lead = n;
    while (lead > 0 && ((unsigned char)text[lead - 1] & 0xc0) == 0x80)
        lead--;
    if (lead == 0)
        return n;
    unsigned char c = (unsigned char)text[lead - 1];
    size_t n_more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 0;
    return n - lead < n_more ? lead - 1 : n;
}

/* Copies FROM with the bytes of characters that are not shown as \xNN; cuts at a whole
 * character. */
static void copy_escaped(char *to, size_t size, const char *from)
{
    static const char hex[] = "0123456789abcdef";
    size_t n = 0;
    while (*from) {
        size_t n_escaped = dw_text_unshown(from);
        if (n + (n_escaped > 0 ? 4 * n_escaped : 1) >= size)
            break;
        if (n_escaped == 0)
            to[n++] = *from++;
        for (; n_escaped > 0; n_escaped--, from++) {
            const unsigned char c = (unsigned char)*from;
            to[n++] = '\\';
            to[n++] = 'x';
            to[n++] = hex[c >> 4];
            to[n++] = hex[c & 15];
        }
    }
    to[whole_characters(to, n)] = '\0';
}

dw_status dw_fail(dw_error *err, dw_status code, const char *where, const char *format,
                  ...)
{
    if (!err)
        return code;
    char text[DW_ERROR_TEXT_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    err->code = code;
    copy_escaped(err->text, sizeof err->text, text);
    copy_escaped(err->where, sizeof err->where, where ? where : "");
    return code;
}

dw_status dw_fail_errno(dw_error *err, const char *where, const char *doing)
{
    int number = errno;
    char reason[128];
    /* the XSI form; the GNU form is hidden by _POSIX_C_SOURCE */
    if (strerror_r(number, reason, sizeof reason) != 0)
        snprintf(reason, sizeof reason, "error %d", number);
    dw_status code = number == ENOENT || number == ENOTDIR ? DW_NOT_FOUND
                     : number == EEXIST                    ? DW_CONFLICT
                                                           : DW_IO;
    return dw_fail(err, code, where, "cannot %s: %s", doing, reason);
}

const char *dw_error_line(const dw_error *err, char out[DW_ERROR_LINE_SIZE])
{
    snprintf(out, DW_ERROR_LINE_SIZE, "%s%s%s", err->where, err->where[0] ? ": " : "",
             err->text);
    return out;
}

dw_status dw_fail_memory(dw_error *err, const char *where)
{
    return dw_fail(err, DW_NO_MEMORY, where, "out of memory");
}

dw_status dw_fail_tensor(dw_error *err, dw_status code, const char *path,
                         const char *name, const char *format, ...)
{
    char fault[512];
    va_list args;
    va_start(args, format);
    vsnprintf(fault, sizeof fault, format, args);
    va_end(args);
    size_t n_name = strlen(name);
    bool cut = n_name > MAX_QUOTED_NAME;
    if (cut)
        n_name = whole_characters(name, MAX_QUOTED_NAME);
    return dw_fail(err, code, path, "tensor '%.*s%s': %s", (int)n_name, name,
                   cut ? "..." : "", fault);
}
