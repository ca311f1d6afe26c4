#include "synth_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

#define HIDDEN_STEP 64
#define HEAD_DIM    64

/* The ratio of hidden size to layers. The original has 37, but its smallest matrix has 1
 * M elements. Small models get few layers, so that their matrices are not tiny. */
#define FLATNESS 128

/* Standard deviations as in data/rl-trace, a trained 0.6 B model. */
#define SIGMA_MATRIX    0.0203f
#define SIGMA_EMBEDDING 0.0323f
#define SIGMA_NORM      0.01f

/* With hidden size h, as in Qwen3-0.6B: */
static const struct part {
    const char *name;
    unsigned rows, columns; /* in h; 0 columns: a vector of h */
    float mean, sigma;
} parts[] = {
    {"input_layernorm.weight", 1, 0, 1, SIGMA_NORM},
    {"self_attn.q_proj.weight", 2, 1, 0, SIGMA_MATRIX},
    {"self_attn.k_proj.weight", 1, 1, 0, SIGMA_MATRIX},
    {"self_attn.v_proj.weight", 1, 1, 0, SIGMA_MATRIX},
    {"self_attn.o_proj.weight", 1, 2, 0, SIGMA_MATRIX},
    {"self_attn.q_norm.weight", 0, 0, 1, SIGMA_NORM}, /* HEAD_DIM */
    {"self_attn.k_norm.weight", 0, 0, 1, SIGMA_NORM},
    {"post_attention_layernorm.weight", 1, 0, 1, SIGMA_NORM},
    {"mlp.gate_proj.weight", 3, 1, 0, SIGMA_MATRIX},
    {"mlp.up_proj.weight", 3, 1, 0, SIGMA_MATRIX},
    {"mlp.down_proj.weight", 1, 3, 0, SIGMA_MATRIX},
};

#define N_PARTS         (sizeof parts / sizeof parts[0])
#define SQUARES_A_LAYER 15 /* h x h matrices in a layer */

static void add(synth_model *model, uint64_t rows, uint64_t columns, float mean,
                float sigma)
{
    synth_tensor *t = &model->tensors[model->n_tensors++];
    t->dims[0] = rows;
    t->dims[1] = columns;
    t->n_dims = columns ? 2 : 1;
    t->n_elems = rows * (columns ? columns : 1);
    t->mean = mean;
    t->sigma = sigma;
    model->n_elems += t->n_elems;
}

static void add_layer(synth_model *model, uint64_t layer, uint64_t hidden)
{
    for (size_t i = 0; i < N_PARTS; i++) {
        const struct part *p = &parts[i];
        snprintf(model->tensors[model->n_tensors].name,
                 sizeof model->tensors[model->n_tensors].name,
                 "model.layers.%" PRIu64 ".%s", layer, p->name);
        add(model, p->rows ? p->rows * hidden : HEAD_DIM, p->columns * hidden, p->mean,
            p->sigma);
    }
}

/* The layers take three quarters, as in the original; the vocabulary takes the rest.
 */
dw_status synth_model_init(synth_model *out, uint64_t n_params, dw_error *err)
{
    const uint64_t n_in_layers = n_params - n_params / 4;
    uint64_t hidden = HIDDEN_STEP;
    for (uint64_t h = hidden; SQUARES_A_LAYER * h * h * h <= n_in_layers * FLATNESS;
         h += HIDDEN_STEP)
        hidden = h;
    const uint64_t n_a_layer = SQUARES_A_LAYER * hidden * hidden;
    const uint64_t n_layers = (n_in_layers + n_a_layer / 2) / n_a_layer;
    const uint64_t n_rest =
        n_params > n_layers * n_a_layer ? n_params - n_layers * n_a_layer : 0;
    const uint64_t vocabulary =
        n_rest > hidden * HIDDEN_STEP ? n_rest / hidden : HIDDEN_STEP;

    *out = (synth_model){0};
    out->tensors = calloc((size_t)n_layers * N_PARTS + 2, sizeof *out->tensors);
    if (!out->tensors)
        return dw_fail_memory(err, "synth");
    snprintf(out->tensors[0].name, sizeof out->tensors[0].name,
             "model.embed_tokens.weight");
    add(out, vocabulary, hidden, 0, SIGMA_EMBEDDING);
    for (uint64_t i = 0; i < n_layers; i++)
        add_layer(out, i, hidden);
    snprintf(out->tensors[out->n_tensors].name, sizeof out->tensors[0].name,
             "model.norm.weight");
    add(out, hidden, 0, 1, SIGMA_NORM);
    return DW_OK;
}

void synth_model_release(synth_model *model)
{
    free(model->tensors);
    *model = (synth_model){0};
}
