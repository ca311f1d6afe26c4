/* The trainer: one sequence at a time goes forward, keeping what its gradients need, and
 * back. So everything that is kept of a sequence stays in the cache of the processor. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "model.h"
#include "program.h"

enum { LEN = MODEL_MAX_LEN, N_STATES = 3 };

typedef float hidden_rows[LEN * MODEL_HIDDEN];
typedef float q_rows[LEN * MODEL_Q];
typedef float kv_rows[LEN * MODEL_KV];
typedef float inter_rows[LEN * MODEL_INTER];

/* What a layer keeps. */
typedef struct kept {
    hidden_rows x, x_mid; /* its input; the same with attention added */
    q_rows raw_q, q;      /* before and after norm and rotation */
    kv_rows raw_k, k, v;
    q_rows attended;
    inter_rows gate, up;            /* the backward leaves gradients here */
    float p[MODEL_HEADS][LEN][LEN]; /* weights of attention */
    float inv_rms_attn[LEN], inv_rms_mlp[LEN];
    float inv_rms_q[LEN * MODEL_HEADS], inv_rms_k[LEN * MODEL_KV_HEADS];
} kept;

struct model_trainer {
    /* ---- parameters */
    uint16_t halves[MODEL_PARAMS]; /* the weights */
    model_tensors tensors;         /* the same, by name */
    model_weights weights;         /* the same, to compute with */
    float masters[MODEL_PARAMS], moment1[MODEL_PARAMS], moment2[MODEL_PARAMS];
    float grads[MODEL_PARAMS];
    uint64_t n_steps;
    model_rope rope;

    /* ---- the sequence of the last forward */
    size_t n;
    int32_t tokens[LEN];
    kept layers[MODEL_LAYERS];
    hidden_rows x, last_normed;
    float inv_rms[LEN];
    float p[LEN * MODEL_VOCAB]; /* probabilities of the next token */

    /* ---- of the layer at hand */
    hidden_rows normed, dx, d_normed;
    inter_rows inner, d_inner;
    q_rows d_attended, dq, d_raw_q;
    kv_rows dk, dv, d_raw_k;
};

/* ---- forward ---- */

/* y = x W^T, or y += x W^T, with the weights at AT. */
static void apply(const model_trainer *t, float *y, const float *x, size_t at,
                  size_t n_in, size_t n_out, bool add)
{
    kernel_matmul(y, x, n_in, 1, t->weights.t + at, t->n, n_in, n_out, add);
}

static void norm_rows(const model_trainer *t, float *out, const float *x, size_t at,
                      float *inv_rms)
{
    for (size_t r = 0; r < t->n; r++)
        inv_rms[r] = kernel_norm(out + r * MODEL_HIDDEN, x + r * MODEL_HIDDEN,
                                 t->weights.w + at, MODEL_HIDDEN);
}

/* Norms and turns the heads of all rows. */
static void turn_heads(const model_trainer *t, float *out, const float *raw, size_t at,
                       float *inv_rms, size_t n_heads)
{
    const size_t dim = MODEL_HEAD_DIM;
    for (size_t i = 0; i < t->n * n_heads; i++) {
        inv_rms[i] = kernel_norm(out + i * dim, raw + i * dim, t->weights.w + at, dim);
        model_rope_turn(&t->rope, out + i * dim, i / n_heads, false);
    }
}

static size_t kv_of(size_t head)
{
    return head * MODEL_KV_HEADS / MODEL_HEADS * MODEL_HEAD_DIM;
}

static float attention_scale(void)
{
    return 1.0f / sqrtf((float)MODEL_HEAD_DIM);
}

