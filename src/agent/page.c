#include "agent/page.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"

#define BEGIN "<script>"
#define END   "</script>"

static dw_status hash_source(char out[64], const char *script, size_t n_bytes,
                             dw_error *err)
{
    uint8_t hash[DW_SHA256_BYTES];
    unsigned char base64[48];
    dw_status status = dw_sha256_of(hash, script, n_bytes, err);
    if (status != DW_OK)
        return status;
    EVP_EncodeBlock(base64, hash, sizeof hash);
    snprintf(out, 64, " 'sha256-%s'", (const char *)base64);
    return DW_OK;
}

dw_status dw_page_policy(char out[DW_PAGE_POLICY], const char *page, dw_error *err)
{
    static const char rest[] = "; style-src 'unsafe-inline'; img-src data:; connect-src "
                               "'self'; base-uri 'none'; form-action 'none'; "
                               "frame-ancestors 'none'";
    dw_status status = DW_OK;
    size_t n = (size_t)snprintf(out, DW_PAGE_POLICY, "default-src 'none'; script-src");
    for (const char *at = page; (at = strstr(at, BEGIN));) {
        char source[64];
        const char *script = at + strlen(BEGIN);
        const char *end = strstr(script, END);
        if (!end)
            break;
        status = hash_source(source, script, (size_t)(end - script), err);
        if (status != DW_OK)
            return status;
        if (n + strlen(source) + sizeof rest > DW_PAGE_POLICY)
            return dw_fail(err, DW_UNSUPPORTED, "page.html", "too many scripts");
        n += (size_t)snprintf(out + n, DW_PAGE_POLICY - n, "%s", source);
        at = end;
    }
    snprintf(out + n, DW_PAGE_POLICY - n, "%s", rest);
    return DW_OK;
}
