/* Ed25519 keys: who may write a stream.
 *
 * A trainer signs what it commits with a secret key; a follower is told which public keys
 * it trusts, and refuses everything else. Keys are kept in files: the secret one in PEM
 * as OpenSSL writes it (`openssl pkey -in FILE` reads it), the public one as one line of
 * text, `deltawire-key:` and 64 hexadecimal digits.
 */
#ifndef DELTAWIRE_SIGN_H
#define DELTAWIRE_SIGN_H

#include <stddef.h>
#include <stdint.h>

#include "deltawire/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DW_PUBLIC_KEY_BYTES 32
#define DW_PUBLIC_KEY_TEXT  79 /* "deltawire-key:", 64 digits, NUL */
#define DW_SIGNATURE_BYTES  64

typedef struct dw_sign_key dw_sign_key;

/* Makes a new key and writes it to PATH, readable by its owner alone; an existing file is
 * DW_CONFLICT. PUBLIC_TEXT takes the public key. */
DW_API dw_status dw_sign_key_create(const char *path,
                                    char public_text[DW_PUBLIC_KEY_TEXT], dw_error *err);

/* Reads a secret key. A file that others may read is refused. */
DW_API dw_status dw_sign_key_open(dw_sign_key **out, const char *path, dw_error *err);

/* Wipes and frees. Accepts NULL. */
DW_API void dw_sign_key_close(dw_sign_key *key);

DW_API void dw_sign_key_public(const dw_sign_key *key, uint8_t out[DW_PUBLIC_KEY_BYTES]);

DW_API dw_status dw_sign(const dw_sign_key *key, uint8_t signature[DW_SIGNATURE_BYTES],
                         const void *bytes, size_t n_bytes, dw_error *err);

/* DW_UNTRUSTED where the signature is not by that key over these bytes. */
DW_API dw_status dw_sign_verify(const uint8_t key[DW_PUBLIC_KEY_BYTES],
                                const uint8_t signature[DW_SIGNATURE_BYTES],
                                const void *bytes, size_t n_bytes, dw_error *err);

/* Reads a public key: its text, or the path of a file that holds it. */
DW_API dw_status dw_public_key_read(uint8_t out[DW_PUBLIC_KEY_BYTES],
                                    const char *text_or_path, dw_error *err);
DW_API void dw_public_key_format(char out[DW_PUBLIC_KEY_TEXT],
                                 const uint8_t key[DW_PUBLIC_KEY_BYTES]);

#ifdef __cplusplus
}
#endif

#endif
