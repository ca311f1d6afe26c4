#include "net/credentials.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const char *dw_environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

bool dw_is_header_word(const char *text)
{
    for (; *text; text++)
        if (*text <= ' ' || *text > '~')
            return false;
    return true;
}

void dw_secret_free(char *secret)
{
    if (secret)
        OPENSSL_cleanse(secret, strlen(secret));
    dw_free(secret);
}

void dw_secret_release(dw_writer *secret)
{
    if (secret->bytes)
        OPENSSL_cleanse(secret->bytes, secret->n_bytes);
    dw_writer_release(secret);
}
