#include "sha256.h"

#include <openssl/evp.h>
#include <stdio.h>

#include "error.h"
#include "progress.h"

#define PIECE_BYTES (16u << 20)

static dw_status hash_weights(EVP_MD_CTX *hash, const cli_weights *weights,
                              cli_progress *bar, dw_error *err)
{
    uint64_t n_done = 0;
    for (size_t i = 0; i < weights->n_tensors; i++) {
        const dw_tensor *t = &weights->tensors[i];
        for (uint64_t at = 0, n; at < t->n_bytes; at += n) {
            n = t->n_bytes - at < PIECE_BYTES ? t->n_bytes - at : PIECE_BYTES;
            if (!EVP_DigestUpdate(hash, (const char *)t->data + at, (size_t)n))
                return cli_error_set(err, DW_NO_MEMORY, "", "SHA-256 failed");
            n_done += n;
            if (cli_progress_report(bar, n_done, weights->n_bytes) != 0)
                return cli_check_signal(err);
        }
    }
    return DW_OK;
}

dw_status cli_sha256_weights(char out[CLI_SHA256_TEXT], const cli_weights *weights,
                             const cli_session *s, dw_error *err)
{
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    if (!hash || !EVP_DigestInit_ex(hash, EVP_sha256(), NULL)) {
        EVP_MD_CTX_free(hash);
        return cli_error_set(err, DW_NO_MEMORY, "", "SHA-256 is not to be had");
    }
    cli_progress bar = cli_progress_start(s, "SHA-256");
    dw_status status = hash_weights(hash, weights, &bar, err);
    cli_progress_end(&bar);
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n_bytes = 0;
    if (status == DW_OK && !EVP_DigestFinal_ex(hash, digest, &n_bytes))
        status = cli_error_set(err, DW_NO_MEMORY, "", "SHA-256 failed");
    EVP_MD_CTX_free(hash);
    for (unsigned i = 0; i < n_bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
    return status;
}
