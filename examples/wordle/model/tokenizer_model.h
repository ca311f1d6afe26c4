/* The internals of the tokenizer: tokenizer.json in a form for encoding. */
#ifndef WORDLE_TOKENIZER_MODEL_H
#define WORDLE_TOKENIZER_MODEL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tokenizer.h"

/* Two neighbours that become one token; lower ranks first. */
typedef struct merge {
    uint32_t left, right; /* NO_TOKEN: an empty place of the table */
    uint32_t rank;
    uint32_t id;
} merge;

#define NO_TOKEN UINT32_MAX

typedef struct token {
    char *bytes; /* its bytes in a text; NULL: there is no such token */
    uint32_t n_bytes;
    bool is_special;
} token;

struct tokenizer {
    token *tokens; /* [n_tokens], by number */
    uint32_t n_tokens;
    uint32_t of_byte[256]; /* the token of each single byte, or NO_TOKEN */
    bool normalizes;       /* to NFC */
    pcre2_code *pattern;   /* of a piece; NULL: the text is one piece */
    merge *merges;         /* hash table: [n_places], a power of two; NULL: no merges */
    size_t n_places;
    uint32_t *added; /* numbers of the added tokens, longest first */
    size_t n_added;
    bool begins_added[256]; /* whether any of them begins with that byte */
};

static inline size_t merge_place(const tokenizer *tok, uint32_t left, uint32_t right)
{
    uint64_t key = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return (size_t)(key >> 20) & (tok->n_places - 1);
}

#endif
