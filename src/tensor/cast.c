/* Copies of tensors in another element type. */
#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "kernel/kernel.h"
#include "tensor/device.h"
#include "tensor/tensor_list.h"

/* The piece of one thread: fits into its second-level cache. */
#define STRIP_ELEMS (1u << 18)

void dw_cast_bf16(uint16_t *out, const float *in, uint64_t n_elems)
{
    dw_kernels_get()->round_bf16(out, in, (size_t)n_elems);
}

dw_status dw_cast_copy(uint16_t *out, const float *in, uint64_t n_elems, dw_error *err)
{
    dw_loan loan = {0};
    dw_status status = DW_OK;
    for (uint64_t at = 0, n; status == DW_OK && at < n_elems; at += n) {
        const void *elems;
        n = n_elems - at < STRIP_ELEMS ? n_elems - at : STRIP_ELEMS;
        status = dw_map_read(&elems, &loan, in + at, (size_t)n * sizeof *in, err);
        if (status == DW_OK)
            dw_cast_bf16(out + at, elems, n);
    }
    dw_loan_release(&loan);
    return status;
}

typedef struct strip {
    size_t into, from; /* indices in the lists */
    uint64_t first;    /* an element, or a byte if both types are the same */
} strip;

typedef struct cast {
    const dw_tensor *into;
    const dw_tensor *from;
    strip *strips;
} cast;

static bool is_cast(const dw_tensor *into, const dw_tensor *from)
{
    return into->dtype == DW_BF16 && from->dtype == DW_F32;
}

/* Counts elements for a cast, bytes for a copy. */
static uint64_t units(const dw_tensor *into, const dw_tensor *from)
{
    return is_cast(into, from) ? into->n_bytes / 2 : into->n_bytes;
}

static dw_status do_strip(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const cast *c = context;
    const strip *s = &c->strips[i];
    const dw_tensor *into = &c->into[s->into], *from = &c->from[s->from];
    const uint64_t left = units(into, from) - s->first;
    const uint64_t n = left < STRIP_ELEMS ? left : STRIP_ELEMS;
    const bool is_rounded = is_cast(into, from);
    const dw_place to = {into->device,
                         (uint8_t *)into->data + s->first * (is_rounded ? 2 : 1)};
    const dw_place source = {from->device,
                             (uint8_t *)from->data + s->first * (is_rounded ? 4 : 1)};
    return is_rounded ? dw_place_round(to, source, n, err)
                      : dw_place_copy(to, source, n, err);
}

/* Finds the index in INTO of each tensor of FROM. */
static dw_status pair(size_t *partner, const dw_tensor *into, const dw_tensor *from,
                      size_t n, dw_error *err)
{
    dw_name_index index = {0};
    dw_status status = dw_tensors_check_placed(into, n, err);
    if (status == DW_OK)
        status = dw_tensors_check_placed(from, n, err);
    if (status == DW_OK)
        status = dw_name_index_init(&index, into, n, err);
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        partner[i] = dw_name_index_find(&index, from[i].name);
        if (partner[i] == SIZE_MAX) {
            status = dw_fail(err, DW_MISMATCH, from[i].name, "is only on one side");
            break;
        }
        dw_tensor wanted = into[partner[i]];
        if (is_cast(&wanted, &from[i]))
            wanted.dtype = DW_F32;
        status = dw_tensor_same_shape(&wanted, &from[i], "the copy", err);
    }
    dw_name_index_release(&index);
    return status;
}

static size_t list_strips(strip *out, const dw_tensor *into, const dw_tensor *from,
                          const size_t *partner, size_t n)
{
    size_t n_strips = 0;
    for (size_t i = 0; i < n; i++)
        for (uint64_t at = 0; at < units(&into[partner[i]], &from[i]);
             at += STRIP_ELEMS) {
            if (out)
                out[n_strips] = (strip){partner[i], i, at};
            n_strips++;
        }
    return n_strips;
}

dw_status dw_cast_tensors(const dw_tensor *into, const dw_tensor *from, size_t n_tensors,
                          unsigned n_threads, dw_error *err)
{
    size_t *partner = dw_alloc_array(n_tensors, sizeof *partner);
    if (!partner)
        return dw_fail_memory(err, NULL);
    cast c = {.into = into, .from = from};
    dw_status status = pair(partner, into, from, n_tensors, err);
    if (status == DW_OK) {
        const size_t n = list_strips(NULL, into, from, partner, n_tensors);
        c.strips = dw_alloc_array(n, sizeof *c.strips);
        if (c.strips) {
            list_strips(c.strips, into, from, partner, n_tensors);
            status =
                dw_parallel(dw_worker_count(n_threads, n), n, do_strip, &c, NULL, err);
        } else {
            status = dw_fail_memory(err, NULL);
        }
    }
    dw_free(c.strips);
    dw_free(partner);
    return status;
}
