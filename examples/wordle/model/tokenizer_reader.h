/* Between the parts that read tokenizer.json. */
#ifndef WORDLE_TOKENIZER_READER_H
#define WORDLE_TOKENIZER_READER_H

#include <jansson.h>

#include "tokenizer_model.h"

enum { TOKENIZER_MAX_TOKENS = 1 << 22 };

typedef struct tokenizer_reader {
    tokenizer *tok;
    const char *path;
    dw_error *err;
} tokenizer_reader;

/* These fill ERR and return their code. */
dw_status tokenizer_corrupt(const tokenizer_reader *r, const char *what);
dw_status tokenizer_no_memory(const tokenizer_reader *r);

/* The token's number, or NO_TOKEN if VALUE is none. */
uint32_t tokenizer_number(const json_t *value);

/* Fill tokens, of_byte and merges of the tokenizer. */
dw_status tokenizer_read_vocab(const tokenizer_reader *r, const json_t *vocab);
dw_status tokenizer_read_merges(const tokenizer_reader *r, const json_t *merges,
                                const json_t *vocab);

#endif
