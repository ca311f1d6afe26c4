/* The text of a sample, as its tokens come. */
#ifndef WORDLE_BATCH_TEXT_H
#define WORDLE_BATCH_TEXT_H

#include "batch.h"

/* Adds the text of a token; a special one has none. False if out of memory. */
bool batch_text_add(batch_sample *s, const tokenizer *tok, int32_t id);

/* Cuts the text at a stop, if there is one. FROM is the start of the last token. */
bool batch_text_cut(batch_sample *s, size_t from);

#endif
