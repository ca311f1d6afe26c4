/* The words of the game: five letters a to z each, sorted. */
#ifndef WORDLE_WORDS_H
#define WORDLE_WORDS_H

#include <stdbool.h>
#include <stddef.h>

#include <deltawire/deltawire.h>

enum { WORD_LETTERS = 5, MAX_WORDS = 20000 };

typedef char word[WORD_LETTERS + 1];

typedef struct words {
    size_t n; /* at least 1 */
    word *list;
} words;

/* Reads PATH, one word a line, in any order; NULL: the list of words.txt, which is in the
 * program. Refuses lines that are not words. */
dw_status words_open(words *out, const char *path, dw_error *err);
void words_release(words *list);

/* Whether TEXT, a string, is one of them. */
bool words_have(const words *list, const char *text);

#endif
