/* The table of the quantised model. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "quant/quant.h"
#include "quant/quant_choice.h"
#include "tensor/tensor_list.h"
#include "inner.h"

static const char *scale_suffix(dw_quant_scheme scheme)
{
    return scheme == DW_QUANT_FP8_BLOCK ? "_scale_inv" : "_scale";
}

static bool is_quantised_type(dw_dtype dtype)
{
    return dtype == DW_F8_E4M3 || dtype == DW_F8_E5M2 || dtype == DW_F8_E4M3FNUZ ||
           dtype == DW_F8_E5M2FNUZ;
}

/* NAME and the suffix of its scales; dw_free. */
static char *scale_name(const char *name, const char *suffix)
{
    const size_t n = strlen(name) + strlen(suffix) + 1;
    char *text = dw_alloc(n);
    if (text) {
        strcpy(text, name);
        strcat(text, suffix);
    }
    return text;
}

/* *FOUND takes the index of the tensor with this name and suffix, or SIZE_MAX. */
static dw_status find_scale(size_t *found, const dw_name_index *names, const char *name,
                            const char *suffix, dw_error *err)
{
    char *text = scale_name(name, suffix);
    if (!text)
        return dw_fail_memory(err, name);
    *found = dw_name_index_find(names, text);
    dw_free(text);
    return DW_OK;
}

static dw_status fail_quantised(const dw_tensor *t, const char *with, dw_error *err)
{
    return dw_fail_tensor(err, DW_INVALID, NULL, t->name,
                          "it is %s%s, so the model is quantised already, and cannot be "
                          "quantised again: take the weights that it was made of, or "
                          "publish it as it is to a URL of its own",
                          dw_dtype_name(t->dtype), with);
}

static dw_status check_source(const dw_tensor *t, const dw_name_index *names,
                              bool is_chosen, dw_quant_scheme scheme, dw_error *err)
{
    if (is_quantised_type(t->dtype))
        return fail_quantised(t, "", err);
    if (t->dtype != DW_I8 && !is_chosen)
        return DW_OK;
    static const char *const suffixes[] = {"_scale_inv", "_scale"};
    for (size_t i = 0; i < 2; i++) {
        size_t found = SIZE_MAX;
        dw_status status = find_scale(&found, names, t->name, suffixes[i], err);
        if (status != DW_OK)
            return status;
        if (found == SIZE_MAX)
            continue;
        if (t->dtype == DW_I8)
            return fail_quantised(t, " and has scales", err);
        if (strcmp(suffixes[i], scale_suffix(scheme)) == 0)
            return dw_fail_tensor(
                err, DW_INVALID, NULL, names->tensors[found].name,
                "it has the name of the scales of '%s': keep that tensor "
                "as it is, or rename this one",
                t->name);
    }
    return DW_OK;
}

/* The text and shapes of a plan, in one piece of memory of known size. */
typedef struct arena {
    uint64_t *dims;
    char *text;
} arena;

static const char *put_name(arena *a, const char *name, const char *suffix)
{
    char *at = a->text;
    a->text += strlen(name) + strlen(suffix) + 1;
    return strcat(strcpy(at, name), suffix);
}

static uint64_t ceil_blocks(uint64_t n)
{
    return n / DW_QUANT_BLOCK + (n % DW_QUANT_BLOCK != 0);
}

static void put_shape(dw_tensor *t, arena *a, const uint64_t *dims, uint32_t n_dims)
{
    t->dims = a->dims;
    t->n_dims = n_dims;
    if (n_dims)
        memcpy(a->dims, dims, n_dims * sizeof *dims);
    a->dims += n_dims;
    dw_shape_size(t->dtype, n_dims, t->dims, NULL, &t->n_bytes);
}

static dw_quant_entry copy_entry(arena *a, const dw_tensor *t, size_t source, bool bf16)
{
    dw_quant_entry e = {
        .tensor = {.name = put_name(a, t->name, ""), .dtype = bf16 ? DW_BF16 : t->dtype},
        .role = DW_QUANT_COPY,
        .source = source,
        .partner = SIZE_MAX,
        .source_dtype = t->dtype,
    };
    put_shape(&e.tensor, a, t->dims, t->n_dims);
    return e;
}

