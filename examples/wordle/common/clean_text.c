#include "clean_text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The bytes of the character at P, if there are N bytes; 0 if it is invalid. */
static size_t character(const uint8_t *p, size_t n)
{
    if (p[0] < 0x80)
        return p[0] != 0;
    const size_t want = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || want > n)
        return 0;
    for (size_t i = 1; i < want; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    /* overlong forms, surrogates, values that are too large */
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return want;
}

void clean_text_seek(clean_place *place, const char *bytes, size_t n, size_t offset)
{
    while (place->at < n) {
        const size_t found = character((const uint8_t *)bytes + place->at, n - place->at);
        const size_t n_bytes = found > 0 ? found : 1;
        if (place->at + n_bytes > offset)
            return;
        place->at += n_bytes;
        place->n_characters++;
    }
}

json_t *clean_text(const char *bytes, size_t n)
{
    static const char replacement[] = "\xef\xbf\xbd";
    char *out = malloc(3 * n + 1);
    size_t n_out = 0;
    if (!out)
        return NULL;
    for (size_t at = 0; at < n;) {
        size_t n_bytes = character((const uint8_t *)bytes + at, n - at);
        const char *from = n_bytes > 0 ? bytes + at : replacement;
        const size_t n_copy = n_bytes > 0 ? n_bytes : sizeof replacement - 1;
        memcpy(out + n_out, from, n_copy);
        n_out += n_copy;
        at += n_bytes > 0 ? n_bytes : 1;
    }
    json_t *text = json_stringn(out, n_out);
    free(out);
    return text;
}
