#include "base/bytes.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/mem.h"

uint64_t dw_read_varint(dw_reader *r)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte = dw_read_u8(r);
        if (r->failed)
            return 0;
        if (shift == 63 && byte > 1)
            break;
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            if (byte == 0 && shift > 0)
                break; /* padded */
            return v;
        }
    }
    r->failed = true;
    return 0;
}

static uint8_t *reserve(dw_writer *w, size_t n_bytes)
{
    if (w->failed)
        return NULL;
    size_t need;
    if (__builtin_add_overflow(w->n_bytes, n_bytes, &need)) {
        w->failed = true;
        return NULL;
    }
    if (need > w->capacity) {
        size_t capacity = w->capacity + w->capacity / 2;
        if (capacity < need)
            capacity = need < 256 ? 256 : need;
        uint8_t *bytes = dw_realloc_array(w->bytes, capacity, 1);
        if (!bytes) {
            w->failed = true;
            return NULL;
        }
        w->bytes = bytes;
        w->capacity = capacity;
    }
    uint8_t *p = w->bytes + w->n_bytes;
    w->n_bytes = need;
    return p;
}

void dw_write_bytes(dw_writer *w, const void *bytes, size_t n_bytes)
{
    uint8_t *p = reserve(w, n_bytes);
    if (p && n_bytes > 0)
        memcpy(p, bytes, n_bytes);
}

void dw_write_u8(dw_writer *w, uint8_t v)
{
    dw_write_bytes(w, &v, 1);
}

void dw_write_u64(dw_writer *w, uint64_t v)
{
    dw_write_bytes(w, &v, sizeof v);
}

void dw_write_varint(dw_writer *w, uint64_t v)
{
    uint8_t room[10];
    dw_write_bytes(w, room, (size_t)(dw_put_varint(room, v) - room));
}

void dw_write_text(dw_writer *w, const char *text)
{
    dw_write_bytes(w, text, strlen(text));
}

void dw_write_format(dw_writer *w, const char *format, ...)
{
    char text[512]; /* enough for most texts; longer ones are printed a second time */
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0) {
        w->failed = true;
    } else if ((size_t)n < sizeof text) {
        dw_write_bytes(w, text, (size_t)n);
    } else {
        uint8_t *p = reserve(w, (size_t)n + 1);
        if (p) {
            vsnprintf((char *)p, (size_t)n + 1, format, again);
            w->n_bytes--; /* the NUL */
        }
    }
    va_end(again);
}

void dw_writer_release(dw_writer *w)
{
    dw_free(w->bytes);
    *w = (dw_writer){0};
}
