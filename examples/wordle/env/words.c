#include "words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"

/* words.txt, by cmake/embed.cmake */
extern const unsigned char wordle_words[];
extern const size_t wordle_words_bytes;

static int compare(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(word));
}

static bool is_word(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (line[i] < 'a' || line[i] > 'z')
            return false;
    return n == WORD_LETTERS;
}

static void sort_unique(words *list)
{
    size_t n = 0;
    qsort(list->list, list->n, sizeof(word), compare);
    for (size_t i = 0; i < list->n; i++)
        if (n == 0 || compare(list->list[n - 1], list->list[i]) != 0)
            memmove(list->list[n++], list->list[i], sizeof(word));
    list->n = n;
}

static dw_status parse(words *out, const char *text, size_t n_text, const char *where,
                       dw_error *err)
{
    size_t n_lines = 0;
    for (size_t at = 0, n; at < n_text; at += n + 1) {
        const char *end = memchr(text + at, '\n', n_text - at);
        n = end ? (size_t)(end - text) - at : n_text - at;
        n_lines++;
        if (!is_word(text + at, n) || out->n == MAX_WORDS)
            return wordle_fail(err, DW_INVALID, where,
                               "line %zu: one word of %d letters a to z a line, at most "
                               "%d of them",
                               n_lines, WORD_LETTERS, MAX_WORDS);
        memcpy(out->list[out->n++], text + at, WORD_LETTERS);
    }
    if (out->n == 0)
        return wordle_fail(err, DW_INVALID, where, "there are no words in it");
    sort_unique(out);
    return DW_OK;
}

dw_status words_open(words *out, const char *path, dw_error *err)
{
    const size_t max = MAX_WORDS * sizeof(word);
    const char *text = (const char *)wordle_words;
    size_t n_text = wordle_words_bytes;
    char *room = NULL;
    dw_status status = DW_OK;
    *out = (words){.list = calloc(MAX_WORDS, sizeof(word))};
    if (path) {
        FILE *file = fopen(path, "rb");
        room = malloc(max + 1);
        if (!file)
            status = wordle_fail(err, DW_NOT_FOUND, path, "cannot be opened: %s",
                                 strerror(errno));
        else if (room)
            n_text = fread(room, 1, max + 1, file);
        text = room;
        if (file)
            fclose(file);
    }
    if (status == DW_OK && (!out->list || !text))
        status = wordle_fail(err, DW_NO_MEMORY, path ? path : "words", "out of memory");
    if (status == DW_OK)
        status = parse(out, text, n_text, path ? path : "words.txt", err);
    free(room);
    if (status != DW_OK)
        words_release(out);
    return status;
}

void words_release(words *list)
{
    free(list->list);
    *list = (words){0};
}

bool words_have(const words *list, const char *text)
{
    return strlen(text) == WORD_LETTERS &&
           bsearch(text, list->list, list->n, sizeof(word), compare) != NULL;
}
