#include "stats_model.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "quant_names.h"

#define ALIGNMENT 64
#define MAX_BYTES (UINT64_C(1) << 56)

/* ---- names ---- */

static const struct kind_name {
    stats_kind kind;
    const char *name;
} kind_names[] = {
    {STATS_EMBED, "embed"},
    {STATS_Q_PROJ, "q_proj"},
    {STATS_K_PROJ, "k_proj"},
    {STATS_V_PROJ, "v_proj"},
    {STATS_QKV_PROJ, "qkv_proj"},
    {STATS_O_PROJ, "o_proj"},
    {STATS_GATE_PROJ, "gate_proj"},
    {STATS_UP_PROJ, "up_proj"},
    {STATS_GATE_UP_PROJ, "gate_up_proj"},
    {STATS_DOWN_PROJ, "down_proj"},
    {STATS_EXPERTS, "experts"},
    {STATS_ROUTER, "router"},
    {STATS_NORM, "norm"},
    {STATS_LM_HEAD, "lm_head"},
    {STATS_SCALES, "scales"},
    {STATS_OTHER, "other"},
};

/* The first entry that the name contains decides: q_norm is a norm, an expert's up_proj
 * is an expert. */
static const struct kind_name patterns[] = {
    {STATS_EXPERTS, ".experts."},
    {STATS_NORM, "norm"},
    {STATS_NORM, ".ln_"},
    {STATS_EMBED, "embed"},
    {STATS_EMBED, "wte."},
    {STATS_EMBED, "wpe."},
    {STATS_LM_HEAD, "lm_head"},
    {STATS_QKV_PROJ, "qkv"},
    {STATS_QKV_PROJ, "c_attn"},
    {STATS_Q_PROJ, "q_proj"},
    {STATS_Q_PROJ, ".wq."},
    {STATS_K_PROJ, "k_proj"},
    {STATS_K_PROJ, ".wk."},
    {STATS_V_PROJ, "v_proj"},
    {STATS_V_PROJ, ".wv."},
    {STATS_O_PROJ, "o_proj"},
    {STATS_O_PROJ, "out_proj"},
    {STATS_O_PROJ, ".wo."},
    {STATS_O_PROJ, "attn.c_proj"},
    {STATS_GATE_UP_PROJ, "gate_up_proj"},
    {STATS_GATE_PROJ, "gate_proj"},
    {STATS_GATE_PROJ, ".w1."},
    {STATS_UP_PROJ, "up_proj"},
    {STATS_UP_PROJ, ".w3."},
    {STATS_UP_PROJ, "mlp.c_fc"},
    {STATS_UP_PROJ, ".fc1."},
    {STATS_DOWN_PROJ, "down_proj"},
    {STATS_DOWN_PROJ, ".w2."},
    {STATS_DOWN_PROJ, "mlp.c_proj"},
    {STATS_DOWN_PROJ, ".fc2."},
    {STATS_ROUTER, "router"},
    {STATS_ROUTER, ".gate."},
};

const char *stats_kind_name(stats_kind kind)
{
    return kind_names[kind].name;
}

static stats_kind kind_of(const char *name, dw_dtype dtype)
{
    if (cli_is_scale(name, dtype))
        return STATS_SCALES;
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
        if (strstr(name, patterns[i].name))
            return patterns[i].kind;
    return STATS_OTHER;
}

/* The first part of the name that is a number. */
static uint32_t layer_of(const char *name)
{
    for (const char *part = name; part; part = strchr(part, '.')) {
        part += *part == '.';
        size_t n = strspn(part, "0123456789");
        if (n > 0 && n < 10 && (part[n] == '.' || !part[n]))
            return (uint32_t)strtoul(part, NULL, 10);
    }
    return STATS_NO_LAYER;
}

/* ---- formats ---- */

/* A float with a sign bit on top. */
static stats_format float_format(dw_dtype dtype, unsigned n_bits, unsigned n_exponent,
                                 unsigned n_mantissa)
{
    return (stats_format){.dtype = dtype,
                          .n_bits = n_bits,
                          .exponent_shift = n_mantissa,
                          .exponent_mask = (1u << n_exponent) - 1,
                          .is_float = true,
                          .has_ulps = true,
                          .first_special = ((1ull << n_exponent) - 1) << n_mantissa};
}

static stats_format fnuz_format(dw_dtype dtype, unsigned n_exponent, unsigned n_mantissa)
{
    stats_format f = float_format(dtype, 8, n_exponent, n_mantissa);
    f.is_fnuz = true;
    f.first_special = 0x80; /* larger than any magnitude */
    return f;
}

