/* The names of models in transformers are the convention that everybody follows. */
#include "quant/quant_choice.h"

#include <fnmatch.h>
#include <string.h>

#include "base/error.h"

/* One part of a name, between its dots. */
typedef struct part {
    const char *at;
    size_t n;
} part;

static part next_part(part p)
{
    const char *at = p.at + p.n;
    at += *at == '.';
    return (part){at, strcspn(at, ".")};
}

static part first_part(const char *name)
{
    return (part){name, strcspn(name, ".")};
}

static bool part_is(part p, const char *text)
{
    return p.n == strlen(text) && memcmp(p.at, text, p.n) == 0;
}

static bool part_has(part p, const char *text)
{
    const size_t n = strlen(text);
    for (size_t i = 0; i + n <= p.n; i++)
        if (memcmp(p.at + i, text, n) == 0)
            return true;
    return false;
}

/* Embeddings, output heads, norms and routers: small, or sensitive, and left as they are
 * by the published models. */
static bool is_kept_module(part p)
{
    static const char *const whole[] = {
        "wte",  "wpe",    "lm_head", "score", "classifier",         "ln_f",
        "gate", "router", "ln_1",    "ln_2",  "shared_expert_gate",
    };
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        if (part_is(p, whole[i]))
            return true;
    return part_has(p, "embed") || part_has(p, "norm");
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

static bool is_default(const dw_tensor *t)
{
    bool is_expert = false;
    for (part p = first_part(t->name); p.n; p = next_part(p)) {
        if (is_kept_module(p))
            return false;
        is_expert = is_expert || part_is(p, "experts");
    }
    if (t->n_dims == 3)
        return is_expert && !ends_with(t->name, "bias");
    return ends_with(t->name, ".weight");
}

static bool matches(const char *name, const char *const *patterns, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (fnmatch(patterns[i], name, 0) == 0)
            return true;
    return false;
}

bool dw_quant_is_possible(const dw_tensor *t)
{
    const bool is_float = t->dtype == DW_BF16 || t->dtype == DW_F16 || t->dtype == DW_F32;
    return is_float && (t->n_dims == 2 || t->n_dims == 3) && t->n_bytes > 0;
}

bool dw_quant_is_chosen(const dw_tensor *t, const dw_quant_options *options)
{
    if (!dw_quant_is_possible(t) || matches(t->name, options->keep, options->n_keep))
        return false;
    return matches(t->name, options->convert, options->n_convert) || is_default(t);
}

static bool decides(const char *pattern, const dw_tensor *tensors, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (dw_quant_is_possible(&tensors[i]) &&
            fnmatch(pattern, tensors[i].name, 0) == 0)
            return true;
    return false;
}

static dw_status check_list(const char *const *patterns, size_t n_patterns,
                            const char *doing, const dw_tensor *tensors, size_t n,
                            dw_error *err)
{
    if (n_patterns && !patterns)
        return dw_fail(err, DW_INVALID, NULL, "the patterns of tensors to %s are missing",
                       doing);
    for (size_t i = 0; i < n_patterns; i++) {
        if (!patterns[i])
            return dw_fail(err, DW_INVALID, NULL, "a pattern of tensors to %s is missing",
                           doing);
        if (!decides(patterns[i], tensors, n))
            return dw_fail(err, DW_INVALID, NULL,
                           "the pattern '%s' of tensors to %s matches no matrix of BF16, "
                           "F16 or F32: correct it or leave it out",
                           patterns[i], doing);
    }
    return DW_OK;
}

dw_status dw_quant_check_patterns(const dw_tensor *tensors, size_t n,
                                  const dw_quant_options *options, dw_error *err)
{
    dw_status status =
        check_list(options->keep, options->n_keep, "keep", tensors, n, err);
    if (status == DW_OK)
        status =
            check_list(options->convert, options->n_convert, "quantise", tensors, n, err);
    return status;
}
