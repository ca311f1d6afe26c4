#include "compat/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "tensor/shard_index.h"

typedef struct spelling {
    const char *before;
    int n_digits; /* at least */
    const char *after;
} spelling;

static const spelling anchor = {DW_TRL_ANCHORS, 6, ".safetensors"};
static const spelling delta = {DW_TRL_DELTAS, 6, ".safetensors"};
static const spelling slime = {DW_SLIME_NAMES, 6, "/" DW_SHARD_INDEX_NAME};

static const spelling *spelling_of(dw_peer_format format, bool is_anchor)
{
    if (format == DW_PEER_TRL)
        return is_anchor ? &anchor : &delta;
    return &slime;
}

void dw_peer_key(char out[DW_KEY_TEXT], dw_peer_format format, uint64_t version,
                 bool is_anchor)
{
    const spelling *s = spelling_of(format, is_anchor);
    snprintf(out, DW_KEY_TEXT, "%s%0*" PRIu64 "%s", s->before, s->n_digits, version,
             s->after);
}

static bool read_version(const spelling *s, const char *key, uint64_t *version)
{
    size_t n_before = strlen(s->before);
    if (strncmp(key, s->before, n_before) != 0)
        return false;
    const char *digits = key + n_before;
    size_t n = strspn(digits, "0123456789");
    if (n < (size_t)s->n_digits || n > 15 ||
        (n > (size_t)s->n_digits && *digits == '0') || strcmp(digits + n, s->after) != 0)
        return false;
    *version = 0;
    for (size_t i = 0; i < n; i++)
        *version = *version * 10 + (uint64_t)(digits[i] - '0');
    return true;
}

bool dw_peer_key_version(dw_peer_format format, const char *key, uint64_t *version)
{
    return read_version(spelling_of(format, true), key, version) ||
           (format == DW_PEER_TRL && read_version(&delta, key, version));
}

bool dw_peer_name_is_plain(const char *name)
{
    return strlen(name) < 100 && !strchr(name, '/') && name[0] != '.' &&
           dw_store_key_valid(name) && dw_name_ends(name, ".safetensors");
}
