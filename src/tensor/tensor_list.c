#include "tensor/tensor_list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

/* Checks a caller's tensor. */
static dw_status check_tensor(const dw_tensor *t, size_t i, dw_error *err)
{
    uint64_t n_bytes;
    if (!t->name)
        return dw_fail(err, DW_INVALID, NULL, "tensor %zu has no name", i);
    if ((t->n_dims > 0 && !t->dims) ||
        !dw_shape_size(t->dtype, t->n_dims, t->dims, NULL, &n_bytes) ||
        n_bytes != t->n_bytes)
        return dw_fail_tensor(err, DW_INVALID, NULL, t->name,
                              "its %" PRIu64 " bytes do not fit its type and shape",
                              t->n_bytes);
    if (t->first_byte % dw_dtype_element(t->dtype).width != 0 ||
        t->first_byte > UINT64_MAX - n_bytes)
        return dw_fail_tensor(err, DW_INVALID, NULL, t->name,
                              "a slice of it cannot begin at byte %" PRIu64,
                              t->first_byte);
    return DW_OK;
}

dw_status dw_tensors_check_shapes(const dw_tensor *tensors, size_t n, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < n; i++)
        status = check_tensor(&tensors[i], i, err);
    return status;
}

dw_status dw_tensors_check_placed(const dw_tensor *tensors, size_t n, dw_error *err)
{
    dw_status status = dw_tensors_check_shapes(tensors, n, err);
    for (size_t i = 0; status == DW_OK && i < n; i++)
        if (!tensors[i].data && tensors[i].n_bytes > 0)
            status =
                dw_fail_tensor(err, DW_INVALID, NULL, tensors[i].name, "it has no data");
    return status;
}

dw_status dw_tensors_check(const dw_tensor *tensors, size_t n, dw_error *err)
{
    dw_status status = dw_tensors_check_placed(tensors, n, err);
    return status == DW_OK ? dw_tensors_need_host(tensors, n, "use it here", err)
                           : status;
}

int dw_tensor_compare_names(const void *left, const void *right)
{
    const dw_tensor *a = left, *b = right;
    return strcmp(a->name, b->name);
}

typedef struct named {
    const char *name;
    size_t number;
} named;

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

dw_status dw_name_index_init(dw_name_index *out, const dw_tensor *tensors, size_t n,
                             dw_error *err)
{
    *out = (dw_name_index){tensors, NULL, n};
    named *sorted = dw_alloc_array(n, sizeof *sorted);
    out->order = dw_alloc_array(n, sizeof *out->order);
    dw_status status = DW_OK;
    if (!sorted || !out->order)
        status = dw_fail_memory(err, NULL);
    for (size_t i = 0; status == DW_OK && i < n; i++)
        sorted[i] = (named){tensors[i].name, i};
    if (status == DW_OK && n > 0)
        qsort(sorted, n, sizeof *sorted, compare_names);
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        out->order[i] = sorted[i].number;
        if (i > 0 && strcmp(sorted[i - 1].name, sorted[i].name) == 0)
            status = dw_fail_tensor(err, DW_INVALID, NULL, sorted[i].name,
                                    "the list has this name twice");
    }
    dw_free(sorted);
    if (status != DW_OK)
        dw_name_index_release(out);
    return status;
}

void dw_name_index_release(dw_name_index *index)
{
    dw_free(index->order);
    *index = (dw_name_index){0};
}

size_t dw_name_index_find(const dw_name_index *index, const char *name)
{
    size_t low = 0, high = index->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, index->tensors[index->order[middle]].name);
        if (order == 0)
            return index->order[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return SIZE_MAX;
}

/* The first name of A that B lacks, or NULL. */
static const char *first_missing(const dw_tensor *a, size_t n_a, const dw_tensor *b,
                                 size_t n_b)
{
    dw_name_index names;
    const char *missing = NULL;
    if (dw_name_index_init(&names, b, n_b, NULL) != DW_OK)
        return NULL;
    for (size_t i = 0; !missing && i < n_a; i++)
        if (dw_name_index_find(&names, a[i].name) == SIZE_MAX)
            missing = a[i].name;
    dw_name_index_release(&names);
    return missing;
}

