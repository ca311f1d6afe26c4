/* Numbers and rows for people. */
#ifndef CLI_PRINT_H
#define CLI_PRINT_H

#include <stdint.h>
#include <stdio.h>

#define CLI_NUMBER_SIZE 32

/* "16,779,520". Returns OUT. */
const char *cli_format_count(char out[CLI_NUMBER_SIZE], uint64_t n);

/* "33.6 MB", decimal units. Returns OUT. */
const char *cli_format_size(char out[CLI_NUMBER_SIZE], uint64_t n_bytes);

/* Prints text from outside, with the bytes of characters that are not shown (base/text.h)
 * as \xNN: a name must not control the terminal, nor look like another. */
void cli_print_text(FILE *out, const char *text);

/* The same on stdout, with a line end. */
void cli_print_line(const char *text);

/* Prints the line "deltawire: WHERE: TEXT" on stderr, or "deltawire: TEXT" if WHERE is
 * empty. Control characters are escaped. */
void cli_print_message(const char *where, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Prints one row of a report on stdout: a label, and a value in a common column. */
void cli_print_row(const char *label, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same with text from outside. */
void cli_print_text_row(const char *label, const char *text);

/* The ending of a word that N counts: "" or "s". */
const char *cli_plural(uint64_t n);

/* A / B, or 0 if B is 0. */
double cli_ratio(double a, double b);

#endif
