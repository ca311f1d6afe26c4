/* Keys on the command line: --trust KEY, repeatable, and --sign-key FILE. */
#ifndef CLI_KEYS_H
#define CLI_KEYS_H

#include <deltawire/stream.h>

#include "command_line.h"

typedef struct cli_keys {
    cli_list trusted;                     /* as given: texts or paths */
    uint8_t (*keys)[DW_PUBLIC_KEY_BYTES]; /* as read */
    const char *stream;                   /* --stream, or NULL */
    const char *sign_path;                /* or NULL */
    dw_sign_key *sign_key;
} cli_keys;

extern const cli_option cli_trust_options[]; /* --trust and --stream, of a cli_keys */

/* Reads all keys, also the secret one. Returns 0, or the exit code of the error it
 * reported. */
int cli_keys_load(cli_keys *keys, const cli_session *s);

dw_trust cli_keys_trust(const cli_keys *keys);

void cli_keys_release(cli_keys *keys);

#endif
