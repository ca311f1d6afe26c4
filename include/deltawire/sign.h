/* Ed25519 keys: who may write a stream. Stable.
 *
 * A trainer signs its commits with a secret key. A follower that is given public keys
 * refuses everything that is not signed with one of them. The file of a secret key is PEM
 * as OpenSSL writes it (`openssl pkey -in FILE` reads it). A public key is one line of
 * text: `deltawire-key:` and 64 hexadecimal digits.
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

typedef struct dw_sign_key dw_sign_key;

/* Makes a new key and writes it to PATH, which only its owner can read. DW_CONFLICT if
 * the file exists. PUBLIC_TEXT takes the public key. */
DW_API dw_status dw_sign_key_create(const char *path,
                                    char public_text[DW_PUBLIC_KEY_TEXT], dw_error *err);

/* Reads a secret key. Refuses a file that others may read. */
DW_API dw_status dw_sign_key_open(dw_sign_key **out, const char *path, dw_error *err);

/* Wipes and frees. */
DW_API void dw_sign_key_close(dw_sign_key *key);

/* The public key of a secret key: the one to give to followers. */
DW_API void dw_sign_key_public(const dw_sign_key *key, uint8_t out[DW_PUBLIC_KEY_BYTES]);

/* Reads a public key from its text, or from the file at this path. */
DW_API dw_status dw_public_key_read(uint8_t out[DW_PUBLIC_KEY_BYTES],
                                    const char *text_or_path, dw_error *err);
DW_API void dw_public_key_format(char out[DW_PUBLIC_KEY_TEXT],
                                 const uint8_t key[DW_PUBLIC_KEY_BYTES]);

#ifdef __cplusplus
}
#endif

#endif
