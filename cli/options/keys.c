#include "keys.h"

#include <stdlib.h>

#include "fail.h"

static void add_trusted(cli_keys *keys, const cli_session *s, const char *text_or_path)
{
    const char **grown =
        realloc(keys->trusted, (keys->n_trusted + 1) * sizeof *keys->trusted);
    if (!grown)
        exit(cli_fail_as(s, "no memory", "", "out of memory", NULL));
    keys->trusted = grown;
    keys->trusted[keys->n_trusted++] = text_or_path;
}

bool cli_keys_takes(int option)
{
    return option == CLI_OPT_TRUST || option == CLI_OPT_STREAM;
}

void cli_keys_take(cli_keys *keys, const cli_session *s, int option)
{
    if (option == CLI_OPT_TRUST)
        add_trusted(keys, s, optarg);
    else
        keys->stream = optarg;
}

int cli_keys_load(cli_keys *keys, const cli_session *s)
{
    dw_error err;
    keys->keys = calloc(keys->n_trusted + 1, sizeof *keys->keys);
    if (!keys->keys)
        return cli_fail_as(s, "no memory", "", "out of memory", NULL);
    for (size_t i = 0; i < keys->n_trusted; i++)
        if (dw_public_key_read(keys->keys[i], keys->trusted[i], &err) != DW_OK)
            return cli_fail(s, &err, keys->trusted[i], NULL);
    if (keys->sign_path &&
        dw_sign_key_open(&keys->sign_key, keys->sign_path, &err) != DW_OK)
        return cli_fail(s, &err, keys->sign_path,
                        err.code == DW_NOT_FOUND ? "deltawire keygen %s" : NULL,
                        keys->sign_path);
    return 0;
}

dw_trust cli_keys_trust(const cli_keys *keys)
{
    return (dw_trust){(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])keys->keys, keys->n_trusted,
                      keys->stream};
}

void cli_keys_release(cli_keys *keys)
{
    dw_sign_key_close(keys->sign_key);
    free(keys->keys);
    free(keys->trusted);
    *keys = (cli_keys){0};
}
