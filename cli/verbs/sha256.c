#include "sha256.h"

#include "base/hash.h"
#include "progress_bar.h"

#define PIECE_BYTES (16u << 20)

static dw_status hash_weights(dw_sha256 *hash, const cli_weights *weights,
                              cli_progress *bar, dw_error *err)
{
    uint64_t n_done = 0;
    for (size_t i = 0; i < weights->n_tensors; i++) {
        const dw_tensor *t = &weights->tensors[i];
        for (uint64_t at = 0, n; at < t->n_bytes; at += n) {
            n = t->n_bytes - at < PIECE_BYTES ? t->n_bytes - at : PIECE_BYTES;
            dw_sha256_update(hash, (const char *)t->data + at, (size_t)n);
            n_done += n;
            if (cli_progress_report(bar, n_done, weights->n_bytes) != 0)
                return cli_check_signal(err);
        }
    }
    return DW_OK;
}

dw_status cli_sha256_weights(char out[DW_SHA256_TEXT], const cli_weights *weights,
                             const cli_session *s, dw_error *err)
{
    dw_sha256 hash;
    uint8_t bytes[DW_SHA256_BYTES];
    dw_status status = dw_sha256_init(&hash, err);
    if (status != DW_OK)
        return status;
    cli_progress bar = cli_progress_start(s, "SHA-256");
    status = hash_weights(&hash, weights, &bar, err);
    cli_progress_end(&bar);
    if (status == DW_OK)
        status = dw_sha256_final(&hash, bytes, err);
    dw_sha256_release(&hash);
    if (status == DW_OK)
        dw_hex_encode(out, bytes, sizeof bytes);
    return status;
}
