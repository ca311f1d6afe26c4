/* Names of objects. A key is read by taking its parts and making it again: only what this
 * file would write is recognised, so that an object has one name. */
#include "stream/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define MAX_NUMBER (1ull << 53)

void dw_key_commit(char out[DW_KEY_TEXT], uint64_t version)
{
    snprintf(out, DW_KEY_TEXT, "commits/%020" PRIu64 ".json", version);
}

void dw_key_shortcut(char out[DW_KEY_TEXT], uint64_t version, uint64_t from)
{
    if (from == DW_NO_VERSION)
        snprintf(out, DW_KEY_TEXT, "ways/%020" PRIu64 "-anchor.json", version);
    else
        snprintf(out, DW_KEY_TEXT, "ways/%020" PRIu64 "-from-%020" PRIu64 ".json",
                 version, from);
}

void dw_key_before_shortcuts(char out[DW_KEY_TEXT], uint64_t version)
{
    snprintf(out, DW_KEY_TEXT, "ways/%020" PRIu64, version);
}

void dw_key_epoch(char out[DW_KEY_TEXT], uint64_t epoch)
{
    snprintf(out, DW_KEY_TEXT, "epochs/%010" PRIu64 ".json", epoch);
}

void dw_key_receipt(char out[DW_KEY_TEXT], uint64_t epoch, uint32_t rank)
{
    snprintf(out, DW_KEY_TEXT, "receipts/%010" PRIu64 "-%05" PRIu32 ".json", epoch, rank);
}

void dw_key_follower(char out[DW_KEY_TEXT], const char *id)
{
    snprintf(out, DW_KEY_TEXT, "followers/%.64s.json", id);
}

void dw_key_object(char out[DW_KEY_TEXT], uint64_t version, const char *write_id,
                   const char *purpose, unsigned part)
{
    snprintf(out, DW_KEY_TEXT, "objects/%020" PRIu64 "-%.32s-%.16s%s%04u.safetensors",
             version, write_id, purpose ? purpose : "", purpose ? "-" : "", part);
}

void dw_key_file(char out[DW_KEY_TEXT], uint64_t version, const char *write_id,
                 unsigned index)
{
    snprintf(out, DW_KEY_TEXT, "files/%020" PRIu64 "-%.32s-%04u", version, write_id,
             index);
}

/* ---- reading ---- */

static bool skip_text(const char **at, const char *text)
{
    size_t n = strlen(text);
    if (strncmp(*at, text, n) != 0)
        return false;
    *at += n;
    return true;
}

static bool skip_number(const char **at, uint64_t *out)
{
    const char *begin = *at;
    *out = 0;
    for (; **at >= '0' && **at <= '9'; ++*at) {
        *out = *out * 10 + (uint64_t)(**at - '0');
        if (*out >= MAX_NUMBER)
            return false;
    }
    return *at > begin;
}

static bool skip_id(const char **at, char out[DW_ID_TEXT])
{
    uint8_t bytes[(DW_ID_TEXT - 1) / 2];
    size_t n = 0;
    for (; n < DW_ID_TEXT - 1 && (*at)[n]; n++)
        out[n] = (*at)[n];
    out[n] = '\0';
    *at += n;
    return dw_hex_decode(bytes, sizeof bytes, out);
}

bool dw_key_is_commit(const char *key, uint64_t *version)
{
    const char *at = key;
    char again[DW_KEY_TEXT];
    if (!skip_text(&at, "commits/") || !skip_number(&at, version))
        return false;
    dw_key_commit(again, *version);
    return strcmp(key, again) == 0;
}

bool dw_key_is_shortcut(const char *key, uint64_t *version, uint64_t *from)
{
    const char *at = key;
    char again[DW_KEY_TEXT];
    *from = DW_NO_VERSION;
    if (!skip_text(&at, "ways/") || !skip_number(&at, version))
        return false;
    if (skip_text(&at, "-from-") && !skip_number(&at, from))
        return false;
    dw_key_shortcut(again, *version, *from);
    return strcmp(key, again) == 0;
}

bool dw_key_is_epoch(const char *key, uint64_t *epoch)
{
    const char *at = key;
    char again[DW_KEY_TEXT];
    if (!skip_text(&at, "epochs/") || !skip_number(&at, epoch))
        return false;
    dw_key_epoch(again, *epoch);
    return strcmp(key, again) == 0;
}

bool dw_key_is_object(const char *key, uint64_t *version, bool *of_shortcut)
{
    const char *at = key;
    char write_id[DW_ID_TEXT], again[DW_KEY_TEXT];
    uint64_t part;
    if (!skip_text(&at, "objects/") || !skip_number(&at, version) ||
        !skip_text(&at, "-") || !skip_id(&at, write_id) || !skip_text(&at, "-"))
        return false;
    const char *purpose = skip_text(&at, "fold-")     ? "fold"
                          : skip_text(&at, "anchor-") ? "anchor"
                                                      : NULL;
    if (!skip_number(&at, &part) || part > UINT32_MAX)
        return false;
    *of_shortcut = purpose != NULL;
    dw_key_object(again, *version, write_id, purpose, (unsigned)part);
    return strcmp(key, again) == 0;
}

#define VERSION_END (sizeof "objects/" - 1 + 20) /* in the key of an object */

bool dw_key_is_of(const char *key, uint64_t version)
{
    char begin[DW_KEY_TEXT];
    snprintf(begin, sizeof begin, "objects/%020" PRIu64 "-", version);
    return strncmp(key, begin, VERSION_END + 1) == 0;
}

bool dw_key_same_attempt(const char *key, const char *other)
{
    return strncmp(key, other, VERSION_END + 1 + DW_ATTEMPT_DIGITS) == 0;
}

bool dw_key_is_receipt(const char *key, uint64_t *epoch)
{
    const char *at = key;
    char again[DW_KEY_TEXT];
    uint64_t rank;
    if (!skip_text(&at, "receipts/") || !skip_number(&at, epoch) ||
        !skip_text(&at, "-") || !skip_number(&at, &rank) || rank > UINT32_MAX)
        return false;
    dw_key_receipt(again, *epoch, (uint32_t)rank);
    return strcmp(key, again) == 0;
}

bool dw_key_is_file(const char *key, uint64_t *version)
{
    const char *at = key;
    char write_id[DW_ID_TEXT], again[DW_KEY_TEXT];
    uint64_t index;
    if (!skip_text(&at, "files/") || !skip_number(&at, version) || !skip_text(&at, "-") ||
        !skip_id(&at, write_id) || !skip_text(&at, "-") || !skip_number(&at, &index) ||
        index > UINT32_MAX)
        return false;
    dw_key_file(again, *version, write_id, (unsigned)index);
    return strcmp(key, again) == 0;
}

bool dw_follower_id_valid(const char *id)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    size_t n = strspn(id, letters);
    return n >= 1 && n <= 64 && id[n] == '\0' && id[0] != '.';
}

/* ---- ids ---- */

dw_status dw_random_id(char out[DW_ID_TEXT], dw_error *err)
{
    uint8_t bytes[(DW_ID_TEXT - 1) / 2];
    dw_status status = dw_random_bytes(bytes, sizeof bytes, err);
    if (status == DW_OK)
        dw_hex_encode(out, bytes, sizeof bytes);
    return status;
}
