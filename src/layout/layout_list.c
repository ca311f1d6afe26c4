/* The stores of a patch as lists, for targets in memory that the CPU cannot reach. */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/element.h"
#include "layout/layout_walk.h"

static dw_status count_batch(dw_layout_batch *b, dw_error *err)
{
    (void)err;
    b->job->lists[b->target].n += b->n;
    return DW_OK;
}

static dw_status list_batch(dw_layout_batch *b, dw_error *err)
{
    (void)err;
    dw_layout_stores *list = &b->job->lists[b->target];
    for (size_t i = 0; i < b->n; i++, list->n++) {
        const uint32_t k = b->changes[i];
        list->places[list->n] = (int64_t)b->places[i];
        dw_element_store(list->old_values, list->n, b->width,
                         dw_element_load(b->segment->old_values, k, b->width));
        dw_element_store(list->values, list->n, b->width,
                         dw_element_load(b->segment->values, k, b->width));
    }
    b->job->n_stored[b->segment_number] += b->n;
    return DW_OK;
}

static bool allocate_lists(const dw_layout *l, dw_layout_stores *lists)
{
    for (size_t i = 0; i < l->n_targets; i++) {
        const unsigned width = dw_dtype_element(l->targets[i].dtype).width;
        lists[i].places = dw_alloc_array(lists[i].n, sizeof *lists[i].places);
        lists[i].old_values = dw_alloc_array(lists[i].n, width);
        lists[i].values = dw_alloc_array(lists[i].n, width);
        if (!lists[i].places || !lists[i].old_values || !lists[i].values)
            return false;
        lists[i].n = 0;
        lists[i].width = width;
    }
    return true;
}

dw_status dw_layout_list(const dw_layout *l, const char *path, dw_layout_stores *lists,
                         dw_layout_report *report, bool *forgotten, dw_error *err)
{
    dw_layout_job j;
    memset(lists, 0, l->n_targets * sizeof *lists);
    dw_status status = dw_layout_job_open(&j, l, path, report, err);
    j.lists = lists;
    for (size_t i = 0; status == DW_OK && i < j.patch->n_segments; i++)
        status = dw_layout_walk(&j, i, count_batch, err);
    if (status == DW_OK && !allocate_lists(l, lists))
        status = dw_fail_memory(err, path);
    for (size_t i = 0; status == DW_OK && i < j.patch->n_segments; i++)
        status = dw_layout_walk(&j, i, list_batch, err);
    if (status == DW_OK)
        status = dw_layout_for_segments(&j, 0, dw_layout_move_digest, err);
    if (status == DW_OK)
        dw_layout_job_sum(&j, report, forgotten);
    else
        dw_layout_stores_free(lists, l->n_targets);
    dw_layout_job_release(&j);
    return status;
}

void dw_layout_stores_free(dw_layout_stores *lists, size_t n_targets)
{
    for (size_t i = 0; i < n_targets; i++) {
        dw_free(lists[i].places);
        dw_free(lists[i].old_values);
        dw_free(lists[i].values);
        lists[i] = (dw_layout_stores){0};
    }
}
