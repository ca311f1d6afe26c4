/* The name that a follower reports under if it was given none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "deltawire/follow.h"

#define HOST_CHARS 45 /* so that all fits into DW_FOLLOWER_ID_SIZE */
#define HASH_BYTES 4

/* Of the absolute path, without slashes at its end. */
static void hash_path(char out[2 * HASH_BYTES + 1], const char *path)
{
    uint8_t hash[DW_SHA256_BYTES] = {0};
    char *cwd = path[0] == '/' ? NULL : getcwd(NULL, 0);
    char *joined = cwd ? dw_join_path(cwd, path) : NULL;
    const char *whole = joined ? joined : path;
    size_t n = strlen(whole);
    while (n > 1 && whole[n - 1] == '/')
        n--;
    dw_sha256_of(hash, whole, n, NULL);
    dw_hex_encode(out, hash, HASH_BYTES);
    dw_free(joined);
    free(cwd);
}

void dw_follower_id(char out[DW_FOLLOWER_ID_SIZE], const char *into, unsigned n)
{
    static const char letters[] =
        "-_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    char host[DW_HOST_NAME_TEXT], digits[2 * HASH_BYTES + 1];
    dw_host_name(host);
    for (char *at = host; *at; at++)
        if (!strchr(letters, *at))
            *at = '-';
    if (into) {
        hash_path(digits, into);
        snprintf(out, DW_FOLLOWER_ID_SIZE, "%.*s-%s", HOST_CHARS, host, digits);
    } else {
        snprintf(out, DW_FOLLOWER_ID_SIZE, "%.*s-memory-%u", HOST_CHARS, host, n);
    }
}
