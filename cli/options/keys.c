#include "keys.h"

#include <stdlib.h>

#include "fail.h"

const cli_option cli_trust_options[] = {
    {CLI_OPTION(LIST, cli_keys, trusted, "trust", "KEY",
                "trust only this key (text or FILE.pub); repeatable")},
    {CLI_OPTION(TEXT, cli_keys, stream, "stream", "ID",
                "refuse a stream with another id; see deltawire status")},
    {0},
};

int cli_keys_load(cli_keys *keys, const cli_session *s)
{
    dw_error err;
    keys->keys = calloc(keys->trusted.n + 1, sizeof *keys->keys);
    if (!keys->keys)
        return cli_fail_as(s, "no memory", "", "out of memory", NULL);
    for (size_t i = 0; i < keys->trusted.n; i++)
        if (dw_public_key_read(keys->keys[i], keys->trusted.items[i], &err) != DW_OK)
            return cli_fail(s, &err, keys->trusted.items[i], NULL);
    if (keys->sign_path &&
        dw_sign_key_open(&keys->sign_key, keys->sign_path, &err) != DW_OK)
        return cli_fail(s, &err, keys->sign_path,
                        err.code == DW_NOT_FOUND ? "deltawire keygen %s" : NULL,
                        keys->sign_path);
    return 0;
}

dw_trust cli_keys_trust(const cli_keys *keys)
{
    return (dw_trust){(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])keys->keys, keys->trusted.n,
                      keys->stream};
}

void cli_keys_release(cli_keys *keys)
{
    dw_sign_key_close(keys->sign_key);
    free(keys->keys);
    *keys = (cli_keys){0};
}
