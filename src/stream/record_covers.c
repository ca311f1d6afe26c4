/* Parts of a model. A place in it is a pair (tensor, element); whole tensors begin and
 * end at element 0, so that all covers are ranges on one line. */
#include "stream/record_parts.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/slice.h"

typedef struct place {
    uint64_t tensor;
    uint64_t element;
} place;

static place begin_of(const dw_cover *c)
{
    return c->tensor == SIZE_MAX ? (place){c->first, 0} : (place){c->tensor, c->first};
}

static place end_of(const dw_cover *c)
{
    return c->tensor == SIZE_MAX ? (place){c->end, 0} : (place){c->tensor, c->end};
}

static int compare_places(place a, place b)
{
    if (a.tensor != b.tensor)
        return a.tensor < b.tensor ? -1 : 1;
    return a.element < b.element ? -1 : a.element > b.element;
}

/* ---- reading and writing ---- */

static bool read_cover(dw_cover *out, const dw_json *entry)
{
    uint64_t numbers[3];
    size_t n = 0;
    if (!dw_json_is_array(entry))
        return false;
    for (const dw_json *it = dw_json_first(entry); it; it = dw_json_next(entry, it))
        if (n == 3 || !dw_json_number(&numbers[n++], it))
            return false;
    if (n < 2)
        return false;
    *out = n == 2 ? (dw_cover){SIZE_MAX, numbers[0], numbers[1]}
                  : (dw_cover){(size_t)numbers[0], numbers[1], numbers[2]};
    return true;
}

void dw_field_covers(dw_fields *f, dw_cover **covers, size_t *n_covers, const char *name)
{
    size_t n;
    const dw_json *list = dw_field_list(f, name, SIZE_MAX, &n);
    if (!list)
        return;
    *covers = dw_alloc_array(n, sizeof **covers);
    if (!*covers) {
        dw_fields_fail_memory(f);
        return;
    }
    const dw_json *item = dw_json_first(list);
    for (size_t i = 0; item && f->status == DW_OK; i++, item = dw_json_next(list, item)) {
        dw_cover *c = &(*covers)[i];
        if (!read_cover(c, item))
            dw_fields_fail(f, DW_CORRUPT, name,
                           "has at %zu neither [first, end] nor [tensor, first, end]", i);
        else if (c->first >= c->end)
            dw_fields_fail(f, DW_CORRUPT, name, "has at %zu a range that is empty", i);
        else if (i > 0 && compare_places(begin_of(c), end_of(c - 1)) < 0)
            dw_fields_fail(f, DW_CORRUPT, name,
                           "has at %zu a range that overlaps the one before or lies "
                           "ahead of it",
                           i);
    }
    *n_covers = n;
}

void dw_write_covers(dw_writer *out, const dw_cover *covers, size_t n_covers)
{
    dw_write_u8(out, '[');
    for (size_t i = 0; i < n_covers; i++) {
        const dw_cover *c = &covers[i];
        dw_write_text(out, i ? ",[" : "[");
        if (c->tensor != SIZE_MAX)
            dw_write_format(out, "%zu,", c->tensor);
        dw_write_format(out, "%" PRIu64 ",%" PRIu64 "]", c->first, c->end);
    }
    dw_write_u8(out, ']');
}

/* ---- against a table of tensors ---- */

/* The table has been checked: shapes have sizes. */
static bool is_whole_bytes(const dw_tensor *t, uint64_t n_elems)
{
    return n_elems % 8 * dw_dtype_bits(t->dtype) % 8 == 0;
}

static dw_status check_slice(const dw_cover *c, const dw_tensor *t, const char *where,
                             dw_error *err)
{
    if (c->end > dw_slice_whole(t, 0).n)
        return dw_fail_tensor(err, DW_CORRUPT, where, t->name,
                              "a slice ends at element %" PRIu64 " of %" PRIu64, c->end,
                              dw_slice_whole(t, 0).n);
    if (!is_whole_bytes(t, c->first) || !is_whole_bytes(t, c->end))
        return dw_fail_tensor(err, DW_CORRUPT, where, t->name,
                              "the slice from %" PRIu64 " to %" PRIu64
                              " is not one of whole bytes",
                              c->first, c->end);
    return DW_OK;
}

