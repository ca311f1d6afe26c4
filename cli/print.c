#include "print.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>

const char *cli_format_count(char out[CLI_NUMBER_SIZE], uint64_t n)
{
    char digits[CLI_NUMBER_SIZE];
    int n_digits = snprintf(digits, sizeof digits, "%" PRIu64, n);
    char *to = out;
    for (int i = 0; i < n_digits; i++) {
        if (i > 0 && (n_digits - i) % 3 == 0)
            *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return out;
}

const char *cli_format_size(char out[CLI_NUMBER_SIZE], uint64_t n_bytes)
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
    double v = (double)n_bytes;
    size_t unit = 0;
    while (v >= 999.5 && unit + 1 < sizeof units / sizeof units[0]) {
        v /= 1000;
        unit++;
    }
    int n_decimals = unit == 0 || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2;
    snprintf(out, CLI_NUMBER_SIZE, "%.*f %s", n_decimals, v, units[unit]);
    return out;
}

/* U+0080 to U+009F in UTF-8: a terminal takes them for escape sequences. */
static bool is_c1(const unsigned char *text)
{
    return text[0] == 0xc2 && text[1] >= 0x80 && text[1] <= 0x9f;
}

void cli_print_text(FILE *out, const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (is_c1(at)) {
            fprintf(out, "\\x%02x\\x%02x", at[0], at[1]);
            at++;
        } else if (*at < 0x20 || *at == 0x7f) {
            fprintf(out, "\\x%02x", *at);
        } else {
            fputc(*at, out);
        }
    }
}

void cli_print_message(const char *where, const char *format, ...)
{
    char text[8192]; /* room for a path and a sentence */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fputs("deltawire: ", stderr);
    cli_print_text(stderr, where);
    fputs(where[0] ? ": " : "", stderr);
    cli_print_text(stderr, text);
    fputc('\n', stderr);
}

void cli_print_row(const char *label, const char *format, ...)
{
    va_list args;
    printf("  %-10s ", label);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

void cli_print_text_row(const char *label, const char *text)
{
    printf("  %-10s ", label);
    cli_print_text(stdout, text);
    putchar('\n');
}

double cli_ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}
