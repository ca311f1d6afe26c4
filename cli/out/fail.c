#include "fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "json_out.h"
#include "print.h"
#include "progress_bar.h"

int cli_exit_code(dw_status code)
{
    switch (code) {
    case DW_OK:
        return 0;
    case DW_NO_MEMORY:
        return CLI_EXIT_FAILURE;
    case DW_IO:
    case DW_NOT_FOUND:
        return CLI_EXIT_IO;
    case DW_CORRUPT:
        return CLI_EXIT_CORRUPT;
    case DW_STALE:
        return CLI_EXIT_STALE;
    case DW_MISMATCH:
        return CLI_EXIT_MISMATCH;
    case DW_UNSUPPORTED:
        return CLI_EXIT_UNSUPPORTED;
    case DW_INVALID:
    case DW_NOT_FINITE:
        return CLI_EXIT_USAGE;
    case DW_CONFLICT:
        return CLI_EXIT_CONFLICT;
    case DW_CANCELLED:
        return 128 + cli_signal();
    case DW_UNAVAILABLE:
        return CLI_EXIT_UNAVAILABLE;
    case DW_DENIED:
        return CLI_EXIT_DENIED;
    case DW_UNTRUSTED:
        return CLI_EXIT_UNTRUSTED;
    }
    return CLI_EXIT_FAILURE;
}

const char *cli_text_with_flags(char out[DW_ERROR_TEXT_SIZE], const char *text)
{
    static const char *const flags[][2] = {
        {"name an empty directory with `baseline_dir`", "add --new"},
        {"`base`", "--base"},
        {"`baseline_dir`", "--baseline"},
        {"`fold_every`", "--fold"},
        {"`new_key`", "--new-key"},
        {"`no_files`", "--no-files"},
        {"`quantize`", "--quantize"},
        {"`quantize.from_f32`", "--quantize-from-f32"},
        {"`sign_key`", "--sign-key"},
        {"`single_writer`", "--single-writer"},
        {"`stream`", "--stream"},
    };
    size_t n = 0;
    while (*text && n + 1 < DW_ERROR_TEXT_SIZE) {
        size_t i = 0, n_flags = sizeof flags / sizeof *flags;
        while (i < n_flags && strncmp(text, flags[i][0], strlen(flags[i][0])) != 0)
            i++;
        const char *piece = i < n_flags ? flags[i][1] : text;
        size_t n_piece = i < n_flags ? strlen(piece) : 1;
        if (n + n_piece >= DW_ERROR_TEXT_SIZE)
            break;
        memcpy(out + n, piece, n_piece);
        n += n_piece;
        text += i < n_flags ? strlen(flags[i][0]) : 1;
    }
    out[n] = '\0';
    return out;
}

static void report(const cli_session *s, const char *code, const char *where,
                   const char *library_text, const char *hint_format, va_list hint_args)
{
    char text[DW_ERROR_TEXT_SIZE];
    cli_text_with_flags(text, library_text);
    char hint[2 * DW_ERROR_WHERE_SIZE] = "";
    if (hint_format)
        vsnprintf(hint, sizeof hint, hint_format, hint_args);
    if (s->json) {
        json_t *error = json_object();
        cli_json_text(error, "code", code);
        cli_json_text(error, "where", where);
        cli_json_text(error, "text", text);
        if (hint[0])
            cli_json_text(error, "try", hint);
        json_t *root = json_object();
        json_object_set_new(root, "error", error);
        cli_json_print(root);
        return;
    }
    cli_print_message(where, "%s", text);
    if (hint[0]) {
        fputs("try: ", stderr);
        cli_print_text(stderr, hint);
        fputc('\n', stderr);
    }
}

int cli_fail(const cli_session *s, const dw_error *err, const char *fallback,
             const char *hint, ...)
{
    const char *where = err->where[0] || !fallback ? err->where : fallback;
    /* the library only knows that its caller asked to stop; the command knows the signal
     */
    const char *text = err->code == DW_CANCELLED ? strsignal(cli_signal()) : err->text;
    va_list args;
    va_start(args, hint);
    report(s, dw_status_name(err->code), where, text, hint, args);
    va_end(args);
    return cli_exit_code(err->code);
}

int cli_fail_as(const cli_session *s, const char *code, const char *where,
                const char *text, const char *hint, ...)
{
    va_list args;
    va_start(args, hint);
    report(s, code, where, text, hint, args);
    va_end(args);
    return CLI_EXIT_FAILURE;
}