static void attend(const model_trainer *t, kept *k)
{
    const size_t dim = MODEL_HEAD_DIM;
    for (size_t r = 0; r < t->n; r++)
        for (size_t h = 0; h < MODEL_HEADS; h++) {
            const size_t at = r * MODEL_Q + h * dim;
            kernel_dots(k->p[h][r], k->q + at, k->k + kv_of(h), MODEL_KV, r + 1, dim);
            kernel_softmax(k->p[h][r], r + 1, attention_scale());
            kernel_mix(k->attended + at, k->p[h][r], k->v + kv_of(h), MODEL_KV, r + 1,
                       dim);
        }
}

/* From kept->x to NEXT, the input of the layer after it. */
static void run_layer(model_trainer *t, size_t layer, float *next)
{
    kept *k = &t->layers[layer];
    const size_t at = layer * LAYER_PARAMS, n_bytes = t->n * MODEL_HIDDEN * sizeof(float);
    norm_rows(t, t->normed, k->x, at + AT_ATTN_NORM, k->inv_rms_attn);
    apply(t, k->raw_q, t->normed, at + AT_Q, MODEL_HIDDEN, MODEL_Q, false);
    apply(t, k->raw_k, t->normed, at + AT_K, MODEL_HIDDEN, MODEL_KV, false);
    apply(t, k->v, t->normed, at + AT_V, MODEL_HIDDEN, MODEL_KV, false);
    turn_heads(t, k->q, k->raw_q, at + AT_Q_NORM, k->inv_rms_q, MODEL_HEADS);
    turn_heads(t, k->k, k->raw_k, at + AT_K_NORM, k->inv_rms_k, MODEL_KV_HEADS);
    attend(t, k);
    memcpy(k->x_mid, k->x, n_bytes);
    apply(t, k->x_mid, k->attended, at + AT_O, MODEL_Q, MODEL_HIDDEN, true);
    norm_rows(t, t->normed, k->x_mid, at + AT_MLP_NORM, k->inv_rms_mlp);
    apply(t, k->gate, t->normed, at + AT_GATE, MODEL_HIDDEN, MODEL_INTER, false);
    apply(t, k->up, t->normed, at + AT_UP, MODEL_HIDDEN, MODEL_INTER, false);
    kernel_swiglu(t->inner, k->gate, k->up, t->n * MODEL_INTER);
    memcpy(next, k->x_mid, n_bytes);
    apply(t, next, t->inner, at + AT_DOWN, MODEL_INTER, MODEL_HIDDEN, true);
}

void model_trainer_forward(model_trainer *t, const int32_t *tokens, size_t n, float *logp,
                           float *entropy)
{
    t->n = n;
    memcpy(t->tokens, tokens, n * sizeof *tokens);
    for (size_t r = 0; r < n; r++)
        memcpy(t->layers[0].x + r * MODEL_HIDDEN,
               t->weights.w + AT_EMBEDDING + (size_t)tokens[r] * MODEL_HIDDEN,
               MODEL_HIDDEN * sizeof(float));
    for (size_t l = 0; l < MODEL_LAYERS; l++)
        run_layer(t, l, l + 1 < MODEL_LAYERS ? t->layers[l + 1].x : t->x);
    norm_rows(t, t->last_normed, t->x, AT_NORM, t->inv_rms);
    apply(t, t->p, t->last_normed, AT_EMBEDDING, MODEL_HIDDEN, MODEL_VOCAB, false);
    for (size_t r = 0; r < n; r++) {
        float *p = t->p + r * MODEL_VOCAB;
        const bool is_last = r + 1 == n;
        const float chosen = is_last ? 0 : p[tokens[r + 1]];
        const float log_sum = kernel_softmax(p, MODEL_VOCAB, 1);
        logp[r] = is_last ? 0 : chosen - log_sum;
        if (!entropy)
            continue;
        entropy[r] = 0;
        for (size_t v = 0; v < MODEL_VOCAB && !is_last; v++)
            entropy[r] -= p[v] > 0 ? p[v] * logf(p[v]) : 0;
    }
}

/* ---- backward: `dx` is the gradient of what flows from layer to layer; each part of a
 * layer adds to it what goes through that part ---- */

