#include "print.h"

#include <inttypes.h>
#include <stdarg.h>

#include "base/text.h"

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

void cli_print_text(FILE *out, const char *text)
{
    while (*text) {
        size_t n = dw_text_unshown(text);
        if (n == 0)
            fputc((unsigned char)*text++, out);
        for (; n > 0; n--)
            fprintf(out, "\\x%02x", (unsigned char)*text++);
    }
}

void cli_print_line(const char *text)
{
    cli_print_text(stdout, text);
    putchar('\n');
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
    cli_print_line(text);
}

const char *cli_plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

double cli_ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}
