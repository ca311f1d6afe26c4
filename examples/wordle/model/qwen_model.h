/* Shared by the parts of the model: the list of tensors and their memory. */
#ifndef WORDLE_QWEN_MODEL_H
#define WORDLE_QWEN_MODEL_H

#include "qwen.h"

/* The tensors of a layer. Matrices are [out][in], row by row. */
typedef enum qwen_slot {
    QWEN_ATTN_NORM, /* [hidden] */
    QWEN_Q,         /* [heads * head_dim][hidden] */
    QWEN_K,         /* [kv_heads * head_dim][hidden] */
    QWEN_V,         /* [kv_heads * head_dim][hidden] */
    QWEN_O,         /* [hidden][heads * head_dim] */
    QWEN_Q_NORM,    /* [head_dim] */
    QWEN_K_NORM,    /* [head_dim] */
    QWEN_MLP_NORM,  /* [hidden] */
    QWEN_GATE,      /* [inter][hidden] */
    QWEN_UP,        /* [inter][hidden] */
    QWEN_DOWN,      /* [hidden][inter] */
    QWEN_SLOTS
} qwen_slot;

/* The order of all tensors: layer by layer, then those outside of layers. */
static inline size_t qwen_tensor_of(size_t layer, qwen_slot slot)
{
    return layer * QWEN_SLOTS + slot;
}

static inline size_t qwen_tensor_embedding(const qwen_config *c) /* [vocab][hidden] */
{
    return (size_t)c->n_layers * QWEN_SLOTS;
}

static inline size_t qwen_tensor_norm(const qwen_config *c) /* [hidden] */
{
    return qwen_tensor_embedding(c) + 1;
}

/* The output layer, [vocab][hidden]: the embedding itself if they are tied. */
static inline size_t qwen_tensor_head(const qwen_config *c)
{
    return qwen_tensor_embedding(c) + (c->tied ? 0 : 2);
}

static inline size_t qwen_tensor_count(const qwen_config *c)
{
    return qwen_tensor_embedding(c) + (c->tied ? 2 : 3);
}

typedef struct qwen_tensor_info {
    char name[80]; /* Hugging Face's */
    uint64_t dims[2];
    uint32_t n_dims;
    uint64_t n_elems;
} qwen_tensor_info;

/* Name and shape of tensor I. */
qwen_tensor_info qwen_tensor_describe(const qwen_config *config, size_t i);

/* The tensor of that name and shape among N, or NULL with ERR filled. */
const dw_tensor *qwen_tensor_find(const qwen_tensor_info *info, const dw_tensor *tensors,
                                  size_t n, dw_error *err);

static inline size_t qwen_q_width(const qwen_config *c)
{
    return (size_t)c->n_heads * c->head_dim;
}

static inline size_t qwen_kv_width(const qwen_config *c)
{
    return (size_t)c->n_kv_heads * c->head_dim;
}

/* Whether both have the same weights' shapes. */
bool qwen_config_same_shape(const qwen_config *a, const qwen_config *b);

struct qwen_weights {
    qwen_config config;
    const uint16_t *tensors[]; /* [qwen_tensor_count], bf16 */
};

#endif
