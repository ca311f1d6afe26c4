/* Compares and copies whole tensors with the targets that hold them. */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "codec/element.h"
#include "layout/layout_int.h"
#include "tensor/device.h"
#include "tensor/tensor_list.h"

typedef struct copy {
    const dw_layout *layout;
    const dw_tensor *tensors;
    const dw_name_index *names;
    uint64_t *different; /* NULL: write */
    size_t target;       /* SIZE_MAX: all */
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
    if (job->target != SIZE_MAX && !dw_layout_holds(l, t, job->target))
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
            if (l->targets[p->target].device ||
                (job->target != SIZE_MAX && p->target != job->target))
                continue;
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

/* ---- targets on devices ---- */

/* The numbers of the pieces, by target; FIRST takes those of each target. */
static size_t *by_target(const dw_layout *l, size_t *first)
{
    size_t *order = dw_alloc_array(l->n_pieces, sizeof *order);
    for (size_t i = 0; order && i < l->n_pieces; i++)
        first[l->pieces[i].target + 1]++;
    for (size_t i = 0; i < l->n_targets; i++)
        first[i + 1] += first[i];
    for (size_t i = l->n_pieces; order && i-- > 0;) /* the last one is taken first */
        order[--first[l->pieces[i].target + 1]] = i;
    return order;
}

/* BYTES is a copy of the target. Returns whether it has any element of the tensors. */
static bool copy_into(const copy *job, const size_t *pieces, size_t n, uint8_t *bytes)
{
    const dw_layout *l = job->layout;
    bool is_any = false;
    for (size_t k = 0; k < n; k++) {
        const dw_layout_piece *p = &l->pieces[pieces[k]];
        const dw_tensor *t = &l->tensors[p->tensor];
        if (l->forgotten[p->tensor])
            continue;
        is_any = true;
        if (!bytes)
            break;
        const size_t i = dw_name_index_find(job->names, t->name);
        const uint64_t n_different =
            copy_piece(p, job->tensors[i].data, bytes, dw_dtype_element(t->dtype).width,
                       !job->different);
        if (job->different)
            job->different[p->tensor] += n_different;
    }
    return is_any;
}

/* All tensors were found and checked. A target at a time passes through the host. */
static dw_status copy_on_devices(const copy *job, dw_error *err)
{
    const dw_layout *l = job->layout;
    if (!dw_tensors_on_device(l->targets, l->n_targets))
        return DW_OK;
    size_t *first = dw_alloc_zeroed(l->n_targets + 2, sizeof *first);
    size_t *order = first ? by_target(l, first) : NULL;
    dw_status status = order ? DW_OK : dw_fail_memory(err, NULL);
    for (size_t i = 0; status == DW_OK && i < l->n_targets; i++) {
        const dw_tensor *t = &l->targets[i];
        const size_t *pieces = order + first[i + 1];
        const size_t n =
            (i + 1 < l->n_targets ? first[i + 2] : l->n_pieces) - first[i + 1];
        if (!t->device || (job->target != SIZE_MAX && i != job->target) ||
            !copy_into(job, pieces, n, NULL))
            continue;
        uint8_t *bytes = dw_alloc((size_t)t->n_bytes);
        status = bytes ? t->device->ops->read(t->device, bytes, t->data, t->n_bytes, err)
                       : dw_fail_memory(err, t->name);
        if (status == DW_OK) {
            copy_into(job, pieces, n, bytes);
            if (!job->different)
                status =
                    t->device->ops->write(t->device, t->data, bytes, t->n_bytes, err);
        }
        dw_free(bytes);
    }
    dw_free(order);
    dw_free(first);
    return status;
}

static dw_status copy_all(const dw_layout *l, size_t target, const dw_tensor *tensors,
                          size_t n_tensors, unsigned n_threads, uint64_t *different,
                          dw_error *err)
{
    dw_name_index names;
    dw_status status = dw_layout_check_ended(l, err);
    if (status == DW_OK)
        status = dw_tensors_check(tensors, n_tensors, err);
    if (status == DW_OK)
        status = dw_tensors_need_host(tensors, n_tensors, "use it with a layout", err);
    if (status == DW_OK)
        status = dw_name_index_init(&names, tensors, n_tensors, err);
    if (status != DW_OK)
        return status;
    copy job = {l, tensors, &names, different, target};
    status = dw_parallel(dw_worker_count(n_threads, l->n_tensors), l->n_tensors,
                         copy_tensor, &job, NULL, err);
    if (status == DW_OK)
        status = copy_on_devices(&job, err);
    dw_name_index_release(&names);
    return status;
}

dw_status dw_layout_compare(const dw_layout *l, const dw_tensor *tensors,
                            size_t n_tensors, unsigned n_threads, uint64_t *different,
                            dw_error *err)
{
    return copy_all(l, SIZE_MAX, tensors, n_tensors, n_threads, different, err);
}

dw_status dw_layout_write(const dw_layout *l, const dw_tensor *tensors, size_t n_tensors,
                          unsigned n_threads, dw_error *err)
{
    return copy_all(l, SIZE_MAX, tensors, n_tensors, n_threads, NULL, err);
}

dw_status dw_layout_write_target(const dw_layout *l, size_t target,
                                 const dw_tensor *tensors, size_t n_tensors,
                                 unsigned n_threads, dw_error *err)
{
    return copy_all(l, target, tensors, n_tensors, n_threads, NULL, err);
}