dw_status dw_covers_check(const dw_cover *covers, size_t n_covers,
                          const dw_tensor *tensors, size_t n_tensors, const char *where,
                          dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; i < n_covers && status == DW_OK; i++) {
        const dw_cover *c = &covers[i];
        bool is_slice = c->tensor != SIZE_MAX;
        if (c->first >= c->end)
            status = dw_fail(err, DW_CORRUPT, where, "covers[%zu] is empty", i);
        else if (is_slice ? c->tensor >= n_tensors : c->end > n_tensors)
            status =
                dw_fail(err, DW_CORRUPT, where,
                        "covers[%zu] names a tensor past the last of %zu", i, n_tensors);
        else if (i > 0 && compare_places(begin_of(c), end_of(c - 1)) < 0)
            status =
                dw_fail(err, DW_CORRUPT, where,
                        "covers[%zu] overlaps the one before or lies ahead of it", i);
        else if (is_slice)
            status = check_slice(c, &tensors[c->tensor], where, err);
    }
    return status;
}

/* ---- of several objects ---- */

static int compare_begins(const void *a, const void *b)
{
    return compare_places(begin_of(a), begin_of(b));
}

/* For errors: the tensor's name, as far as there is one. */
static dw_status fail_at(place at, const dw_tensor *tensors, size_t n_tensors,
                         const char *fault, const char *where, dw_error *err)
{
    if (at.tensor < n_tensors)
        return dw_fail_tensor(err, DW_CORRUPT, where, tensors[at.tensor].name,
                              "%s, from element %" PRIu64 " on", fault, at.element);
    return dw_fail(err, DW_CORRUPT, where, "%s", fault);
}

/* COVERS, each good in itself, are sorted. */
static dw_status check_line(const dw_cover *covers, size_t n_covers,
                            const dw_tensor *tensors, size_t n_tensors,
                            bool must_cover_all, const char *where, dw_error *err)
{
    place reached = {0, 0};
    for (size_t i = 0; i < n_covers; i++) {
        place begin = begin_of(&covers[i]);
        int order = compare_places(begin, reached);
        if (order < 0)
            return fail_at(begin, tensors, n_tensors, "two objects are about it", where,
                           err);
        if (order > 0 && must_cover_all)
            return fail_at(reached, tensors, n_tensors, "no object holds it", where, err);
        reached = end_of(&covers[i]);
        if (reached.element > 0 &&
            reached.element == dw_slice_whole(tensors, reached.tensor).n)
            reached = (place){reached.tensor + 1, 0};
    }
    if (must_cover_all && reached.tensor < n_tensors)
        return fail_at(reached, tensors, n_tensors, "no object holds it", where, err);
    return DW_OK;
}

dw_status dw_objects_check(const dw_objects *objects, const dw_tensor *tensors,
                           size_t n_tensors, bool must_cover_all, const char *where,
                           dw_error *err)
{
    const dw_cover everything = {SIZE_MAX, 0, n_tensors};
    size_t n_covers = 0, n = 0;
    dw_status status = DW_OK;
    for (size_t i = 0; i < objects->n && status == DW_OK; i++) {
        const dw_object *o = &objects->items[i];
        n_covers += o->covers ? o->n_covers : 1;
        if (o->covers)
            status =
                dw_covers_check(o->covers, o->n_covers, tensors, n_tensors, where, err);
    }
    if (status != DW_OK)
        return status;
    dw_cover *line = dw_alloc_array(n_covers, sizeof *line);
    if (!line)
        return dw_fail_memory(err, where);
    for (size_t i = 0; i < objects->n; i++) {
        const dw_object *o = &objects->items[i];
        if (!o->covers)
            line[n++] = everything;
        for (size_t c = 0; o->covers && c < o->n_covers; c++)
            line[n++] = o->covers[c];
    }
    if (n > 0)
        qsort(line, n, sizeof *line, compare_begins);
    status = check_line(line, n, tensors, n_tensors, must_cover_all, where, err);
    dw_free(line);
    return status;
}
