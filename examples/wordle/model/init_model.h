/* Makes a tiny Qwen3: a directory that transformers and vLLM open. */
#ifndef WORDLE_INIT_MODEL_H
#define WORDLE_INIT_MODEL_H

#include <deltawire/deltawire.h>

/* Makes DIR if it does not exist, and in it config.json, tokenizer.json (a token for each
 * printable ASCII character and the line end; no merges), tokenizer_config.json and
 * model.safetensors with random weights. Refuses a directory that holds a model. */
dw_status init_model(const char *dir, unsigned n_hidden, unsigned n_layers, uint64_t seed,
                     dw_error *err);

#endif
