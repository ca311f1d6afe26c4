/* Keys on the command line: --trust KEY, repeatable, and --sign-key FILE. */
#ifndef CLI_KEYS_H
#define CLI_KEYS_H

#include <deltawire/stream.h>

#include "command_line.h"

enum { CLI_OPT_TRUST = 1040, CLI_OPT_STREAM };

/* Belongs in a verb's table of options, before CLI_COMMON_OPTIONS. */
#define CLI_TRUST_OPTIONS                                                                \
    {"trust", required_argument, NULL, CLI_OPT_TRUST},                                   \
    {                                                                                    \
        "stream", required_argument, NULL, CLI_OPT_STREAM                                \
    }

#define CLI_TRUST_HELP                                                                   \
    "  --trust KEY          trust only this key (text or FILE.pub); repeatable\n"        \
    "  --stream ID          refuse a stream with another id; see deltawire status\n"

typedef struct cli_keys {
    const char **trusted; /* as given: texts or paths */
    size_t n_trusted;
    uint8_t (*keys)[DW_PUBLIC_KEY_BYTES]; /* as read */
    const char *stream;                   /* --stream, or NULL */
    const char *sign_path;                /* or NULL */
    dw_sign_key *sign_key;
} cli_keys;

/* Handles an option of the table above; false if OPTION is not in it. */
bool cli_keys_takes(int option);
void cli_keys_take(cli_keys *keys, const cli_session *s, int option);

/* Reads all keys, also the secret one. Returns 0, or the exit code of the error it
 * reported. */
int cli_keys_load(cli_keys *keys, const cli_session *s);

dw_trust cli_keys_trust(const cli_keys *keys);

void cli_keys_release(cli_keys *keys);

#endif
