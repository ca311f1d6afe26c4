#include "weights/widen.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "tensor/device.h"
#include "tensor/tensor_list.h"

struct dw_widened {
    dw_scratch_model copy; /* of the tensors that are widened */
    uint8_t **live;        /* [tensors of the target] F32; NULL: not widened */
};

/* ---- elements ---- */

static uint32_t wide_at(const uint8_t *wide, uint64_t i)
{
    uint32_t bits;
    memcpy(&bits, wide + 4 * i, sizeof bits);
    return bits;
}

static void widen_at(uint8_t *wide, uint64_t i, uint16_t narrow)
{
    const uint32_t bits = (uint32_t)narrow << 16;
    memcpy(wide + 4 * i, &bits, sizeof bits);
}

/* ---- all of a tensor ---- */

static dw_status store_tensor(void *context, size_t t, unsigned worker, dw_error *err)
{
    (void)worker;
    (void)err;
    const dw_target *r = context;
    uint8_t *wide = r->widened->live[t];
    const uint16_t *narrow = r->tensors[t].data;
    for (uint64_t i = 0; wide && i < r->tensors[t].n_bytes / 2; i++)
        widen_at(wide, i, narrow[i]);
    return DW_OK;
}

void dw_widened_store(const dw_target *r)
{
    const unsigned n_workers = dw_worker_count(r->n_threads, r->n_tensors);
    if (dw_parallel(n_workers, r->n_tensors, store_tensor, (void *)r, NULL, NULL) ==
        DW_OK)
        return;
    for (size_t t = 0; t < r->n_tensors; t++) /* there are no threads */
        store_tensor((void *)r, t, 0, NULL);
}

static bool is_same(const dw_target *r, size_t t)
{
    const uint8_t *wide = r->widened->live[t];
    const uint16_t *narrow = r->tensors[t].data;
    uint32_t difference = 0;
    for (uint64_t i = 0; wide && i < r->tensors[t].n_bytes / 2; i++)
        difference |= wide_at(wide, i) ^ (uint32_t)narrow[i] << 16;
    return difference == 0;
}

const char *dw_widened_compare(const dw_target *r, size_t first, size_t n)
{
    for (size_t t = first; t < first + n; t++)
        if (!is_same(r, t))
            return r->tensors[t].name;
    return NULL;
}

/* ---- the elements of a patch ---- */

void dw_widened_store_patch(const dw_target *r)
{
    for (size_t i = 0; i < r->patch->n_segments; i++) {
        const dw_segment *s = &r->patch->segments[i];
        uint8_t *wide = r->widened->live[s->tensor];
        const uint16_t *values = s->values;
        for (uint32_t k = 0; wide && k < s->n; k++)
            widen_at(wide, s->first + s->positions[k], values[k]);
    }
}

const char *dw_widened_compare_patch(const dw_target *r)
{
    for (size_t i = 0; i < r->patch->n_segments; i++) {
        const dw_segment *s = &r->patch->segments[i];
        const uint8_t *wide = r->widened->live[s->tensor];
        const uint16_t *narrow = r->tensors[s->tensor].data;
        for (uint32_t k = 0; wide && k < s->n; k++) {
            const uint64_t at = s->first + s->positions[k];
            if (wide_at(wide, at) != (uint32_t)narrow[at] << 16)
                return r->tensors[s->tensor].name;
        }
    }
    return NULL;
}

/* ---- opening ---- */

/* Sets VIEW to MEMORY as the stream has it: BF16 in place of F32 if the stream has BF16.
 */
static dw_status view_as_stream(dw_tensor *view, bool *is_wide, const dw_tensor *table,
                                const dw_tensor *memory, size_t n_tensors, dw_error *err)
{
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, table, n_tensors, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; i < n_tensors; i++) {
        const size_t t = dw_name_index_find(&names, memory[i].name);
        view[i] = memory[i];
        is_wide[i] =
            t != SIZE_MAX && table[t].dtype == DW_BF16 && memory[i].dtype == DW_F32;
        if (!is_wide[i])
            continue;
        status = dw_tensors_need_host(&memory[i], 1, "widen BF16 to F32", err);
        if (status != DW_OK)
            break;
        view[i].dtype = DW_BF16;
        view[i].n_bytes /= 2;
    }
    dw_name_index_release(&names);
    return status;
}

/* Takes the upper halves of all elements. Comparing shows whether that lost anything. */
static void narrow_tensor(uint16_t *narrow, const uint8_t *wide, uint64_t n_elems)
{
    for (uint64_t i = 0; i < n_elems; i++)
        narrow[i] = (uint16_t)(wide_at(wide, i) >> 16);
}

