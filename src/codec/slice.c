#include "codec/slice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "tensor/dtype.h"
#include "tensor/tensor_list.h"

#define SUFFIX_BYTES sizeof "[18446744073709551615:18446744073709551615]"

static uint64_t elems_of(const dw_tensor *t)
{
    return t->n_bytes * 8 / dw_dtype_bits(t->dtype);
}

static uint64_t bytes_before(const dw_tensor *t, uint64_t n_elems)
{
    return n_elems * dw_dtype_bits(t->dtype) / 8;
}

dw_slice dw_slice_whole(const dw_tensor *tensors, size_t t)
{
    return (dw_slice){t, 0, elems_of(&tensors[t])};
}

bool dw_slice_is_whole(const dw_tensor *tensors, const dw_slice *s)
{
    return s->first == 0 && s->n == elems_of(&tensors[s->tensor]);
}

uint64_t dw_slice_bytes(const dw_tensor *tensors, const dw_slice *slice)
{
    return bytes_before(&tensors[slice->tensor], slice->n);
}

static dw_status check_slice(const dw_tensor *tensors, size_t n_tensors,
                             const dw_slice *s, dw_error *err)
{
    if (s->tensor >= n_tensors)
        return dw_fail(err, DW_INVALID, NULL, "slice of tensor %zu, but there are %zu",
                       s->tensor, n_tensors);
    const dw_tensor *t = &tensors[s->tensor];
    const uint64_t n_elems = elems_of(t);
    const unsigned bits = dw_dtype_bits(t->dtype);
    if (s->first > n_elems || s->n > n_elems - s->first)
        return dw_fail_tensor(err, DW_INVALID, NULL, t->name,
                              "a slice of %" PRIu64 " elements from %" PRIu64
                              " on passes its end",
                              s->n, s->first);
    if (s->n == 0 && n_elems > 0)
        return dw_fail_tensor(err, DW_INVALID, NULL, t->name,
                              "the slice at %" PRIu64 " is empty", s->first);
    if (s->first * bits % 8 != 0 || s->n * bits % 8 != 0)
        return dw_fail_tensor(err, DW_INVALID, NULL, t->name,
                              "the slice at %" PRIu64 " begins or ends inside a byte",
                              s->first);
    return DW_OK;
}

static int compare_slices(const void *a_, const void *b_)
{
    const dw_slice *a = a_, *b = b_;
    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

static dw_status check_disjoint(const dw_tensor *tensors, const dw_slice *slices,
                                size_t n, dw_error *err)
{
    dw_slice *sorted = dw_alloc_array(n, sizeof *sorted);
    if (!sorted)
        return dw_fail_memory(err, NULL);
    if (n > 0) {
        memcpy(sorted, slices, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, compare_slices);
    }
    dw_status status = DW_OK;
    for (size_t i = 1; status == DW_OK && i < n; i++) {
        const dw_slice *a = &sorted[i - 1], *b = &sorted[i];
        /* an empty tensor that is given twice begins at the same byte */
        if (a->tensor == b->tensor &&
            (b->first < a->first + a->n || b->first == a->first))
            status = dw_fail_tensor(err, DW_INVALID, NULL, tensors[b->tensor].name,
                                    "two slices overlap at element %" PRIu64, b->first);
    }
    dw_free(sorted);
    return status;
}

static dw_status fill_list(dw_slice_list *out, const dw_tensor *tensors,
                           const dw_slice *slices, dw_error *err)
{
    size_t n_text = 0;
    for (size_t i = 0; i < out->n; i++)
        n_text += strlen(tensors[slices[i].tensor].name) + SUFFIX_BYTES;
    out->tensors = dw_alloc_array(out->n, sizeof *out->tensors);
    out->arena = dw_alloc(out->n * sizeof(uint64_t) + n_text);
    if (!out->tensors || !out->arena) {
        dw_slices_release(out);
        return dw_fail_memory(err, NULL);
    }
    uint64_t *dims = out->arena;
    char *text = (char *)(dims + out->n);
    for (size_t i = 0; i < out->n; i++) {
        const dw_slice *s = &slices[i];
        const dw_tensor *whole = &tensors[s->tensor];
        dw_tensor *t = &out->tensors[i];
        *t = *whole;
        if (dw_slice_is_whole(tensors, s))
            continue;
        const uint64_t first_byte = bytes_before(whole, s->first);
        const size_t n_name = strlen(whole->name) + SUFFIX_BYTES;
        int n = snprintf(text, n_name, "%s[%" PRIu64 ":%" PRIu64 "]", whole->name,
                         s->first, s->first + s->n);
        dims[i] = s->n;
        t->name = text;
        t->n_dims = 1;
        t->dims = &dims[i];
        t->n_bytes = bytes_before(whole, s->n);
        t->data = whole->data ? (uint8_t *)whole->data + first_byte : NULL;
        t->first_byte += first_byte;
        text += n + 1;
    }
    return DW_OK;
}

dw_status dw_slices_open(dw_slice_list *out, const dw_tensor *tensors, size_t n_tensors,
                         const dw_slice *slices, size_t n_slices, dw_error *err)
{
    *out = (dw_slice_list){.n = n_slices};
    dw_status status = dw_tensors_check_shapes(tensors, n_tensors, err);
    for (size_t i = 0; status == DW_OK && i < n_slices; i++)
        status = check_slice(tensors, n_tensors, &slices[i], err);
    if (status == DW_OK)
        status = check_disjoint(tensors, slices, n_slices, err);
    return status == DW_OK ? fill_list(out, tensors, slices, err) : status;
}

void dw_slices_release(dw_slice_list *list)
{
    dw_free(list->tensors);
    dw_free(list->arena);
    *list = (dw_slice_list){0};
}

uint64_t dw_slice_first_unit(const dw_tensor *tensors, const dw_slice *slice)
{
    const dw_tensor *t = &tensors[slice->tensor];
    return bytes_before(t, slice->first) / dw_dtype_element(t->dtype).width;
}

dw_digest dw_slices_share(const dw_tensor *tensors, const dw_slice *slices,
                          const dw_digest *digests, size_t n_slices)
{
    dw_digest sum = 0;
    for (size_t i = 0; i < n_slices; i++) {
        uint64_t weight = dw_digest_weight(&tensors[slices[i].tensor]);
        sum = dw_digest_plus(sum, dw_digest_times(weight, digests[i]));
    }
    return sum;
}

dw_digest dw_state_floor(const dw_tensor *tensors, size_t n_tensors)
{
    dw_digest sum = 0;
    for (size_t i = 0; i < n_tensors; i++)
        sum = dw_digest_plus(sum, dw_digest_weight(&tensors[i]));
    return sum;
}