static dw_quant_entry weight_entry(arena *a, const dw_tensor *t, size_t source,
                                   dw_quant_scheme scheme)
{
    dw_quant_entry e = copy_entry(a, t, source, false);
    const uint64_t *matrix = t->dims + t->n_dims - 2;
    e.role = DW_QUANT_WEIGHT;
    e.tensor.dtype = scheme == DW_QUANT_INT8_ROW ? DW_I8 : DW_F8_E4M3;
    dw_shape_size(e.tensor.dtype, t->n_dims, e.tensor.dims, NULL, &e.tensor.n_bytes);
    e.n_matrices = t->n_dims == 3 ? t->dims[0] : 1;
    e.n_rows = matrix[0];
    e.n_columns = matrix[1];
    return e;
}

static dw_quant_entry scale_entry(arena *a, const dw_quant_entry *weight,
                                  dw_quant_scheme scheme)
{
    const bool by_block = scheme == DW_QUANT_FP8_BLOCK;
    const uint64_t dims[3] = {weight->n_matrices,
                              by_block ? ceil_blocks(weight->n_rows) : weight->n_rows,
                              by_block ? ceil_blocks(weight->n_columns) : 1};
    const uint32_t n_dims = weight->tensor.n_dims;
    dw_quant_entry e = *weight;
    e.role = DW_QUANT_SCALE;
    e.tensor = (dw_tensor){
        .name = put_name(a, weight->tensor.name, scale_suffix(scheme)),
        .dtype = DW_F32,
    };
    put_shape(&e.tensor, a, dims + 3 - n_dims, n_dims);
    return e;
}

static int compare_entries(const void *left, const void *right)
{
    const dw_quant_entry *l = left, *r = right;
    return strcmp(l->tensor.name, r->tensor.name);
}

/* Connects weights and scales. Both have the same source. */
static dw_status set_partners(dw_quant_plan *plan, size_t n_source, dw_error *err)
{
    size_t *weight_of = dw_alloc_array(n_source, sizeof *weight_of);
    if (!weight_of)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < plan->n_entries; i++)
        if (plan->entries[i].role == DW_QUANT_WEIGHT)
            weight_of[plan->entries[i].source] = i;
    for (size_t i = 0; i < plan->n_entries; i++)
        if (plan->entries[i].role == DW_QUANT_SCALE) {
            const size_t weight = weight_of[plan->entries[i].source];
            plan->entries[i].partner = weight;
            plan->entries[weight].partner = i;
        }
    dw_free(weight_of);
    return DW_OK;
}

/* Says why no tensor is quantised. */
static dw_status fail_none(const dw_tensor *source, size_t n,
                           const dw_quant_options *options, dw_error *err)
{
    dw_quant_options all = *options;
    all.n_keep = 0;
    const char *possible = NULL;
    for (size_t i = 0; i < n; i++) {
        if (dw_quant_is_chosen(&source[i], &all))
            return dw_fail(err, DW_INVALID, NULL,
                           "none of %zu tensors is quantised: the patterns of tensors to "
                           "keep match all that would be, such as '%s'; narrow them, or "
                           "publish without quantising",
                           n, source[i].name);
        if (!possible && dw_quant_is_possible(&source[i]))
            possible = source[i].name;
    }
    if (!possible)
        return dw_fail(
            err, DW_INVALID, NULL,
            "none of %zu tensors is quantised: there is no matrix of BF16, F16 "
            "or F32 among them; convert them, or publish without quantising",
            n);
    return dw_fail(err, DW_INVALID, NULL,
                   "none of %zu tensors is quantised: by default only matrices whose "
                   "names end in '.weight' are, except embeddings, norms, routers and "
                   "heads; add a pattern of tensors to quantise, such as '%s'",
                   n, possible);
}