/* Makes the copy, and points VIEW at it. */
static dw_status make_copy(dw_widened *w, dw_tensor *view, const bool *is_wide,
                           const dw_tensor *memory, size_t n_tensors,
                           const char *spool_dir, bool empty, dw_error *err)
{
    dw_tensor *wanted = dw_alloc_array(n_tensors, sizeof *wanted);
    size_t n = 0;
    if (!wanted)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < n_tensors; i++)
        if (is_wide[i])
            wanted[n++] = view[i];
    dw_status status =
        n > 0 ? dw_scratch_model_make(&w->copy, wanted, n, spool_dir, err) : DW_OK;
    dw_free(wanted);
    for (size_t i = 0, k = 0; status == DW_OK && i < n_tensors; i++)
        if (is_wide[i]) {
            view[i].data = w->copy.tensors[k++].data;
            if (!empty)
                narrow_tensor(view[i].data, memory[i].data, view[i].n_bytes / 2);
        }
    return status;
}

/* Notes the caller's memory of each tensor of R. */
static dw_status take_live(dw_target *r, const dw_tensor *memory, const bool *is_wide,
                           dw_error *err)
{
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, memory, r->n_tensors, err);
    if (status != DW_OK)
        return status;
    for (size_t t = 0; t < r->n_tensors; t++) {
        const size_t i = dw_name_index_find(&names, r->tensors[t].name);
        r->widened->live[t] = is_wide[i] ? memory[i].data : NULL;
    }
    dw_name_index_release(&names);
    return DW_OK;
}

dw_status dw_target_open_widened(dw_target **out, const dw_tensor *table,
                                 size_t n_tensors, const dw_follow_options *options,
                                 dw_error *err)
{
    dw_target *r = NULL;
    const dw_tensor *memory = options->tensors;
    const bool empty = options->tensors_empty;
    dw_widened *w = dw_alloc_zeroed(1, sizeof *w);
    dw_tensor *view = dw_alloc_array(n_tensors, sizeof *view);
    bool *is_wide = dw_alloc_array(n_tensors, sizeof *is_wide);
    if (w)
        w->live = dw_alloc_zeroed(n_tensors, sizeof *w->live);
    dw_status status =
        w && w->live && view && is_wide ? DW_OK : dw_fail_memory(err, NULL);
    if (status == DW_OK)
        status = dw_tensors_check_placed(memory, n_tensors, err);
    if (status == DW_OK)
        status = view_as_stream(view, is_wide, table, memory, n_tensors, err);
    if (status == DW_OK)
        status = make_copy(w, view, is_wide, memory, n_tensors, options->spool_dir, empty,
                           err);
    if (status == DW_OK)
        status = dw_target_open_memory(&r, table, n_tensors, view, empty,
                                       options->n_threads, err);
    if (status == DW_OK) {
        r->widened = w;
        w = NULL;
        status = take_live(r, memory, is_wide, err);
    }
    /* values that BF16 cannot hold are no version, whatever their upper halves are */
    if (status == DW_OK && !empty && dw_widened_compare(r, 0, n_tensors))
        r->has_weights = false;
    dw_widened_free(w);
    dw_free(view);
    dw_free(is_wide);
    return dw_target_give(out, r, status);
}

/* The tensors that are widened keep their copy: VIEW has its memory. */
static dw_status view_copies(const dw_target *r, dw_tensor *view, const bool *is_wide,
                             size_t n_tensors, dw_error *err)
{
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, r->tensors, r->n_tensors, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; status == DW_OK && i < n_tensors; i++) {
        const size_t t = dw_name_index_find(&names, view[i].name);
        if (t == SIZE_MAX)
            continue; /* dw_target_take_data refuses the list */
        if (is_wide[i] != (r->widened->live[t] != NULL))
            status = dw_fail_tensor(err, DW_MISMATCH, "memory", view[i].name,
                                    "it had another type when the follower was opened: "
                                    "open another one");
        else if (is_wide[i])
            view[i].data = r->tensors[t].data;
    }
    dw_name_index_release(&names);
    return status;
}

dw_status dw_widened_move(dw_target *r, const dw_tensor *memory, size_t n_tensors,
                          uint8_t ***was, dw_error *err)
{
    dw_tensor *view = dw_alloc_array(n_tensors, sizeof *view);
    bool *is_wide = dw_alloc_array(n_tensors, sizeof *is_wide);
    uint8_t **live = dw_alloc_zeroed(r->n_tensors, sizeof *live);
    dw_status status = view && is_wide && live ? DW_OK : dw_fail_memory(err, NULL);
    if (status == DW_OK)
        status = view_as_stream(view, is_wide, r->tensors, memory, n_tensors, err);
    if (status == DW_OK)
        status = view_copies(r, view, is_wide, n_tensors, err);
    if (status == DW_OK)
        status = dw_target_take_data(r, view, n_tensors, "memory", err);
    if (status == DW_OK) {
        *was = r->widened->live;
        r->widened->live = live;
        live = NULL;
        status = take_live(r, memory, is_wide, err);
    }
    dw_free(view);
    dw_free(is_wide);
    dw_free(live);
    return status;
}

void dw_widened_moved(dw_target *r, uint8_t **was, bool is_good)
{
    uint8_t **live = r->widened->live;
    if (was && !is_good)
        r->widened->live = was;
    if (was)
        dw_free(is_good ? was : live);
}

void dw_widened_free(dw_widened *w)
{
    if (!w)
        return;
    dw_scratch_model_release(&w->copy);
    dw_free(w->live);
    dw_free(w);
}
