/* Text of a model as JSON can carry it. */
#ifndef WORDLE_CLEAN_TEXT_H
#define WORDLE_CLEAN_TEXT_H

#include <jansson.h>
#include <stddef.h>

/* A JSON string of the N bytes; what is no UTF-8, and NUL, becomes U+FFFD. NULL: out of
 * memory. */
json_t *clean_text(const char *bytes, size_t n);

#endif
