/* Text to tokens and back: byte-level BPE as Qwen ships it.
 *
 * Reads tokenizer.json: NFC, the pattern that cuts text into pieces, vocabulary, merges
 * (there may be none) and added tokens. Opening refuses files that it would not handle
 * like the `tokenizers` library. Once open it is only read: any number of threads may use
 * it.
 */
#ifndef WORDLE_TOKENIZER_H
#define WORDLE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <deltawire/deltawire.h>

typedef struct tokenizer tokenizer;

/* Opens DIR/tokenizer.json. */
dw_status tokenizer_open(tokenizer **out, const char *dir, dw_error *err);
void tokenizer_close(tokenizer *tok);

/* Returns how many tokens the text has and writes the first MAX of them. Added tokens in
 * the text ("<|im_end|>") are recognised; a byte that the vocabulary lacks is left out.
 * SIZE_MAX if out of memory, or if the pattern gave up on a hostile text. */
size_t tokenizer_encode(const tokenizer *tok, const char *text, size_t n_bytes,
                        int32_t *ids, size_t max);

/* Returns how many bytes the text has and writes the first MAX of them, without a zero at
 * the end. A token may be part of a character. Numbers that are no token are left out. */
size_t tokenizer_decode(const tokenizer *tok, const int32_t *ids, size_t n, char *text,
                        size_t max);

/* One more than the largest token. */
uint32_t tokenizer_size(const tokenizer *tok);

/* The added token that is spelled so ("<|endoftext|>"), or -1. */
int32_t tokenizer_added(const tokenizer *tok, const char *content);

/* Whether the token is a special one, which is not shown to readers. */
bool tokenizer_is_special(const tokenizer *tok, int32_t id);

#endif
