#include "base/json.h"

#include <stdio.h>
#include <string.h>

static char short_escape(unsigned char c)
{
    switch (c) {
    case '"':
    case '\\':
        return (char)c;
    case '\b':
        return 'b';
    case '\f':
        return 'f';
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    default:
        return 0;
    }
}

void dw_write_json_string(dw_writer *w, const char *text)
{
    dw_write_u8(w, '"');
    const char *plain = text; /* the start of the text that is copied unchanged */
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        char letter = short_escape(c);
        if (!letter && c >= 0x20)
            continue;
        dw_write_bytes(w, plain, (size_t)(text - plain));
        if (letter)
            dw_write_format(w, "\\%c", letter);
        else
            dw_write_format(w, "\\u%04x", c);
        plain = text + 1;
    }
    dw_write_bytes(w, plain, (size_t)(text - plain));
    dw_write_u8(w, '"');
}

size_t dw_utf8_bytes(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    const unsigned char lead = *p;
    /* the second byte's range excludes long forms, surrogates and values above U+10FFFF
     */
    unsigned char low = 0x80, high = 0xbf;
    size_t n_bytes;
    if (lead < 0x80)
        return 1;
    if (lead >= 0xc2 && lead <= 0xdf) {
        n_bytes = 2;
    } else if (lead >= 0xe0 && lead <= 0xef) {
        n_bytes = 3;
        low = lead == 0xe0 ? 0xa0 : low;
        high = lead == 0xed ? 0x9f : high;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        n_bytes = 4;
        low = lead == 0xf0 ? 0x90 : low;
        high = lead == 0xf4 ? 0x8f : high;
    } else {
        return 0;
    }
    for (size_t i = 1; i < n_bytes; i++) { /* the NUL at the end is out of range too */
        if (p[i] < low || p[i] > high)
            return 0;
        low = 0x80;
        high = 0xbf;
    }
    return n_bytes;
}

bool dw_utf8_valid(const char *text)
{
    while (*text) {
        size_t n_bytes = dw_utf8_bytes(text);
        if (n_bytes == 0)
            return false;
        text += n_bytes;
    }
    return true;
}

void dw_write_utf8(dw_writer *w, const char *text)
{
    while (*text) {
        size_t n_bytes = dw_utf8_bytes(text);
        if (n_bytes > 0)
            dw_write_bytes(w, text, n_bytes);
        else
            dw_write_text(w, "\xef\xbf\xbd"); /* U+FFFD */
        text += n_bytes > 0 ? n_bytes : 1;
    }
}

void dw_write_real(dw_writer *w, double v, int n_digits)
{
    char text[64];
    snprintf(text, sizeof text, "%.*g", n_digits, v);
    for (const char *at = text; *at;) {
        const size_t n = strspn(at, "0123456789+-e");
        dw_write_bytes(w, at, n);
        at += n;
        if (*at)
            dw_write_text(w, ".");
        at += strcspn(at, "0123456789");
    }
}
