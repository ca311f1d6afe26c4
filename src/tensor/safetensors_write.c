#include "tensor/safetensors.h"

#include <inttypes.h>

#include "base/error.h"
#include "base/json.h"
#include "tensor/dtype.h"

int dw_safetensors_compare(const void *left, const void *right)
{
    const dw_tensor *a = left;
    const dw_tensor *b = right;
    unsigned a_rank = dw_dtype_rank(a->dtype);
    unsigned b_rank = dw_dtype_rank(b->dtype);
    if (a_rank != b_rank)
        return a_rank > b_rank ? -1 : 1;
    return strcmp(a->name, b->name);
}

static dw_status check_metadata(const dw_pair *metadata, size_t n_metadata,
                                const char *path, dw_error *err)
{
    for (size_t i = 0; i < n_metadata; i++)
        if (!dw_utf8_valid(metadata[i].key) || !dw_utf8_valid(metadata[i].value))
            return dw_fail(err, DW_INVALID, path, "metadata %zu is not UTF-8", i);
    return DW_OK;
}

/* Refuses tensors that would break the format. */
static dw_status check_tensor(const dw_tensor *tensor, const char *path, dw_error *err)
{
    if (strcmp(tensor->name, "__metadata__") == 0)
        return dw_fail_tensor(err, DW_INVALID, path, tensor->name,
                              "the name is reserved");
    if (!dw_utf8_valid(tensor->name))
        return dw_fail_tensor(err, DW_INVALID, path, tensor->name,
                              "the name is not UTF-8");
    uint64_t n_bytes;
    if (!dw_shape_size(tensor->dtype, tensor->n_dims, tensor->dims, NULL, &n_bytes))
        return dw_fail_tensor(err, DW_INVALID, path, tensor->name,
                              "its dtype and shape have no size in bytes");
    if (n_bytes != tensor->n_bytes)
        return dw_fail_tensor(err, DW_INVALID, path, tensor->name,
                              "shape needs %" PRIu64 " bytes but n_bytes is %" PRIu64,
                              n_bytes, tensor->n_bytes);
    return DW_OK;
}

static void write_metadata(dw_writer *w, const dw_pair *metadata, size_t n_metadata)
{
    dw_write_text(w, "\"__metadata__\":");
    for (size_t i = 0; i < n_metadata; i++) {
        dw_write_u8(w, i == 0 ? '{' : ',');
        dw_write_json_string(w, metadata[i].key);
        dw_write_u8(w, ':');
        dw_write_json_string(w, metadata[i].value);
    }
    dw_write_u8(w, '}');
}

static void write_entry(dw_writer *w, const dw_tensor *tensor, uint64_t begin)
{
    dw_write_json_string(w, tensor->name);
    dw_write_format(w, ":{\"dtype\":\"%s\",\"shape\":[", dw_dtype_name(tensor->dtype));
    for (uint32_t i = 0; i < tensor->n_dims; i++)
        dw_write_format(w, "%s%" PRIu64, i == 0 ? "" : ",", tensor->dims[i]);
    dw_write_format(w, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin,
                    begin + tensor->n_bytes);
}

/* Sets the length of the complete header that begins at START. */
static dw_status set_length(dw_writer *out, size_t start, const char *path, dw_error *err)
{
    uint64_t n_header = out->n_bytes - start - sizeof n_header;
    if (n_header > DW_SAFETENSORS_MAX_HEADER)
        return dw_fail(err, DW_UNSUPPORTED, path,
                       "a header of %" PRIu64 " bytes is over the limit of %u", n_header,
                       DW_SAFETENSORS_MAX_HEADER);
    dw_store64(out->bytes + start, n_header);
    return DW_OK;
}

dw_status dw_safetensors_header(dw_writer *out, const dw_tensor *tensors,
                                size_t n_tensors, const dw_pair *metadata,
                                size_t n_metadata, const char *path, dw_error *err)
{
    size_t start = out->n_bytes;
    dw_status status = check_metadata(metadata, n_metadata, path, err);
    if (status != DW_OK)
        return status;
    dw_write_u64(out, 0); /* the length, set later */
    dw_write_u8(out, '{');
    if (n_metadata > 0)
        write_metadata(out, metadata, n_metadata);
    uint64_t offset = 0;
    for (size_t i = 0; i < n_tensors; i++) {
        status = check_tensor(&tensors[i], path, err);
        if (status != DW_OK)
            return status;
        if (offset + tensors[i].n_bytes > INT64_MAX) /* each is below 2^61 */
            return dw_fail(err, DW_INVALID, path, "the tensors overflow a file");
        if (i > 0 || n_metadata > 0)
            dw_write_u8(out, ',');
        write_entry(out, &tensors[i], offset);
        offset += tensors[i].n_bytes;
    }
    dw_write_u8(out, '}');
    while ((out->n_bytes - start) % 8 != 0 && !out->failed)
        dw_write_u8(out, ' ');
    if (out->failed)
        return dw_fail_memory(err, path);

    return set_length(out, start, path, err);
}
