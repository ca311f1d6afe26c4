#include "hash.h"

#include <openssl/sha.h>
#include <string.h>

void cli_hash_text(char *out, size_t n_digits, const char *text)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char hash[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)text, strlen(text), hash);
    for (size_t i = 0; i < n_digits; i++)
        out[i] = digits[hash[i / 2] >> (i % 2 ? 0 : 4) & 15];
    out[n_digits] = '\0';
}
