/* A small Qwen3: the real architecture, read from a Hugging Face directory.
 *
 *     config    what config.json says
 *     weights   pointers to the bf16 tensors, wherever they lie: a checkpoint, a mapped
 *               snapshot that is updated in place, the trainer's own memory. No copy
 *     session   inference: sequences side by side, each with its own cache
 *     trainer   log-probabilities, their gradients, AdamW with fp32 masters
 *
 * Activations are fp32. A handle belongs to one thread at a time; weights are only read,
 * and may be shared. Results do not depend on the number of threads.
 */
#ifndef WORDLE_QWEN_H
#define WORDLE_QWEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <deltawire/deltawire.h>

/* ---- config ----------------------------------------------------------------------- */

enum { QWEN_MORE_EOS = 15 };

typedef struct qwen_config {
    uint32_t n_vocab;
    uint32_t n_hidden;
    uint32_t n_inter; /* width of the MLP */
    uint32_t n_layers;
    uint32_t n_heads;
    uint32_t n_kv_heads; /* divides n_heads */
    uint32_t head_dim;   /* even; n_heads * head_dim need not be n_hidden */
    uint32_t max_positions;
    float rope_theta;
    float rms_eps;
    bool tied;                       /* the output layer is the embedding */
    int32_t eos;                     /* the token that ends a text; -1: none */
    int32_t more_eos[QWEN_MORE_EOS]; /* others that end a text, if there are several */
    uint32_t n_more_eos;
} qwen_config;

/* Whether the token ends a text. */
bool qwen_config_is_eos(const qwen_config *config, int32_t id);

/* Reads DIR/config.json. Refuses other models, features that this code lacks (scaled
 * rotary positions, sliding windows, quantization) and absurd sizes. */
dw_status qwen_config_read(qwen_config *out, const char *dir, dw_error *err);

/* Writes DIR/config.json, such that transformers and vLLM read it too. */
dw_status qwen_config_write(const qwen_config *config, const char *dir, dw_error *err);

/* ---- weights ---------------------------------------------------------------------- */

typedef struct qwen_weights qwen_weights;

/* Finds the model's tensors by their Hugging Face names, in any order, among N; ignores
 * others. The data is borrowed and read at each step: it may change between steps, never
 * during one. */
dw_status qwen_weights_bind(qwen_weights **out, const qwen_config *config,
                            const dw_tensor *tensors, size_t n, dw_error *err);
void qwen_weights_free(qwen_weights *weights);

/* ---- inference -------------------------------------------------------------------- */

typedef struct qwen_session qwen_session;

/* Room for sequences 0 to N_SEQS - 1 of at most MAX_TOKENS each. N_THREADS 0: all cores.
 * Memory of the cache is taken from the system as it fills. */
dw_status qwen_session_new(qwen_session **out, const qwen_config *config, uint32_t n_seqs,
                           uint32_t max_tokens, unsigned n_threads, dw_error *err);
void qwen_session_free(qwen_session *session);

/* Makes the sequence empty. */
void qwen_session_reset(qwen_session *session, uint32_t seq);

/* Tokens that the sequence holds. */
uint32_t qwen_session_length(const qwen_session *session, uint32_t seq);

/* One step for N rows: row i appends TOKENS[i] to sequence SEQS[i]. A prompt is several
 * rows of one sequence, in order; rows of several sequences may mix. If WANT[i] is true
 * (NULL: all), LOGITS takes n_vocab floats for the token after it, packed in row order. A
 * sequence that would grow too long, or an invalid token, is refused before anything is
 * done. */
dw_status qwen_session_step(qwen_session *session, const qwen_weights *weights,
                            const uint32_t *seqs, const int32_t *tokens, const bool *want,
                            size_t n, float *logits, dw_error *err);

/* Chooses a token: temperature (0: the likeliest one), then top_p (1: all of them). RNG
 * is any number, and is updated. LOGP takes the log-probability of the token under the
 * plain softmax (temperature 1, all tokens), as the trainer computes it; it is not finite
 * if the logits are no numbers. SAMPLED_LOGP takes that under the distribution it was
 * sampled from. Either may be NULL. */
int32_t qwen_sample(const float *logits, uint32_t n_vocab, float temperature, float top_p,
                    uint64_t *rng, float *logp, float *sampled_logp);

/* ---- training --------------------------------------------------------------------- */

typedef struct qwen_trainer qwen_trainer;

/* Weights are all zero at first: load or init comes next. N_THREADS 0: all cores. */
dw_status qwen_trainer_new(qwen_trainer **out, const qwen_config *config,
                           unsigned n_threads, dw_error *err);
void qwen_trainer_free(qwen_trainer *trainer);

/* Copies bf16 (or fp32) tensors into the masters; moments and steps become zero. */
dw_status qwen_trainer_load(qwen_trainer *trainer, const dw_tensor *tensors, size_t n,
                            dw_error *err);

/* Random weights; moments and steps become zero. */
void qwen_trainer_init(qwen_trainer *trainer, uint64_t seed);

/* The bf16 weights, to be published; the trainer's own, rewritten by each step. */
const dw_tensor *qwen_trainer_weights(const qwen_trainer *trainer, size_t *n);

/* Log-probabilities of N_SEQS sequences that lie one after the other in TOKENS: logp[i]
 * is log p(token i + 1 of the sequence | tokens to i), and 0 for the last token of each.
 * ENTROPY[i] likewise is that of the whole distribution; may be NULL. Uses the bf16
 * weights. */
dw_status qwen_trainer_forward(qwen_trainer *trainer, const int32_t *tokens,
                               const uint32_t *lengths, size_t n_seqs, float *logp,
                               float *entropy, dw_error *err);

/* Adds to the gradients those of the loss sum(coef[i] * logp[i]) of the last forward. A
 * step makes the loss smaller: a negative COEF makes its token likelier. Once for each
 * forward. */
dw_status qwen_trainer_backward(qwen_trainer *trainer, const float *coef, dw_error *err);

typedef struct qwen_adamw {
    float lr;
    float beta1;
    float beta2;
    float eps;
    float weight_decay;  /* of matrices; norms are not decayed */
    float max_grad_norm; /* longer gradients are cut to this; 0: never */
} qwen_adamw;

/* Moves the masters, rounds them into the bf16 weights and clears the gradients. Returns
 * the norm of the gradient before clipping; if it is not finite, nothing changes. */
float qwen_trainer_step(qwen_trainer *trainer, const qwen_adamw *adamw);

/* Steps that were done since load or init, over restarts. */
uint64_t qwen_trainer_steps(const qwen_trainer *trainer);

/* Masters, moments and steps as a safetensors file, which appears whole or not at all.
 * After a load the trainer continues exactly like the one that saved. */
dw_status qwen_trainer_save_state(const qwen_trainer *trainer, const char *path,
                                  dw_error *err);
dw_status qwen_trainer_load_state(qwen_trainer *trainer, const char *path, dw_error *err);

#endif
