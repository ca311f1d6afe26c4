/* Converts a model's text to JSON. */
#ifndef WORDLE_CLEAN_TEXT_H
#define WORDLE_CLEAN_TEXT_H

#include <jansson.h>
#include <stddef.h>

/* A JSON string of the N bytes; invalid UTF-8 and NUL become U+FFFD. NULL if out of
 * memory. */
json_t *clean_text(const char *bytes, size_t n);

/* The position of a reader in such a text; all zero at the start. */
typedef struct clean_place {
    size_t at; /* of the bytes */
    size_t n_characters;
} clean_place;

/* Moves on to the character that contains byte OFFSET, or to the end. */
void clean_text_seek(clean_place *place, const char *bytes, size_t n, size_t offset);

#endif
