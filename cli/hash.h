/* Names made of hashes. */
#ifndef CLI_HASH_H
#define CLI_HASH_H

#include <stddef.h>

/* The first N_DIGITS hexadecimal digits (at most 64) of SHA-256 over TEXT, and a NUL. */
void cli_hash_text(char *out, size_t n_digits, const char *text);

#endif
