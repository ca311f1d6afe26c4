/* Errors: one line on stderr, or a JSON object on stdout, and the exit code. */
#ifndef CLI_FAIL_H
#define CLI_FAIL_H

#include <deltawire/base.h>

#include "command_line.h"

enum {
    CLI_EXIT_FAILURE = 1,
    CLI_EXIT_USAGE = 2,
    CLI_EXIT_CORRUPT = 3,
    CLI_EXIT_STALE = 4,
    CLI_EXIT_MISMATCH = 5,
    CLI_EXIT_IO = 6,
    CLI_EXIT_UNSUPPORTED = 7,
    CLI_EXIT_CONFLICT = 8,
    CLI_EXIT_UNAVAILABLE = 9,
    CLI_EXIT_DENIED = 10,
    CLI_EXIT_UNTRUSTED = 11,
};

int cli_exit_code(dw_status code);

/* Copies the text of a library error or note, with its options replaced by the command's
 * flags: `single_writer` becomes --single-writer. Returns OUT. */
const char *cli_text_with_flags(char out[DW_ERROR_TEXT_SIZE], const char *text);

/* Reports ERR and returns its exit code. FALLBACK names the object if ERR does not: the
 * library sees arrays, not the files they came from. HINT, a format, is the command to
 * try next; may be NULL. */
int cli_fail(const cli_session *s, const dw_error *err, const char *fallback,
             const char *hint, ...) __attribute__((format(printf, 4, 5)));

/* The same for a fault without a dw_status: exit code 1. */
int cli_fail_as(const cli_session *s, const char *code, const char *where,
                const char *text, const char *hint, ...)
    __attribute__((format(printf, 5, 6)));

#endif