static stats_format format_of(dw_dtype dtype)
{
    const unsigned n_bits = dw_dtype_bits(dtype);
    stats_format f = {.dtype = dtype, .n_bits = n_bits < 8 ? 8 : n_bits};
    switch (dtype) {
    case DW_BF16:
        return float_format(dtype, 16, 8, 7);
    case DW_F16:
        return float_format(dtype, 16, 5, 10);
    case DW_F32:
    case DW_C64:
        return float_format(DW_F32, 32, 8, 23);
    case DW_F8_E5M2:
        return float_format(dtype, 8, 5, 2);
    case DW_F8_E4M3:
        f = float_format(dtype, 8, 4, 3);
        f.first_special = 0x7f; /* only NaN: there are no infinities */
        return f;
    case DW_F8_E4M3FNUZ:
        return fnuz_format(dtype, 4, 3);
    case DW_F8_E5M2FNUZ:
        return fnuz_format(dtype, 5, 2);
    case DW_F64:
        f.is_float = true;
        return f;
    default:
        return f;
    }
}

/* ---- tensors ---- */

static void describe(stats_tensor *out, const dw_tensor *t)
{
    *out = (stats_tensor){.kind = kind_of(t->name, t->dtype),
                          .layer = layer_of(t->name),
                          .format = format_of(t->dtype)};
    out->n_elems = t->n_bytes / (out->format.n_bits / 8);
}

static size_t padded(uint64_t n_bytes)
{
    return (size_t)((n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static dw_status lay_out(stats_model *m, const char *work_dir, dw_error *err)
{
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (m->now[i].n_bytes > MAX_BYTES || n_bytes > MAX_BYTES)
            return dw_fail(err, DW_UNSUPPORTED, m->now[i].name, "the model is too large");
        n_bytes += 2 * padded(m->now[i].n_bytes) + padded(2 * m->tensors[i].n_elems);
    }
    dw_status status = stats_scratch_map(&m->scratch, n_bytes, work_dir, err);
    if (status != DW_OK)
        return status;
    m->n_scratch_bytes = (size_t)n_bytes;
    uint8_t *at = m->scratch;
    for (size_t i = 0; i < m->n_tensors; i++) {
        stats_tensor *t = &m->tensors[i];
        t->then = at;
        t->now = t->then + padded(m->now[i].n_bytes);
        t->history = (uint16_t *)(t->now + padded(m->now[i].n_bytes));
        at = (uint8_t *)t->history + padded(2 * t->n_elems);
        m->then[i].data = t->then;
        m->now[i].data = t->now;
    }
    return DW_OK;
}

/* ---- groups ---- */

static int compare_groups(const void *a, const void *b)
{
    const stats_group *x = a, *y = b;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return (int)x->kind - (int)y->kind;
}

static void find_groups(stats_model *m)
{
    for (size_t i = 0; i < m->n_tensors; i++)
        m->groups[i] = (stats_group){m->tensors[i].kind, m->tensors[i].layer};
    qsort(m->groups, m->n_tensors, sizeof *m->groups, compare_groups);
    for (size_t i = 0; i < m->n_tensors; i++)
        if (i == 0 || compare_groups(&m->groups[i], &m->groups[m->n_groups - 1]) != 0)
            m->groups[m->n_groups++] = m->groups[i];
    for (size_t i = 0; i < m->n_tensors; i++) {
        stats_tensor *t = &m->tensors[i];
        const stats_group key = {t->kind, t->layer};
        const stats_group *found =
            bsearch(&key, m->groups, m->n_groups, sizeof key, compare_groups);
        t->group = (size_t)(found - m->groups);
    }
}

dw_status stats_model_init(stats_model *m, const dw_tensor *tensors, size_t n_tensors,
                           const char *work_dir, dw_error *err)
{
    *m = (stats_model){0};
    m->tensors = calloc(n_tensors + 1, sizeof *m->tensors);
    m->then = calloc(n_tensors + 1, sizeof *m->then);
    m->now = calloc(n_tensors + 1, sizeof *m->now);
    m->groups = calloc(n_tensors + 1, sizeof *m->groups);
    if (!m->tensors || !m->then || !m->now || !m->groups) {
        stats_model_release(m);
        return dw_fail_memory(err, "");
    }
    m->n_tensors = n_tensors;
    for (size_t i = 0; i < n_tensors; i++) {
        m->then[i] = m->now[i] = tensors[i];
        describe(&m->tensors[i], &tensors[i]);
        m->n_elems += m->tensors[i].n_elems;
        m->n_bytes += tensors[i].n_bytes;
    }
    dw_status status = lay_out(m, work_dir, err);
    if (status == DW_OK)
        find_groups(m);
    else
        stats_model_release(m);
    return status;
}

void stats_model_release(stats_model *m)
{
    free(m->tensors);
    free(m->then);
    free(m->now);
    free(m->groups);
    stats_scratch_unmap(m->scratch, m->n_scratch_bytes);
    *m = (stats_model){0};
}
