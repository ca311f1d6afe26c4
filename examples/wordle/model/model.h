/* The model: a Qwen3 of one size, with a token for each letter.
 *
 *     weights   bf16, the memory of a publisher or of a follower; unpacked to fp32 before
 *               they are used
 *     session   inference: sequences side by side, each with its own cache
 *     trainer   log-probabilities, their gradients, AdamW with fp32 masters
 *
 * The architecture is Hugging Face's (RMSNorm, rotary positions, grouped-query attention
 * with norms of queries and keys, SwiGLU, the output layer is the embedding), and so are
 * the names of the tensors. A handle belongs to one thread at a time.
 */
#ifndef WORDLE_MODEL_H
#define WORDLE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <deltawire/deltawire.h>

enum {
    MODEL_VOCAB = 32,
    MODEL_HIDDEN = 64,
    MODEL_INTER = 192, /* width of the MLP */
    MODEL_LAYERS = 2,
    MODEL_HEADS = 4,
    MODEL_KV_HEADS = 2,
    MODEL_HEAD_DIM = 16,
    MODEL_Q = MODEL_HEADS * MODEL_HEAD_DIM,
    MODEL_KV = MODEL_KV_HEADS * MODEL_HEAD_DIM,
    MODEL_MAX_LEN = 128, /* tokens of a sequence; a game has at most 85 */
};

/* Where the tensors of a layer begin, in elements. Matrices are [out][in], row by row. */
enum {
    AT_ATTN_NORM = 0,
    AT_Q = AT_ATTN_NORM + MODEL_HIDDEN,
    AT_K = AT_Q + MODEL_Q * MODEL_HIDDEN,
    AT_V = AT_K + MODEL_KV * MODEL_HIDDEN,
    AT_O = AT_V + MODEL_KV * MODEL_HIDDEN,
    AT_Q_NORM = AT_O + MODEL_HIDDEN * MODEL_Q,
    AT_K_NORM = AT_Q_NORM + MODEL_HEAD_DIM,
    AT_MLP_NORM = AT_K_NORM + MODEL_HEAD_DIM,
    AT_GATE = AT_MLP_NORM + MODEL_HIDDEN,
    AT_UP = AT_GATE + MODEL_INTER * MODEL_HIDDEN,
    AT_DOWN = AT_UP + MODEL_INTER * MODEL_HIDDEN,
    LAYER_PARAMS = AT_DOWN + MODEL_HIDDEN * MODEL_INTER,
    AT_EMBEDDING = MODEL_LAYERS * LAYER_PARAMS, /* behind the layers */
    AT_NORM = AT_EMBEDDING + MODEL_VOCAB * MODEL_HIDDEN,
    MODEL_PARAMS = AT_NORM + MODEL_HIDDEN,
    MODEL_TENSORS = MODEL_LAYERS * 11 + 2,
};

/* ---- text ---- */

/* The token of a character: a to z in either case, the line end, space, and "!.?"; -1
 * for others. */
int32_t model_token(char c);
char model_char(int32_t token);

/* The tokens of a text; false if it has more than MAX, or a character without a token. */
bool model_encode(const char *text, int32_t *ids, size_t max, size_t *n);

/* ---- weights ---- */

typedef struct model_tensor {
    char name[64]; /* Hugging Face's */
    uint64_t dims[2];
    uint32_t n_dims;
    size_t at; /* of its first element */
} model_tensor;

/* All of them, in halves that the caller has. */
typedef struct model_tensors {
    model_tensor infos[MODEL_TENSORS];
    dw_tensor list[MODEL_TENSORS];
} model_tensors;

void model_bind(model_tensors *out, uint16_t *halves);

/* As they are computed with. */
typedef struct model_weights {
    float w[MODEL_PARAMS]; /* by the places above */
    float t[MODEL_PARAMS]; /* matrices transposed: [in][out] */
} model_weights;

void model_unpack(model_weights *out, const uint16_t *halves);

typedef struct model_rope {
    float cosines[MODEL_MAX_LEN][MODEL_HEAD_DIM / 2],
        sines[MODEL_MAX_LEN][MODEL_HEAD_DIM / 2];
} model_rope;

void model_rope_init(model_rope *rope);

/* Turns a head by its position; back: the gradient of that. */
void model_rope_turn(const model_rope *rope, float *head, size_t position, bool back);

/* ---- inference ---- */

typedef struct model_session model_session;

/* Room for sequences 0 to N_SEQS - 1 of MODEL_MAX_LEN tokens; NULL: out of memory. */
model_session *model_session_new(uint32_t n_seqs);
void model_session_free(model_session *s);

/* Makes the sequence as long as its first N tokens. */
void model_session_cut(model_session *s, uint32_t seq, uint32_t n);

/* One step for N rows: row i appends TOKENS[i] to sequence SEQS[i]. A prompt is several
 * rows of one sequence, in order. LOGITS takes MODEL_VOCAB floats for each row. Tokens
 * and lengths must be valid. */
void model_session_step(model_session *s, const model_weights *weights,
                        const uint32_t *seqs, const int32_t *tokens, size_t n,
                        float *logits);

/* Chooses a token with this temperature (0: the likeliest one). LOGP takes its
 * log-probability at temperature 1; it is not finite if the logits are no numbers. */
int32_t model_sample(const float *logits, float temperature, uint64_t *random,
                     float *logp);

/* ---- training ---- */

typedef struct model_trainer model_trainer;

/* Random weights; NULL: out of memory. */
model_trainer *model_trainer_new(uint64_t seed);
void model_trainer_free(model_trainer *t);

/* The bf16 weights, to be published: MODEL_TENSORS, rewritten by each step. */
const dw_tensor *model_trainer_weights(const model_trainer *t);

/* Log-probabilities of a sequence of 1 to MODEL_MAX_LEN tokens: logp[i] is log p(token i
 * + 1 | tokens to i), and 0 for the last one. ENTROPY[i] is that of the distribution; may
 * be NULL. */
void model_trainer_forward(model_trainer *t, const int32_t *tokens, size_t n, float *logp,
                           float *entropy);

/* Adds to the gradients those of the loss sum(coef[i] * logp[i]) of the last forward: a
 * step makes the loss smaller. Once for each forward. */
void model_trainer_backward(model_trainer *t, const float *coef);

/* One step of AdamW (0.9, 0.95, no decay, gradients cut to norm 1); rounds the masters
 * into the bf16 weights and clears the gradients. Returns the norm of the gradient; if it
 * is not finite, nothing changes. */
float model_trainer_step(model_trainer *t, float lr);

/* Steps since the beginning, over restarts. */
uint64_t model_trainer_steps(const model_trainer *t);

/* Masters, moments and steps as a safetensors file, which appears whole or not at all.
 * After a load the trainer continues exactly like the one that saved. */
dw_status model_trainer_save(const model_trainer *t, const char *path, dw_error *err);
dw_status model_trainer_load(model_trainer *t, const char *path, dw_error *err);

#endif
