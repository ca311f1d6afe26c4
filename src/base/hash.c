#include "base/hash.h"

#include <string.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/error.h"

static dw_status fail_hash(dw_error *err)
{
    return dw_fail(err, DW_NO_MEMORY, NULL, "SHA-256 failed");
}

dw_status dw_sha256_init(dw_sha256 *h, dw_error *err)
{
    *h = (dw_sha256){.context = EVP_MD_CTX_new()};
    if (h->context && EVP_DigestInit_ex(h->context, EVP_sha256(), NULL))
        return DW_OK;
    dw_sha256_release(h);
    return fail_hash(err);
}

void dw_sha256_update(dw_sha256 *h, const void *bytes, size_t n_bytes)
{
    if (n_bytes > 0 && !EVP_DigestUpdate(h->context, bytes, n_bytes))
        h->failed = true;
}

dw_status dw_sha256_final(dw_sha256 *h, uint8_t out[DW_SHA256_BYTES], dw_error *err)
{
    bool good = !h->failed && EVP_DigestFinal_ex(h->context, out, NULL);
    dw_sha256_release(h);
    return good ? DW_OK : fail_hash(err);
}

void dw_sha256_release(dw_sha256 *h)
{
    EVP_MD_CTX_free(h->context);
    h->context = NULL;
}

dw_status dw_sha256_of(uint8_t out[DW_SHA256_BYTES], const void *bytes, size_t n_bytes,
                       dw_error *err)
{
    return EVP_Digest(n_bytes ? bytes : "", n_bytes, out, NULL, EVP_sha256(), NULL)
               ? DW_OK
               : fail_hash(err);
}

dw_status dw_hmac_sha256(uint8_t out[DW_SHA256_BYTES], const void *key, size_t n_key,
                         const void *bytes, size_t n_bytes, dw_error *err)
{
    unsigned n = 0;
    return HMAC(EVP_sha256(), key, (int)n_key, bytes, n_bytes, out, &n) ? DW_OK
                                                                        : fail_hash(err);
}

bool dw_sha256_is_given(const uint8_t hash[DW_SHA256_BYTES])
{
    static const uint8_t none[DW_SHA256_BYTES];
    return memcmp(hash, none, sizeof none) != 0;
}

void dw_hex_encode(char *out, const void *bytes, size_t n_bytes)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *at = bytes;
    for (size_t i = 0; i < n_bytes; i++) {
        out[2 * i] = digits[at[i] >> 4];
        out[2 * i + 1] = digits[at[i] & 15];
    }
    out[2 * n_bytes] = '\0';
}

int dw_hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Each number has one spelling: lower case. */
static int digit_of(char c)
{
    return c >= 'A' && c <= 'F' ? -1 : dw_hex_digit(c);
}

bool dw_hex_decode(void *out, size_t n_bytes, const char *text)
{
    uint8_t *at = out;
    for (size_t i = 0; i < n_bytes; i++) {
        int high = digit_of(text[2 * i]);
        int low = high < 0 ? -1 : digit_of(text[2 * i + 1]);
        if (low < 0)
            return false;
        at[i] = (uint8_t)(high << 4 | low);
    }
    return text[2 * n_bytes] == '\0';
}