const char *dw_describe_difference(char out[DW_DIFFERENCE_TEXT], const dw_tensor *stream,
                                   size_t n_stream, const dw_tensor *given,
                                   size_t n_given)
{
    const char *missing = first_missing(stream, n_stream, given, n_given);
    const char *extra = missing ? NULL : first_missing(given, n_given, stream, n_stream);
    out[0] = '\0';
    if (missing)
        snprintf(out, DW_DIFFERENCE_TEXT,
                 ". '%.200s' is missing here; if it is tied to another tensor, give that "
                 "one under both names",
                 missing);
    else if (extra)
        snprintf(out, DW_DIFFERENCE_TEXT,
                 ". '%.200s' is not in the stream; if it is tied to another tensor, "
                 "leave it out",
                 extra);
    return out;
}

typedef struct extent {
    uintptr_t begin, end;
} extent;

static int compare_extents(const void *a_, const void *b_)
{
    const extent *a = a_, *b = b_;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

dw_status dw_tensors_overlap(bool *out, const dw_tensor *tensors, size_t n, dw_error *err)
{
    *out = false;
    extent *sorted = dw_alloc_array(n, sizeof *sorted);
    if (!sorted)
        return dw_fail_memory(err, NULL);
    size_t n_sorted = 0;
    for (size_t i = 0; i < n; i++) {
        uintptr_t begin = (uintptr_t)tensors[i].data;
        if (tensors[i].n_bytes > 0)
            sorted[n_sorted++] = (extent){begin, begin + (size_t)tensors[i].n_bytes};
    }
    if (n_sorted > 0)
        qsort(sorted, n_sorted, sizeof *sorted, compare_extents);
    for (size_t i = 1; i < n_sorted && !*out; i++)
        *out = sorted[i].begin < sorted[i - 1].end;
    dw_free(sorted);
    return DW_OK;
}

/* "BF16 [2048,1024]", cut if it is too long. */
static void describe(char *out, size_t size, const dw_tensor *t)
{
    int n = snprintf(out, size, "%s [", dw_dtype_name(t->dtype));
    for (uint32_t d = 0; d < t->n_dims && n > 0 && (size_t)n < size; d++)
        n += snprintf(out + n, size - (size_t)n, "%s%" PRIu64, d ? "," : "", t->dims[d]);
    if (n > 0 && (size_t)n < size)
        snprintf(out + n, size - (size_t)n, "]");
}

static bool is_same_shape(const dw_tensor *a, const dw_tensor *b)
{
    return a->n_dims == b->n_dims &&
           (a->n_dims == 0 || memcmp(a->dims, b->dims, a->n_dims * sizeof *a->dims) == 0);
}

dw_status dw_tensor_same_shape(const dw_tensor *wanted, const dw_tensor *found,
                               const char *where, dw_error *err)
{
    if (wanted->dtype == found->dtype && is_same_shape(wanted, found))
        return DW_OK;
    char a[160], b[160];
    describe(a, sizeof a, wanted);
    describe(b, sizeof b, found);
    return dw_fail_tensor(err, DW_MISMATCH, where, wanted->name,
                          "it is %s here, but %s in the weights", a, b);
}

dw_status dw_tensor_fits_stream(const dw_tensor *in_stream, const dw_tensor *in_model,
                                const char *where, dw_error *err)
{
    const bool same_shape = is_same_shape(in_stream, in_model);
    if (in_stream->dtype == in_model->dtype && same_shape)
        return DW_OK;
    char a[160], b[160];
    describe(a, sizeof a, in_stream);
    describe(b, sizeof b, in_model);
    const char *advice = "a new architecture needs a stream under a new URL";
    if (same_shape && in_stream->dtype == DW_BF16 && in_model->dtype == DW_F32)
        advice = "convert your model (PyTorch: .bfloat16()), use a new URL, or, to "
                 "follow into memory as it is, ask for widening (widen=True)";
    else if (same_shape && in_stream->dtype == DW_BF16)
        advice = "convert your model (PyTorch: .bfloat16()), or use a new URL";
    else if (same_shape)
        advice = "convert your model to the stream's type, or use a new URL";
    return dw_fail_tensor(err, DW_MISMATCH, where, in_stream->name,
                          "the stream has it as %s, your model as %s; %s", a, b, advice);
}

dw_status dw_tensor_read(dw_tensor *out, dw_loan *loan, const dw_tensor *t, dw_error *err)
{
    const void *bytes;
    dw_status status = dw_map_read(&bytes, loan, t->data, (size_t)t->n_bytes, err);
    *out = *t;
    out->data = (void *)(uintptr_t)bytes;
    return status;
}
