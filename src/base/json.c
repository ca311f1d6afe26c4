#include "base/json.h"

#include "base/error.h"
#include "base/json_tree.h"

#define MAX_VALUES 200000 /* the most that jansson gets: about 300 bytes each */

dw_status dw_json_parse_object(json_t **out, const void *text, size_t n_bytes,
                               const char *subject, const char *path, dw_error *err)
{
    json_error_t fault;
    *out = NULL;
    dw_status status =
        dw_json_check(text, n_bytes, false, MAX_VALUES, subject, path, err);
    if (status != DW_OK)
        return status;
    /* an empty file is mapped as NULL, which jansson refuses */
    json_t *root = json_loadb(text ? text : "", n_bytes, JSON_REJECT_DUPLICATES, &fault);
    if (!root && json_error_code(&fault) == json_error_out_of_memory)
        return dw_fail_memory(err, path);
    if (!root)
        return dw_fail(err, DW_CORRUPT, path, "the %s is not strict JSON: %s (byte %d)",
                       subject, fault.text, fault.position);
    if (!json_is_object(root)) {
        json_decref(root);
        return dw_fail(err, DW_CORRUPT, path, "the %s is not a JSON object", subject);
    }
    *out = root;
    return DW_OK;
}

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

json_t *dw_json_text(const char *text)
{
    if (dw_utf8_valid(text))
        return json_string_nocheck(text);
    dw_writer valid = {0};
    for (const char *p = text; *p;) {
        size_t n_bytes = dw_utf8_bytes(p);
        if (n_bytes > 0)
            dw_write_bytes(&valid, p, n_bytes);
        else
            dw_write_text(&valid, "\xef\xbf\xbd"); /* U+FFFD */
        p += n_bytes > 0 ? n_bytes : 1;
    }
    json_t *string = valid.failed
                         ? NULL
                         : json_stringn_nocheck((const char *)valid.bytes, valid.n_bytes);
    dw_writer_release(&valid);
    return string;
}