static dw_status fill(dw_quant_plan *plan, const dw_tensor *source, size_t n,
                      const bool *as_bf16, const dw_quant_options *options, dw_error *err)
{
    size_t n_text = 0, n_dims = 0, n_weights = 0;
    for (size_t i = 0; i < n; i++) {
        const bool is_chosen = dw_quant_is_chosen(&source[i], options);
        const size_t n_name = strlen(source[i].name) + 1;
        n_text += is_chosen ? 2 * n_name + strlen(scale_suffix(plan->scheme)) : n_name;
        n_dims += (is_chosen ? 2 : 1) * (size_t)source[i].n_dims;
        n_weights += is_chosen;
    }
    if (!n_weights)
        return fail_none(source, n, options, err);
    plan->entries = dw_alloc_zeroed(n + n_weights, sizeof *plan->entries);
    plan->arena = dw_alloc(n_dims * sizeof(uint64_t) + n_text);
    if (!plan->entries || !plan->arena)
        return dw_fail_memory(err, NULL);
    arena a = {plan->arena, (char *)plan->arena + n_dims * sizeof(uint64_t)};
    for (size_t i = 0; i < n; i++) {
        dw_quant_entry *e = &plan->entries[plan->n_entries++];
        if (!dw_quant_is_chosen(&source[i], options)) {
            *e = copy_entry(&a, &source[i], i, as_bf16 && as_bf16[i]);
            continue;
        }
        *e = weight_entry(&a, &source[i], i, plan->scheme);
        plan->entries[plan->n_entries++] = scale_entry(&a, e, plan->scheme);
    }
    plan->n_weights = n_weights;
    qsort(plan->entries, plan->n_entries, sizeof *plan->entries, compare_entries);
    return set_partners(plan, n, err);
}

static dw_status check(const dw_tensor *source, size_t n, const bool *as_bf16,
                       const dw_quant_options *options, dw_error *err)
{
    if (options->scheme == DW_QUANT_NONE ||
        strcmp(dw_quant_scheme_name(options->scheme), "?") == 0)
        return dw_fail(err, DW_INVALID, NULL, "%d is no scheme of quantising",
                       (int)options->scheme);
    dw_status status = dw_tensors_check_shapes(source, n, err);
    if (status == DW_OK)
        status = dw_quant_check_patterns(source, n, options, err);
    if (status != DW_OK)
        return status;
    dw_name_index names;
    status = dw_name_index_init(&names, source, n, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        if (as_bf16 && as_bf16[i] && source[i].dtype != DW_F32)
            status = dw_fail_tensor(err, DW_INVALID, NULL, source[i].name,
                                    "it is %s, and only F32 can be published as BF16",
                                    dw_dtype_name(source[i].dtype));
        else
            status =
                check_source(&source[i], &names, dw_quant_is_chosen(&source[i], options),
                             options->scheme, err);
    }
    dw_name_index_release(&names);
    return status;
}

dw_status dw_quant_plan_make(dw_quant_plan **out, const dw_tensor *source, size_t n,
                             const bool *as_bf16, const dw_quant_options *options,
                             dw_error *err)
{
    *out = NULL;
    dw_quant_options taken;
    dw_status status = DW_OPTIONS_TAKE(dw_quant_options, &taken, options, err);
    if (status == DW_OK)
        status = check(source, n, as_bf16, &taken, err);
    if (status != DW_OK)
        return status;
    dw_quant_plan *plan = dw_alloc_zeroed(1, sizeof *plan);
    if (!plan)
        return dw_fail_memory(err, NULL);
    plan->scheme = taken.scheme;
    plan->from_f32 = taken.from_f32;
    status = fill(plan, source, n, as_bf16, &taken, err);
    if (status == DW_OK)
        *out = plan;
    else
        dw_quant_plan_free(plan);
    return status;
}

void dw_quant_plan_free(dw_quant_plan *plan)
{
    if (!plan)
        return;
    dw_free(plan->entries);
    dw_free(plan->arena);
    dw_free(plan);
}

dw_status dw_quant_model_bytes(uint64_t *n_bytes, const dw_tensor *tensors,
                               size_t n_tensors, const dw_quant_options *options,
                               dw_error *err)
{
    dw_quant_plan *plan;
    *n_bytes = 0;
    dw_status status = dw_quant_plan_make(&plan, tensors, n_tensors, NULL, options, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; i < plan->n_entries; i++)
        *n_bytes += plan->entries[i].tensor.n_bytes;
    dw_quant_plan_free(plan);
    return DW_OK;
}
