/* Text and tensors of the model. */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- text ---- */

static const char alphabet[MODEL_VOCAB + 1] = "\n !.?abcdefghijklmnopqrstuvwxyz";

int32_t model_token(char c)
{
    const char *at =
        c ? strchr(alphabet, c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c) : NULL;
    return at ? (int32_t)(at - alphabet) : -1;
}

char model_char(int32_t token)
{
    const bool known = token >= 0 && token < MODEL_VOCAB && alphabet[token];
    return known ? alphabet[token] : '?';
}

bool model_encode(const char *text, int32_t *ids, size_t max, size_t *n)
{
    for (*n = 0; text[*n]; (*n)++)
        if (*n == max || (ids[*n] = model_token(text[*n])) < 0)
            return false;
    return true;
}

/* ---- tensors ---- */

static model_tensor describe(size_t i)
{
    static const struct {
        const char *name;
        uint32_t dims[2]; /* the second is 0 for a vector */
        size_t at;
    } slots[] = {
        {"input_layernorm", {MODEL_HIDDEN, 0}, AT_ATTN_NORM},
        {"self_attn.q_proj", {MODEL_Q, MODEL_HIDDEN}, AT_Q},
        {"self_attn.k_proj", {MODEL_KV, MODEL_HIDDEN}, AT_K},
        {"self_attn.v_proj", {MODEL_KV, MODEL_HIDDEN}, AT_V},
        {"self_attn.o_proj", {MODEL_HIDDEN, MODEL_Q}, AT_O},
        {"self_attn.q_norm", {MODEL_HEAD_DIM, 0}, AT_Q_NORM},
        {"self_attn.k_norm", {MODEL_HEAD_DIM, 0}, AT_K_NORM},
        {"post_attention_layernorm", {MODEL_HIDDEN, 0}, AT_MLP_NORM},
        {"mlp.gate_proj", {MODEL_INTER, MODEL_HIDDEN}, AT_GATE},
        {"mlp.up_proj", {MODEL_INTER, MODEL_HIDDEN}, AT_UP},
        {"mlp.down_proj", {MODEL_HIDDEN, MODEL_INTER}, AT_DOWN},
        {"model.embed_tokens.weight", {MODEL_VOCAB, MODEL_HIDDEN}, AT_EMBEDDING},
        {"model.norm.weight", {MODEL_HIDDEN, 0}, AT_NORM},
    };
    const size_t n_slots = (MODEL_TENSORS - 2) / MODEL_LAYERS, layer = i / n_slots;
    const size_t slot =
        layer < MODEL_LAYERS ? i % n_slots : i - (MODEL_LAYERS - 1) * n_slots;
    model_tensor t = {.dims = {slots[slot].dims[0], slots[slot].dims[1]},
                      .n_dims = slots[slot].dims[1] ? 2 : 1,
                      .at = slots[slot].at};
    if (layer < MODEL_LAYERS) {
        t.at += layer * LAYER_PARAMS;
        snprintf(t.name, sizeof t.name, "model.layers.%zu.%s.weight", layer,
                 slots[slot].name);
    } else {
        snprintf(t.name, sizeof t.name, "%s", slots[slot].name);
    }
    return t;
}

void model_bind(model_tensors *out, uint16_t *halves)
{
    for (size_t i = 0; i < MODEL_TENSORS; i++) {
        model_tensor *info = &out->infos[i];
        *info = describe(i);
        const size_t n = info->dims[0] * (info->n_dims == 2 ? info->dims[1] : 1);
        out->list[i] = (dw_tensor){.name = info->name,
                                   .dtype = DW_BF16,
                                   .n_dims = info->n_dims,
                                   .dims = info->dims,
                                   .n_bytes = n * sizeof *halves,
                                   .data = halves + info->at};
    }
}

void model_unpack(model_weights *out, const uint16_t *halves)
{
    for (size_t i = 0; i < MODEL_PARAMS; i++) {
        const uint32_t bits = (uint32_t)halves[i] << 16;
        memcpy(&out->w[i], &bits, sizeof bits);
    }
    for (size_t i = 0; i < MODEL_TENSORS; i++) {
        const model_tensor at = describe(i);
        const size_t rows = at.dims[0], cols = at.n_dims == 1 ? 1 : at.dims[1];
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < cols; c++)
                out->t[at.at + c * rows + r] = out->w[at.at + r * cols + c];
    }
}

/* ---- rotary positions ---- */

void model_rope_init(model_rope *rope)
{
    for (size_t i = 0; i < MODEL_HEAD_DIM / 2; i++) {
        /* in the precision that transformers has here: angles are rounded to fp32 */
        const float speed = 1.0f / powf(10000.0f, (float)(2 * i) / (float)MODEL_HEAD_DIM);
        for (size_t p = 0; p < MODEL_MAX_LEN; p++) {
            rope->cosines[p][i] = cosf((float)p * speed);
            rope->sines[p][i] = sinf((float)p * speed);
        }
    }
}

void model_rope_turn(const model_rope *rope, float *head, size_t position, bool back)
{
    const size_t half = MODEL_HEAD_DIM / 2;
    for (size_t i = 0; i < half; i++) {
        const float a = head[i], b = head[i + half], c = rope->cosines[position][i];
        const float s = back ? -rope->sines[position][i] : rope->sines[position][i];
        head[i] = a * c - b * s;
        head[i + half] = b * c + a * s;
    }
}
