/* Text of a model as JSON can carry it. */
#ifndef WORDLE_CLEAN_TEXT_H
#define WORDLE_CLEAN_TEXT_H

#include <jansson.h>
#include <stddef.h>

/* A JSON string of the N bytes; what is no UTF-8, and NUL, becomes U+FFFD. NULL: out of
 * memory. */
json_t *clean_text(const char *bytes, size_t n);

/* Where a reader of such a text is; all zero: at its start. */
typedef struct clean_place {
    size_t at; /* of the bytes */
    size_t n_characters;
} clean_place;

/* Moves on to the character that byte OFFSET is part of, or to the end. */
void clean_text_seek(clean_place *place, const char *bytes, size_t n, size_t offset);

#endif
