/* The table of a stream's tensors.
 *
 *     arena: dims of all tensors | names
 */
#include "sync/record_parts.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/mem.h"

#define MAX_NAME 1024 /* as in deltas */

/* The free rest of the arena. */
typedef struct cursor {
    uint64_t *dims;
    char *text;
} cursor;

/* "...[12:34]" is how a slice is called. */
static bool is_slice_name(const char *name)
{
    static const char digits[] = "0123456789";
    const char *bracket = strrchr(name, '[');
    if (!bracket)
        return false;
    size_t n_first = strspn(bracket + 1, digits);
    const char *at = bracket + 1 + n_first;
    if (n_first == 0 || *at != ':')
        return false;
    size_t n_end = strspn(at + 1, digits);
    return n_end > 0 && strcmp(at + 1 + n_end, "]") == 0;
}

/* Entries are not checked yet: what is not of the expected kind counts as empty. The sums
 * count parts of a record of at most 64 MiB. */
static bool allocate(dw_stream_record *out, cursor *rest, const json_t *list)
{
    size_t n = json_array_size(list), n_dims = 0, n_text = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = json_array_get(list, i);
        n_text += json_string_length(json_array_get(entry, 0)) + 1;
        n_dims += json_array_size(json_array_get(entry, 2));
    }
    out->tensors = dw_alloc_zeroed(n, sizeof *out->tensors);
    out->arena = dw_alloc(n_dims * sizeof(uint64_t) + n_text);
    if (!out->tensors || !out->arena)
        return false;
    rest->dims = out->arena;
    rest->text = (char *)(rest->dims + n_dims);
    return true;
}

static const char *read_name(dw_tensor *out, cursor *rest, const json_t *value)
{
    size_t n = json_string_length(value);
    if (!json_is_string(value))
        return "has no string for a name";
    if (n > MAX_NAME)
        return "has a name over the limit of 1024 bytes";
    memcpy(rest->text, json_string_value(value), n + 1);
    out->name = rest->text;
    rest->text += n + 1;
    if (is_slice_name(out->name))
        return "has a name that ends as those of slices do, in [DIGITS:DIGITS]";
    return NULL;
}

static const char *read_shape(dw_tensor *out, cursor *rest, const json_t *shape)
{
    if (!json_is_array(shape))
        return "has a shape that is no array";
    size_t n_dims = json_array_size(shape);
    if (n_dims > DW_MAX_DIMS)
        return "has more than 64 dimensions";
    out->dims = rest->dims;
    out->n_dims = (uint32_t)n_dims;
    for (size_t i = 0; i < n_dims; i++)
        if (!dw_json_number(rest->dims++, json_array_get(shape, i)))
            return "has a dimension that is no integer from 0 to 2^53 - 1";
    uint64_t n_elems;
    if (!dw_shape_size(out->dtype, out->n_dims, out->dims, &n_elems, &out->n_bytes))
        return "has a shape that overflows or does not fill whole bytes";
    if (n_elems >= DW_NUMBER_END)
        return "has 2^53 elements or more";
    return NULL;
}

/* The fault, or NULL. */
static const char *read_tensor(dw_tensor *out, cursor *rest, const json_t *entry,
                               dw_status *code)
{
    *code = DW_CORRUPT;
    if (json_array_size(entry) != 3)
        return "is not [name, dtype, [dims]]";
    const char *fault = read_name(out, rest, json_array_get(entry, 0));
    if (fault)
        return fault;
    const char *dtype = json_string_value(json_array_get(entry, 1));
    if (!dtype)
        return "has no string for a dtype";
    if (!dw_dtype_from_name(&out->dtype, dtype)) {
        *code = DW_UNSUPPORTED;
        return "has a dtype that is not known here";
    }
    return read_shape(out, rest, json_array_get(entry, 2));
}

void dw_field_tensors(dw_fields *f, dw_stream_record *out)
{
    const json_t *list = dw_field_array(f, "tensors");
    size_t n = json_array_size(list);
    cursor rest = {0};
    if (n == 0)
        dw_fields_fail(f, DW_CORRUPT, "tensors", "is empty");
    if (n > DW_MAX_TENSORS)
        dw_fields_fail(f, DW_CORRUPT, "tensors", "has %zu entries, over the limit of %d",
                       n, DW_MAX_TENSORS);
    if (f->status == DW_OK && !allocate(out, &rest, list))
        dw_fields_fail_memory(f);
    uint64_t total = 0;
    for (size_t i = 0; i < n && f->status == DW_OK; i++) {
        dw_tensor *t = &out->tensors[i];
        dw_status code;
        const char *fault = read_tensor(t, &rest, json_array_get(list, i), &code);
        char entry[40];
        snprintf(entry, sizeof entry, "tensors[%zu]", i);
        if (fault)
            dw_fields_fail(f, code, entry, "%s", fault);
        else if (i > 0 && strcmp(t[-1].name, t->name) >= 0)
            dw_fields_fail(f, DW_CORRUPT, entry,
                           "has a name that does not come behind the one before");
        else if (__builtin_add_overflow(total, t->n_bytes, &total))
            dw_fields_fail(f, DW_CORRUPT, entry, "makes the model overflow 64 bits");
    }
    if (f->status == DW_OK)
        out->n_tensors = n;
}

void dw_write_tensors(dw_writer *out, const dw_tensor *tensors, size_t n_tensors)
{
    dw_write_u8(out, '[');
    for (size_t i = 0; i < n_tensors; i++) {
        const dw_tensor *t = &tensors[i];
        dw_write_text(out, i ? ",[" : "[");
        dw_write_json_string(out, t->name);
        dw_write_format(out, ",\"%s\",[", dw_dtype_name(t->dtype));
        for (uint32_t d = 0; d < t->n_dims; d++)
            dw_write_format(out, "%s%" PRIu64, d ? "," : "", t->dims[d]);
        dw_write_text(out, "]]");
    }
    dw_write_u8(out, ']');
}
