/* Names and shapes of a Qwen3's tensors, and pointers to them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "qwen_model.h"

static qwen_tensor_info describe_in_layer(const qwen_config *c, size_t layer,
                                          qwen_slot slot)
{
    uint64_t hidden = c->n_hidden, inter = c->n_inter, head = c->head_dim;
    uint64_t q = qwen_q_width(c), kv = qwen_kv_width(c);
    const struct {
        const char *name;
        uint64_t dims[2]; /* the second is 0 for a vector */
    } slots[QWEN_SLOTS] = {
        [QWEN_ATTN_NORM] = {"input_layernorm", {hidden, 0}},
        [QWEN_Q] = {"self_attn.q_proj", {q, hidden}},
        [QWEN_K] = {"self_attn.k_proj", {kv, hidden}},
        [QWEN_V] = {"self_attn.v_proj", {kv, hidden}},
        [QWEN_O] = {"self_attn.o_proj", {hidden, q}},
        [QWEN_Q_NORM] = {"self_attn.q_norm", {head, 0}},
        [QWEN_K_NORM] = {"self_attn.k_norm", {head, 0}},
        [QWEN_MLP_NORM] = {"post_attention_layernorm", {hidden, 0}},
        [QWEN_GATE] = {"mlp.gate_proj", {inter, hidden}},
        [QWEN_UP] = {"mlp.up_proj", {inter, hidden}},
        [QWEN_DOWN] = {"mlp.down_proj", {hidden, inter}},
    };
    qwen_tensor_info info = {.dims = {slots[slot].dims[0], slots[slot].dims[1]}};
    snprintf(info.name, sizeof info.name, "model.layers.%zu.%s.weight", layer,
             slots[slot].name);
    return info;
}

static qwen_tensor_info describe_outside(const qwen_config *c, size_t i)
{
    qwen_tensor_info info = {.dims = {c->n_vocab, c->n_hidden}};
    const char *name = "lm_head.weight";
    if (i == qwen_tensor_embedding(c))
        name = "model.embed_tokens.weight";
    if (i == qwen_tensor_norm(c)) {
        name = "model.norm.weight";
        info.dims[0] = c->n_hidden;
        info.dims[1] = 0;
    }
    snprintf(info.name, sizeof info.name, "%s", name);
    return info;
}

qwen_tensor_info qwen_tensor_describe(const qwen_config *c, size_t i)
{
    qwen_tensor_info info = i < qwen_tensor_embedding(c)
                                ? describe_in_layer(c, i / QWEN_SLOTS, i % QWEN_SLOTS)
                                : describe_outside(c, i);
    info.n_dims = info.dims[1] == 0 ? 1 : 2;
    info.n_elems = info.dims[0] * (info.dims[1] == 0 ? 1 : info.dims[1]);
    return info;
}

bool qwen_config_same_shape(const qwen_config *a, const qwen_config *b)
{
    return a->n_vocab == b->n_vocab && a->n_hidden == b->n_hidden &&
           a->n_inter == b->n_inter && a->n_layers == b->n_layers &&
           a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads &&
           a->head_dim == b->head_dim && a->tied == b->tied;
}

const dw_tensor *qwen_tensor_find(const qwen_tensor_info *info, const dw_tensor *tensors,
                                  size_t n, dw_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const dw_tensor *t = &tensors[i];
        if (strcmp(t->name, info->name) != 0)
            continue;
        bool same = t->n_dims == info->n_dims && t->first_byte == 0;
        for (uint32_t d = 0; same && d < t->n_dims; d++)
            same = t->dims[d] == info->dims[d];
        if (same)
            return t;
        wordle_fail(err, DW_MISMATCH, info->name,
                    "has not the shape of config.json, %" PRIu64 " x %" PRIu64
                    ": are they of one model?",
                    info->dims[0], info->n_dims == 1 ? 1 : info->dims[1]);
        return NULL;
    }
    wordle_fail(err, DW_NOT_FOUND, info->name,
                "is not among the tensors: is config.json of this checkpoint?");
    return NULL;
}

dw_status qwen_weights_bind(qwen_weights **out, const qwen_config *config,
                            const dw_tensor *tensors, size_t n, dw_error *err)
{
    size_t n_wanted = qwen_tensor_count(config);
    qwen_weights *w = malloc(sizeof *w + n_wanted * sizeof w->tensors[0]);
    if (w == NULL)
        return wordle_fail(err, DW_NO_MEMORY, "weights", "out of memory");
    w->config = *config;
    for (size_t i = 0; i < n_wanted; i++) {
        qwen_tensor_info info = qwen_tensor_describe(config, i);
        dw_error trouble;
        const dw_tensor *t = qwen_tensor_find(&info, tensors, n, &trouble);
        if (t != NULL && t->dtype != DW_BF16)
            wordle_fail(&trouble, DW_UNSUPPORTED, info.name,
                        "is %s: weights must be BF16", dw_dtype_name(t->dtype));
        else if (t != NULL && (uintptr_t)t->data % sizeof(uint16_t) != 0)
            wordle_fail(&trouble, DW_UNSUPPORTED, info.name,
                        "begins at an odd address: write the checkpoint anew");
        else if (t != NULL) {
            w->tensors[i] = t->data;
            continue;
        }
        free(w);
        if (err != NULL)
            *err = trouble;
        return trouble.code;
    }
    *out = w;
    return DW_OK;
}

void qwen_weights_free(qwen_weights *weights)
{
    free(weights);
}