/* For y = x W^T: dW += dy^T x, and dx = dy W, or dx += dy W. */
static void apply_back(model_trainer *t, float *dx, const float *dy, const float *x,
                       size_t at, size_t n_in, size_t n_out, bool add)
{
    kernel_matmul(t->grads + at, dy, 1, n_out, x, n_out, t->n, n_in, true);
    kernel_matmul(dx, dy, n_out, 1, t->weights.w + at, t->n, n_out, n_in, add);
}

/* dx += the gradient of x from d_normed. */
static void norm_back(model_trainer *t, const float *x, const float *inv_rms, size_t at)
{
    for (size_t r = 0; r < t->n; r++)
        kernel_norm_back(t->dx + r * MODEL_HIDDEN, t->grads + at,
                         t->d_normed + r * MODEL_HIDDEN, x + r * MODEL_HIDDEN,
                         t->weights.w + at, MODEL_HIDDEN, inv_rms[r]);
}

/* From the gradients behind rotation and norm to those before. */
static void heads_back(model_trainer *t, float *d_raw, float *d_out, const float *raw,
                       const float *inv_rms, size_t at, size_t n_heads)
{
    const size_t dim = MODEL_HEAD_DIM;
    memset(d_raw, 0, t->n * n_heads * dim * sizeof *d_raw);
    for (size_t i = 0; i < t->n * n_heads; i++) {
        model_rope_turn(&t->rope, d_out + i * dim, i / n_heads, true);
        kernel_norm_back(d_raw + i * dim, t->grads + at, d_out + i * dim, raw + i * dim,
                         t->weights.w + at, dim, inv_rms[i]);
    }
}

/* With weights p, out = sum p v: dv += p d_out, dp = d_out . v, and through the softmax
 * ds = p (dp - d_out . out), which goes to dq += ds k and dk += ds q. */
static void attend_back(model_trainer *t, kept *k)
{
    const size_t dim = MODEL_HEAD_DIM;
    float ds[LEN], along;
    memset(t->dk, 0, t->n * MODEL_KV * sizeof(float));
    memset(t->dv, 0, t->n * MODEL_KV * sizeof(float));
    for (size_t r = 0; r < t->n; r++)
        for (size_t h = 0; h < MODEL_HEADS; h++) {
            const size_t at = r * MODEL_Q + h * dim, kv = kv_of(h);
            const float *d_out = t->d_attended + at, *p = k->p[h][r];
            kernel_dots(ds, d_out, k->v + kv, MODEL_KV, r + 1, dim);
            kernel_dots(&along, d_out, k->attended + at, dim, 1, dim);
            for (size_t j = 0; j <= r; j++)
                ds[j] = attention_scale() * p[j] * (ds[j] - along);
            kernel_mix(t->dq + at, ds, k->k + kv, MODEL_KV, r + 1, dim);
            kernel_spread(t->dk + kv, MODEL_KV, ds, k->q + at, r + 1, dim);
            kernel_spread(t->dv + kv, MODEL_KV, p, d_out, r + 1, dim);
        }
}

