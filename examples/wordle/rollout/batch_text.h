/* The text of a sample, as its tokens come. */
#ifndef WORDLE_BATCH_TEXT_H
#define WORDLE_BATCH_TEXT_H

#include "batch.h"

/* Adds the text of a token, which a special one has none of; false where memory is
 * short. */
bool batch_text_add(batch_sample *s, const tokenizer *tok, int32_t id);

/* Cuts the text where a stop begins, if there is one. FROM is where the last token
 * does. */
bool batch_text_cut(batch_sample *s, size_t from);

#endif
