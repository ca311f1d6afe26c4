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

/* Whether a terminal would act on the character instead of showing it. */
static bool is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x061c || c == 0x200e ||
           c == 0x200f || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

void dw_text_clean(char *out, size_t size, const char *text)
{
    size_t n = 0;
    while (*text) {
        const size_t n_bytes = dw_utf8_bytes(text);
        const bool good = n_bytes > 0 && !is_control(code_point(text, n_bytes));
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