static void layer_back(model_trainer *t, size_t layer)
{
    kept *k = &t->layers[layer];
    const size_t at = layer * LAYER_PARAMS;
    float again[LEN]; /* of norms that are computed again */
    kernel_swiglu(t->inner, k->gate, k->up, t->n * MODEL_INTER);
    apply_back(t, t->d_inner, t->dx, t->inner, at + AT_DOWN, MODEL_INTER, MODEL_HIDDEN,
               false);
    kernel_swiglu_back(k->gate, k->up, t->d_inner, t->n * MODEL_INTER);
    norm_rows(t, t->normed, k->x_mid, at + AT_MLP_NORM, again);
    apply_back(t, t->d_normed, k->gate, t->normed, at + AT_GATE, MODEL_HIDDEN,
               MODEL_INTER, false);
    apply_back(t, t->d_normed, k->up, t->normed, at + AT_UP, MODEL_HIDDEN, MODEL_INTER,
               true);
    norm_back(t, k->x_mid, k->inv_rms_mlp, at + AT_MLP_NORM);

    apply_back(t, t->d_attended, t->dx, k->attended, at + AT_O, MODEL_Q, MODEL_HIDDEN,
               false);
    attend_back(t, k);
    heads_back(t, t->d_raw_q, t->dq, k->raw_q, k->inv_rms_q, at + AT_Q_NORM, MODEL_HEADS);
    heads_back(t, t->d_raw_k, t->dk, k->raw_k, k->inv_rms_k, at + AT_K_NORM,
               MODEL_KV_HEADS);
    norm_rows(t, t->normed, k->x, at + AT_ATTN_NORM, again);
    apply_back(t, t->d_normed, t->d_raw_q, t->normed, at + AT_Q, MODEL_HIDDEN, MODEL_Q,
               false);
    apply_back(t, t->d_normed, t->d_raw_k, t->normed, at + AT_K, MODEL_HIDDEN, MODEL_KV,
               true);
    apply_back(t, t->d_normed, t->dv, t->normed, at + AT_V, MODEL_HIDDEN, MODEL_KV, true);
    norm_back(t, k->x, k->inv_rms_attn, at + AT_ATTN_NORM);
}

void model_trainer_backward(model_trainer *t, const float *coef)
{
    /* the gradient of the logits: coef * (1 at the token that follows - p) */
    for (size_t r = 0; r < t->n; r++) {
        float *p = t->p + r * MODEL_VOCAB;
        const float c = r + 1 == t->n ? 0 : coef[r];
        for (size_t v = 0; v < MODEL_VOCAB; v++)
            p[v] *= -c;
        if (c != 0)
            p[t->tokens[r + 1]] += c;
    }
    apply_back(t, t->d_normed, t->p, t->last_normed, AT_EMBEDDING, MODEL_HIDDEN,
               MODEL_VOCAB, false);
    memset(t->dx, 0, t->n * MODEL_HIDDEN * sizeof(float));
    norm_back(t, t->x, t->inv_rms, AT_NORM);
    for (size_t l = MODEL_LAYERS; l-- > 0;)
        layer_back(t, l);
    for (size_t r = 0; r < t->n; r++)
        for (size_t i = 0; i < MODEL_HIDDEN; i++)
            t->grads[AT_EMBEDDING + (size_t)t->tokens[r] * MODEL_HIDDEN + i] +=
                t->dx[r * MODEL_HIDDEN + i];
}

/* ---- parameters ---- */

/* The weights are the rounded masters. */
static void take_masters(model_trainer *t)
{
    dw_cast_bf16(t->halves, t->masters, MODEL_PARAMS);
    model_unpack(&t->weights, t->halves);
    memset(t->grads, 0, sizeof t->grads);
}

float model_trainer_step(model_trainer *t, float lr)
{
    double squares = 0;
    for (size_t i = 0; i < MODEL_PARAMS; i++)
        squares += (double)t->grads[i] * (double)t->grads[i];
    const float norm = (float)sqrt(squares);
    if (!isfinite(norm)) {
        memset(t->grads, 0, sizeof t->grads);
        return norm;
    }
    const double n_steps = (double)++t->n_steps;
    const kernel_adamw_factors f = {
        .grad_scale = norm > 1 ? 1 / (norm + 1e-6f) : 1,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .step = (float)((double)lr / (1 - pow((double)0.9f, n_steps))),
        .inv_v_spread = (float)(1 / sqrt(1 - pow((double)0.95f, n_steps)))};
    kernel_adamw(t->masters, t->moment1, t->moment2, t->grads, MODEL_PARAMS, &f);
    take_masters(t);
    return norm;
}

