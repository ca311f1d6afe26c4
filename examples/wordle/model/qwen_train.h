/* The internals of the trainer: its parameters, and the data that a forward keeps for the
 * backward. */
#ifndef WORDLE_QWEN_TRAIN_H
#define WORDLE_QWEN_TRAIN_H

#include "qwen_matmul.h"
#include "qwen_model.h"
#include "qwen_rope.h"

/* Rows that one task of a loop over tokens takes. */
enum { QWEN_BLOCK_ROWS = 64 };

/* The longest sequence: a thread's scratch holds two rows of attention. */
enum { QWEN_MAX_LENGTH = 32768 };

/* Of one layer, for all tokens: [n_tokens][width]. */
typedef struct qwen_kept {
    float *x;             /* the layer's input: width n_hidden */
    float *raw_q, *raw_k; /* before norm and rotation */
    float *q, *k, *v;     /* as used by attention */
    float *attended;      /* width of q */
    float *log_sum;       /* [n_tokens][n_heads], of attention's softmax */
    float *x_mid;         /* x with attention added */
    float *gate, *up;     /* width n_inter; the backward leaves gradients here */
    float *inv_rms_attn, *inv_rms_mlp; /* [n_tokens] */
    float *inv_rms_q, *inv_rms_k;      /* [n_tokens][heads], [n_tokens][kv heads] */
} qwen_kept;

struct qwen_trainer {
    qwen_config config;
    const qwen_kernels *k;
    qwen_pool *pool;
    qwen_rope rope;

    /* ---- parameters: tensor i has elements offsets[i] to offsets[i + 1] of each array
     */
    size_t n_tensors;
    size_t n_params;
    size_t *offsets; /* [n_tensors + 1] */
    qwen_tensor_info *infos;
    dw_tensor *tensors; /* of the bf16 weights */
    uint16_t *weights;
    float *masters, *grads, *moment1, *moment2;
    uint64_t n_steps;

    /* ---- the batch of the last forward */
    bool has_forward; /* and no backward yet */
    size_t n_tokens, n_seqs;
    size_t max_tokens, max_seqs; /* that there is room for */
    int32_t *tokens;             /* [n_tokens] */
    uint32_t *positions;         /* [n_tokens], within the sequence */
    size_t *starts;              /* [n_seqs + 1] */
    qwen_kept *kept;             /* [n_layers] */
    float *x;                    /* the output of the last layer */
    float *inv_rms;              /* [n_tokens], of the last norm */
    float *activations;          /* all memory of KEPT and of the rows below */

    /* ---- of the layer at hand: [n_tokens][width] */
    float *normed;                    /* n_hidden */
    float *inner;                     /* n_inter: silu(gate) * up, then its gradient */
    float *dx, *d_normed;             /* n_hidden */
    float *d_attended, *dq, *d_raw_q; /* width of q */
    float *dk, *dv, *d_raw_k;         /* width of k */
    float *d_inner;                   /* n_inter */
    float
        *d_norm; /* [blocks of rows][widest]: sums of a norm's gradient, block by block */
    float *logits; /* [n_logit_rows][n_vocab]: of some rows at a time */
    size_t n_logit_rows;
};

static inline const uint16_t *qwen_train_weight(const qwen_trainer *t, size_t tensor)
{
    return t->weights + t->offsets[tensor];
}

static inline float *qwen_train_grad(const qwen_trainer *t, size_t tensor)
{
    return t->grads + t->offsets[tensor];
}

static inline size_t qwen_train_blocks(const qwen_trainer *t)
{
    return (t->n_tokens + QWEN_BLOCK_ROWS - 1) / QWEN_BLOCK_ROWS;
}

/* The rows of block B: first to, but not with, last. */
typedef struct qwen_range {
    size_t first, last;
} qwen_range;

static inline qwen_range qwen_train_block(const qwen_trainer *t, size_t b)
{
    size_t first = b * QWEN_BLOCK_ROWS, last = first + QWEN_BLOCK_ROWS;
    return (qwen_range){first, last < t->n_tokens ? last : t->n_tokens};
}

/* Whether no token of its sequence follows that of the row. */
static inline bool qwen_train_is_last(const qwen_trainer *t, size_t row)
{
    return row + 1 == t->n_tokens || t->positions[row + 1] == 0;
}

/* A loop over rows costs about so many operations for each float that it touches. */
#define QWEN_FLOPS_A_FLOAT 4.0

/* Takes a copy of the batch and makes room for its activations: qwen_train_batch.c. */
dw_status qwen_train_take_batch(qwen_trainer *t, const int32_t *tokens,
                                const uint32_t *lengths, size_t n_seqs, dw_error *err);
void qwen_train_release_batch(qwen_trainer *t);

/* normed := norm of X with that weight; INV_RMS gets [n_tokens]. */
void qwen_train_norm(qwen_trainer *t, const float *x, size_t tensor, float *inv_rms);

/* Logits of rows FIRST to LAST, from NORMED. */
void qwen_train_logits(qwen_trainer *t, size_t first, size_t last);

/* Attention within each sequence, and its gradient: dq, dk and dv from d_attended. */
void qwen_train_attend(qwen_trainer *t, qwen_kept *kept);
void qwen_train_attend_back(qwen_trainer *t, qwen_kept *kept);

#endif
