#include "publish/repair_quant.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "publish/publisher.h"
#include "quant/quant_choice.h"
#include "tensor/tensor_list.h"

/* The options that make the stream's table of the caller's tensors. */
typedef struct choice {
    dw_quant_options options;
    char **keep, **convert; /* [n_tensors] */
    bool *as_bf16;          /* [n_tensors] */
} choice;

/* A pattern that matches only NAME; dw_free. */
static char *pattern_of(const char *name)
{
    char *out = dw_alloc(2 * strlen(name) + 1), *at = out;
    for (; out && *name; name++) {
        if (strchr("*?[\\", *name))
            *at++ = '\\';
        *at++ = *name;
    }
    if (out)
        *at = '\0';
    return out;
}

static void choice_release(choice *c)
{
    for (size_t i = 0; c->keep && i < c->options.n_keep; i++)
        dw_free(c->keep[i]);
    for (size_t i = 0; c->convert && i < c->options.n_convert; i++)
        dw_free(c->convert[i]);
    dw_free(c->keep);
    dw_free(c->convert);
    dw_free(c->as_bf16);
}

static dw_status choose(choice *c, const dw_stream_record *r, const dw_tensor *tensors,
                        size_t n, dw_error *err)
{
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, r->tensors, r->n_tensors, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        const size_t t = dw_name_index_find(&names, tensors[i].name);
        const dw_dtype there = t == SIZE_MAX ? tensors[i].dtype : r->tensors[t].dtype;
        c->as_bf16[i] = tensors[i].dtype == DW_F32 && there == DW_BF16;
        if (!dw_quant_is_possible(&tensors[i]))
            continue;
        const bool is_quantised = there == DW_F8_E4M3 || there == DW_I8;
        char *pattern = pattern_of(tensors[i].name);
        if (!pattern)
            status = dw_fail_memory(err, NULL);
        else if (is_quantised)
            c->convert[c->options.n_convert++] = pattern;
        else
            c->keep[c->options.n_keep++] = pattern;
    }
    dw_name_index_release(&names);
    return status;
}

static dw_status choice_make(choice *c, const dw_stream_record *r,
                             const dw_tensor *tensors, size_t n, dw_error *err)
{
    *c = (choice){.keep = dw_alloc_zeroed(n, sizeof *c->keep),
                  .convert = dw_alloc_zeroed(n, sizeof *c->convert),
                  .as_bf16 = dw_alloc_zeroed(n, sizeof *c->as_bf16)};
    dw_quant_options_init(&c->options);
    if (!c->keep || !c->convert || !c->as_bf16)
        return dw_fail_memory(err, NULL);
    c->options.from_f32 = strcmp(r->quantized.rounded, "none") == 0;
    if (!dw_quant_scheme_from_name(&c->options.scheme, r->quantized.scheme))
        return dw_fail(err, DW_UNSUPPORTED, NULL,
                       "this version does not know the scheme '%s'", r->quantized.scheme);
    dw_status status = choose(c, r, tensors, n, err);
    c->options.keep = (const char *const *)c->keep;
    c->options.convert = (const char *const *)c->convert;
    return status;
}

/* The plan must make exactly the stream's table. */
static dw_status check_table(const dw_quant_plan *plan, const dw_stream_record *r,
                             dw_error *err)
{
    bool good = plan->n_entries == r->n_tensors;
    for (size_t t = 0; good && t < r->n_tensors; t++)
        good = strcmp(plan->entries[t].tensor.name, r->tensors[t].name) == 0 &&
               dw_tensor_same_shape(&r->tensors[t], &plan->entries[t].tensor, NULL,
                                    NULL) == DW_OK;
    return good ? DW_OK
                : dw_fail(err, DW_MISMATCH, NULL,
                          "the stream is quantised as %s, and these weights are of "
                          "another model: name a checkpoint of its trainer, or a "
                          "directory that was pulled from it",
                          r->quantized.scheme);
}

dw_status dw_repair_quantize(dw_restart *out, dw_publisher *p, const dw_tensor *tensors,
                             size_t n_tensors, dw_error *err)
{
    const dw_stream_record *r = &p->stream->record;
    dw_quantizer q = {0};
    choice c;
    dw_status status = choice_make(&c, r, tensors, n_tensors, err);
    const dw_publish_options options = {
        .quantize = &c.options, .as_bf16 = c.as_bf16, .n_threads = p->options.n_threads};
    if (status == DW_OK)
        status = dw_quantizer_open(&q, tensors, n_tensors, &options, err);
    if (status == DW_OK)
        status = check_table(q.plan, r, err);
    if (status == DW_OK)
        status = dw_file_set_quantize(&p->files.wanted, q.plan, err);
    for (size_t t = 0; status == DW_OK && t < r->n_tensors; t++) {
        const dw_slice all = dw_slice_whole(out->model.tensors, t);
        const dw_weight_piece piece = {t, 0, all.n, out->model.tensors[t].data};
        status = dw_quantizer_read(&q, &piece, 1, err);
    }
    dw_quantizer_close(&q);
    choice_release(&c);
    return status;
}