/* A sum of twelve uniform numbers is close enough to normal here. */
static float random_normal(uint64_t *state)
{
    float sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (float)(program_next_random(state) >> 40) * 0x1p-24f;
    return sum;
}

static void init_tensor(model_trainer *t, const model_tensor *info, uint64_t *seed)
{
    const size_t in_layer = info->at % LAYER_PARAMS, rows = info->dims[0];
    const bool inside = info->at < AT_EMBEDDING;
    /* an embedding of 0.1 is not lost beside what the first layers add */
    float spread =
        inside && info->n_dims == 2 ? 1.0f / sqrtf((float)info->dims[1]) : 0.1f;
    /* what is added to the stream begins small */
    if (inside && (in_layer == AT_O || in_layer == AT_DOWN))
        spread /= sqrtf(2.0f * (float)MODEL_LAYERS);
    for (size_t e = 0; e < rows * (info->n_dims == 2 ? info->dims[1] : 1); e++)
        t->masters[info->at + e] =
            info->n_dims == 1 ? 1.0f : spread * random_normal(seed);
}

model_trainer *model_trainer_new(uint64_t seed)
{
    model_trainer *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    model_rope_init(&t->rope);
    model_bind(&t->tensors, t->halves);
    for (size_t i = 0; i < MODEL_TENSORS; i++)
        init_tensor(t, &t->tensors.infos[i], &seed);
    take_masters(t);
    return t;
}

void model_trainer_free(model_trainer *t)
{
    free(t);
}

const dw_tensor *model_trainer_weights(const model_trainer *t)
{
    return t->tensors.list;
}

uint64_t model_trainer_steps(const model_trainer *t)
{
    return t->n_steps;
}

/* ---- the state in a file ---- */

static const char *const state_names[N_STATES] = {"masters", "moment1", "moment2"};

dw_status model_trainer_save(const model_trainer *t, const char *path, dw_error *err)
{
    const float *arrays[N_STATES] = {t->masters, t->moment1, t->moment2};
    const uint64_t dims[] = {MODEL_PARAMS};
    dw_tensor tensors[N_STATES];
    char steps[32];
    for (size_t i = 0; i < N_STATES; i++)
        tensors[i] = (dw_tensor){.name = state_names[i],
                                 .dtype = DW_F32,
                                 .n_dims = 1,
                                 .dims = dims,
                                 .n_bytes = sizeof t->masters,
                                 .data = (void *)(uintptr_t)arrays[i]};
    snprintf(steps, sizeof steps, "%" PRIu64, t->n_steps);
    const dw_pair pair = {"steps", steps};
    const dw_checkpoint_write_options options = {
        .struct_bytes = sizeof options, .metadata = &pair, .n_metadata = 1};
    return dw_checkpoint_write(path, tensors, N_STATES, &options, err);
}

dw_status model_trainer_load(model_trainer *t, const char *path, dw_error *err)
{
    float *arrays[N_STATES] = {t->masters, t->moment1, t->moment2};
    const dw_tensor *found[N_STATES];
    dw_checkpoint *file;
    dw_status status = dw_checkpoint_open(&file, path, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    const char *text = dw_checkpoint_metadata(file, "steps");
    char *end = NULL;
    errno = 0;
    const uint64_t n_steps = text ? strtoull(text, &end, 10) : 0;
    bool good = text && end != text && *end == '\0' && errno == 0;
    for (size_t i = 0; i < N_STATES; i++) {
        found[i] = dw_checkpoint_find(file, state_names[i]);
        good = good && found[i] && found[i]->dtype == DW_F32 &&
               found[i]->n_bytes == sizeof t->masters;
    }
    for (size_t i = 0; good && i < N_STATES; i++)
        memcpy(arrays[i], found[i]->data, sizeof t->masters);
    dw_checkpoint_close(file);
    if (!good)
        return wordle_fail(err, DW_MISMATCH, path, "is not the state of this trainer");
    t->n_steps = n_steps;
    take_masters(t);
    return DW_OK;
}
