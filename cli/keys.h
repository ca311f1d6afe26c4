/* Keys on the command line: --trust KEY, as often as wanted, and --sign-key FILE. */
#ifndef CLI_KEYS_H
#define CLI_KEYS_H

#include <deltawire/stream.h>

#include "options.h"

#define CLI_TRUST_HELP                                                                   \
    "  --trust KEY          believe this key alone: its text, or FILE.pub; repeatable\n"

typedef struct cli_keys {
    const char **trusted; /* as given: texts or paths */
    size_t n_trusted;
    uint8_t (*keys)[DW_PUBLIC_KEY_BYTES]; /* as read */
    const char *sign_path;                /* or NULL */
    dw_sign_key *sign_key;
} cli_keys;

/* Adds the value of a --trust. */
void cli_keys_add(cli_keys *keys, const cli_session *s, const char *text_or_path);

/* Reads them all, the secret one too. Returns 0, or the exit code of the error it
 * reported. */
int cli_keys_load(cli_keys *keys, const cli_session *s);

dw_trust cli_keys_trust(const cli_keys *keys);

void cli_keys_release(cli_keys *keys);

#endif
