/* Compares and copies whole tensors with the targets that hold them. */
#include <string.h>

#include "base/error.h"
#include "base/parallel.h"
#include "codec/element.h"
#include "layout/layout.h"
#include "tensor/tensor_list.h"

typedef struct copy {
    const dw_layout *layout;
    const dw_tensor *tensors;
    const dw_name_index *names;
    uint64_t *different; /* NULL: write */
} copy;

/* One row of the innermost dimension: N elements at these strides. */
static uint64_t compare_row(const uint8_t *from, const uint8_t *to,
                            const dw_layout_dim *d, unsigned width)
{
    uint64_t n_different = 0;
    if (d->from == 1 && d->to == 1 && memcmp(from, to, d->n * width) == 0)
        return 0;
    for (int64_t i = 0; i < (int64_t)d->n; i++)
        n_different +=
            memcmp(from + i * d->from * width, to + i * d->to * width, width) != 0;
    return n_different;
}

static void write_row(const uint8_t *from, uint8_t *to, const dw_layout_dim *d,
                      unsigned width)
{
    if (d->from == 1 && d->to == 1) {
        memcpy(to, from, d->n * width);
        return;
    }
    for (int64_t i = 0; i < (int64_t)d->n; i++)
        memcpy(to + i * d->to * width, from + i * d->from * width, width);
}

/* Row by row; returns how many elements differ if it does not write. */
static uint64_t copy_piece(const dw_layout_piece *p, const uint8_t *from, uint8_t *to,
                           unsigned width, bool write)
{
    const dw_layout_dim one = {1, 1, 1};
    const unsigned n_outer = p->n_dims > 0 ? p->n_dims - 1 : 0;
    const dw_layout_dim *inner = p->n_dims > 0 ? &p->dims[n_outer] : &one;
    const int64_t w = (int64_t)width;
    uint64_t c[DW_LAYOUT_DIMS] = {0}, n_different = 0;
    from += p->from * width;
    to += p->to * width;
    for (;;) {
        if (write)
            write_row(from, to, inner, width);
        else
            n_different += compare_row(from, to, inner, width);
        unsigned k = n_outer;
        while (k > 0) { /* the next row: count up, the last dimension first */
            const dw_layout_dim *d = &p->dims[--k];
            from += d->from * w;
            to += d->to * w;
            if (++c[k] < d->n)
                break;
            from -= (int64_t)d->n * d->from * w;
            to -= (int64_t)d->n * d->to * w;
            c[k] = 0;
            if (k == 0)
                return n_different;
        }
        if (n_outer == 0)
            return n_different;
    }
}

static dw_status copy_tensor(void *context, size_t t, unsigned worker, dw_error *err)
{
    (void)worker;
    const copy *job = context;
    const dw_layout *l = job->layout;
    const unsigned width = dw_dtype_element(l->tensors[t].dtype).width;
    if (job->different)
        job->different[t] = 0;
    if (l->forgotten[t] || l->lane_of[t] == l->lane_of[t + 1])
        return DW_OK;
    const size_t i = dw_name_index_find(job->names, l->tensors[t].name);
    if (i == SIZE_MAX)
        return dw_fail_tensor(err, DW_MISMATCH, NULL, l->tensors[t].name,
                              "the checkpoint has no tensor of that name");
    dw_status status = dw_tensor_same_shape(&l->tensors[t], &job->tensors[i], NULL, err);
    if (status != DW_OK)
        return status;
    for (size_t lane = l->lane_of[t]; lane < l->lane_of[t + 1]; lane++)
        for (size_t k = 0; k < l->lanes[lane].n; k++) {
            const dw_layout_piece *p = &l->pieces[l->lanes[lane].first + k];
            uint8_t *to = l->targets[p->target].data;
            if (!to)
                return dw_fail_tensor(err, DW_UNSUPPORTED, NULL,
                                      l->targets[p->target].name,
                                      "is in memory that the CPU cannot reach");
            const uint64_t n =
                copy_piece(p, job->tensors[i].data, to, width, !job->different);
            if (job->different)
                job->different[t] += n;
        }
    return DW_OK;
}

static dw_status copy_all(const dw_layout *l, const dw_tensor *tensors, size_t n_tensors,
                          unsigned n_threads, uint64_t *different, dw_error *err)
{
    dw_name_index names;
    dw_status status = dw_layout_check_ended(l, err);
    if (status == DW_OK)
        status = dw_tensors_check(tensors, n_tensors, err);
    if (status == DW_OK)
        status = dw_name_index_init(&names, tensors, n_tensors, err);
    if (status != DW_OK)
        return status;
    copy job = {l, tensors, &names, different};
    status = dw_parallel(dw_worker_count(n_threads, l->n_tensors), l->n_tensors,
                         copy_tensor, &job, NULL, err);
    dw_name_index_release(&names);
    return status;
}

dw_status dw_layout_compare(const dw_layout *l, const dw_tensor *tensors,
                            size_t n_tensors, unsigned n_threads, uint64_t *different,
                            dw_error *err)
{
    return copy_all(l, tensors, n_tensors, n_threads, different, err);
}

dw_status dw_layout_write(const dw_layout *l, const dw_tensor *tensors, size_t n_tensors,
                          unsigned n_threads, dw_error *err)
{
    return copy_all(l, tensors, n_tensors, n_threads, NULL, err);
}
