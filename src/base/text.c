#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"

/* The character of N_BYTES bytes at TEXT, which is valid UTF-8. */
static uint32_t code_point(const char *text, size_t n_bytes)
{
    static const unsigned char masks[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t c = (unsigned char)text[0] & masks[n_bytes];
    for (size_t i = 1; i < n_bytes; i++)
        c = c << 6 | ((unsigned char)text[i] & 0x3f);
    return c;
}

size_t dw_text_unshown(const char *text)
{
    /* Cc, Cf, Zl and Zp of Unicode 15, without the signs of Arabic, Syriac and Kaithi
     * numbers, which are visible */
    static const struct {
        uint32_t first, last;
    } ranges[] = {
        {0x01, 0x1f},       {0x7f, 0x9f},       {0xad, 0xad},       {0x61c, 0x61c},
        {0x180e, 0x180e},   {0x200b, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x206f},
        {0xfeff, 0xfeff},   {0xfff9, 0xfffb},   {0x13430, 0x1343f}, {0x1bca0, 0x1bca3},
        {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
    };
    const size_t n_bytes = dw_utf8_bytes(text);
    const uint32_t c = n_bytes ? code_point(text, n_bytes) : 0;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i].first && c <= ranges[i].last)
            return n_bytes;
    return 0;
}

void dw_text_clean(char *out, size_t size, const char *text)
{
    size_t n = 0;
    while (*text) {
        const size_t n_bytes = dw_utf8_bytes(text);
        const bool good = n_bytes > 0 && dw_text_unshown(text) == 0;
        const size_t n_out = good ? n_bytes : 1;
        if (n + n_out >= size)
            break;
        memcpy(out + n, good ? text : "?", n_out);
        n += n_out;
        text += n_bytes > 0 ? n_bytes : 1;
    }
    out[n] = '\0';
}

void dw_host_name(char out[DW_HOST_NAME_TEXT])
{
    char name[DW_HOST_NAME_TEXT] = "";
    /* a truncated name may lack its NUL */
    if (gethostname(name, sizeof name - 1) != 0 || !name[0])
        strcpy(name, "?");
    dw_text_clean(out, DW_HOST_NAME_TEXT, name);
}
