#include "codec/delta.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/trl_delta.h"

dw_delta *dw_delta_new(const char *label)
{
    dw_delta *delta = dw_alloc_zeroed(1, sizeof *delta);
    if (!delta)
        return NULL;
    delta->label = dw_copy_string(label);
    if (!delta->label) {
        dw_free(delta);
        return NULL;
    }
    return delta;
}

void dw_delta_close(dw_delta *delta)
{
    if (!delta)
        return;
    dw_safetensors_release(&delta->file);
    dw_writer_release(&delta->header);
    dw_writer_release(&delta->index);
    for (size_t i = 0; i < delta->n_owned; i++)
        dw_free(delta->owned[i]);
    dw_free(delta->owned);
    for (size_t i = 0; i < delta->n_parts; i++)
        dw_delta_close(delta->parts[i]);
    dw_free(delta->parts);
    dw_free(delta->label);
    dw_free(delta);
}

dw_status dw_delta_own(dw_delta *delta, void *pointer, dw_error *err)
{
    /* the capacity doubles: at a power of two the array is full */
    size_t n = delta->n_owned;
    if ((n & (n - 1)) == 0) {
        void **owned = dw_realloc_array(delta->owned, n ? 2 * n : 1, sizeof *owned);
        if (!owned) {
            dw_free(pointer);
            return dw_fail_memory(err, delta->label);
        }
        delta->owned = owned;
    }
    delta->owned[delta->n_owned++] = pointer;
    return DW_OK;
}

void *dw_delta_alloc(dw_delta *delta, size_t n_items, size_t n_bytes, dw_error *err)
{
    void *pointer = dw_alloc_zeroed(n_items, n_bytes);
    if (!pointer) {
        dw_fail_memory(err, delta->label);
        return NULL;
    }
    return dw_delta_own(delta, pointer, err) == DW_OK ? pointer : NULL;
}

int dw_entry_compare(const void *left, const void *right)
{
    const dw_delta_entry *a = left, *b = right;
    return strcmp(a->shape.name, b->shape.name);
}

uint64_t dw_entry_units(const dw_delta_entry *entry)
{
    return entry->shape.n_bytes / entry->element.width;
}

uint64_t dw_block_count(uint64_t n_units, unsigned width)
{
    uint64_t n = dw_block_elems(width);
    return n_units / n + (n_units % n != 0);
}

dw_span dw_block_span(uint64_t n_units, unsigned width, uint64_t block)
{
    uint64_t n = dw_block_elems(width), first = block * n;
    return (dw_span){first, (uint32_t)(n_units - first < n ? n_units - first : n)};
}

const char *dw_codec_name(dw_codec codec)
{
    switch (codec) {
    case DW_CODEC_CLASS:
        return "class";
    case DW_CODEC_GAP:
        return "gap";
    case DW_CODEC_RAW:
        return "raw";
    }
    return "?";
}

void dw_delta_get_info(const dw_delta *delta, dw_delta_info *out)
{
    *out = delta->info;
}

void dw_delta_tensor(const dw_delta *delta, size_t i, dw_delta_tensor_info *out)
{
    const dw_delta_entry *e = &delta->entries[i];
    *out = (dw_delta_tensor_info){
        .name = e->shape.name,
        .has_shape = e->has_shape,
        .dtype = e->shape.dtype,
        .n_dims = e->shape.n_dims,
        .dims = e->shape.dims,
        .n_elems = e->has_shape ? dw_entry_units(e) : 0,
        .n_changed = e->n_changed,
        .base_digest = e->base_digest,
        .new_digest = e->new_digest,
        .n_blocks = e->n_blocks,
    };
    for (uint64_t b = 0; b < e->n_blocks; b++) {
        const dw_delta_block *block = &e->blocks[b];
        out->n_bytes += block->n_bytes;
        out->n_class_blocks += block->mode == DW_BLOCK_CLASS;
        out->n_packed_blocks += block->mode == DW_BLOCK_PACKED;
        out->n_stored_blocks += block->mode == DW_BLOCK_STORED;
    }
    if (delta->info.codec != DW_CODEC_CLASS)
        out->n_bytes =
            e->n_changed * ((e->index_kind == DW_TRL_GAP16 ? 2 : 4) + e->element.width);
}

/* ---- files ---- */

static dw_status read_file(dw_delta *delta, const void *bytes, size_t n_bytes,
                           dw_error *err)
{
    dw_status status =
        dw_safetensors_parse(&delta->file, bytes, n_bytes, delta->label, err);
    if (status != DW_OK)
        return status;
    dw_piece *piece = dw_delta_alloc(delta, 1, sizeof *piece, err);
    if (!piece)
        return DW_NO_MEMORY;
    *piece = (dw_piece){.bytes = bytes, .n_bytes = n_bytes};
    dw_delta_set_pieces(delta, piece, 1);
    if (dw_container_detect(&delta->file))
        return dw_container_read(delta, err);
    if (dw_trl_detect(&delta->file))
        return dw_trl_read(delta, err);
    return dw_fail(err, DW_UNSUPPORTED, delta->label,
                   "a safetensors file, but not a delta: its metadata names neither "
                   "deltawire's nor TRL's format");
}

dw_status dw_delta_open_bytes(dw_delta **out, const void *bytes, size_t n_bytes,
                              const char *label, dw_error *err)
{
    *out = NULL;
    dw_delta *delta = dw_delta_new(label ? label : "delta");
    if (!delta)
        return dw_fail_memory(err, label);
    dw_status status = read_file(delta, bytes, n_bytes, err);
    if (status != DW_OK)
        dw_delta_close(delta);
    else
        *out = delta;
    return status;
}

dw_status dw_delta_open(dw_delta **out, const char *path, dw_error *err)
{
    *out = NULL;
    dw_delta *delta = dw_delta_new(path);
    if (!delta)
        return dw_fail_memory(err, path);
    uint8_t *bytes;
    size_t n_bytes;
    dw_status status = dw_read_file(&bytes, &n_bytes, path, SIZE_MAX, err);
    if (status == DW_OK)
        status = dw_delta_own(delta, bytes, err);
    if (status == DW_OK)
        status = read_file(delta, bytes, n_bytes, err);
    if (status != DW_OK)
        dw_delta_close(delta);
    else
        *out = delta;
    return status;
}

void dw_delta_set_pieces(dw_delta *delta, dw_piece *pieces, size_t n_pieces)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < n_pieces; i++) {
        pieces[i].offset = offset;
        offset += pieces[i].n_bytes;
    }
    delta->pieces = pieces;
    delta->n_pieces = n_pieces;
    delta->info.n_bytes = offset;
}

dw_status dw_delta_read_at(void *of, uint64_t offset, void *into, size_t n_bytes,
                           dw_error *err)
{
    const dw_delta *delta = of;
    if (offset > delta->info.n_bytes || n_bytes > delta->info.n_bytes - offset)
        return dw_fail(err, DW_INVALID, delta->label,
                       "%zu bytes from %" PRIu64 " on pass its end at %" PRIu64, n_bytes,
                       offset, delta->info.n_bytes);
    size_t low = 0, high = delta->n_pieces;
    while (high - low > 1) { /* the last piece that begins at OFFSET or before */
        size_t middle = low + (high - low) / 2;
        if (delta->pieces[middle].offset <= offset)
            low = middle;
        else
            high = middle;
    }
    uint8_t *to = into;
    for (size_t i = low; n_bytes > 0; i++) {
        const dw_piece *p = &delta->pieces[i];
        const size_t skip = (size_t)(offset - p->offset);
        const size_t n = p->n_bytes - skip < n_bytes ? p->n_bytes - skip : n_bytes;
        if (n > 0)
            memcpy(to, (const uint8_t *)p->bytes + skip, n);
        to += n;
        offset += n;
        n_bytes -= n;
    }
    return DW_OK;
}

dw_status dw_delta_write(const dw_delta *delta, dw_sink sink, void *context,
                         dw_error *err)
{
    for (size_t i = 0; i < delta->n_pieces; i++) {
        const dw_piece *p = &delta->pieces[i];
        dw_status status = p->n_bytes ? sink(context, p->bytes, p->n_bytes, err) : DW_OK;
        if (status != DW_OK)
            return status;
    }
    return DW_OK;
}

/* Pieces are joined before they are written: a delta may have thousands of small ones. */
typedef struct file_sink {
    dw_new_file file;
    dw_writer joined;
} file_sink;

#define JOIN_BYTES (1u << 20)

static dw_status flush(file_sink *s, dw_error *err)
{
    dw_status status = s->joined.failed ? dw_fail_memory(err, s->file.path)
                                        : dw_new_file_write(&s->file, s->joined.bytes,
                                                            s->joined.n_bytes, err);
    s->joined.n_bytes = 0;
    return status;
}

static dw_status sink_to_file(void *context, const void *bytes, size_t n_bytes,
                              dw_error *err)
{
    file_sink *s = context;
    dw_status status = DW_OK;
    if (s->joined.n_bytes + n_bytes > JOIN_BYTES)
        status = flush(s, err);
    if (status == DW_OK && n_bytes > JOIN_BYTES)
        return dw_new_file_write(&s->file, bytes, n_bytes, err);
    dw_write_bytes(&s->joined, bytes, n_bytes);
    return status;
}

dw_status dw_delta_save(const dw_delta *delta, const char *path, dw_error *err)
{
    file_sink s = {0};
    dw_status status = dw_new_file_open(&s.file, path, err);
    if (status != DW_OK)
        return status;
    status = dw_delta_write(delta, sink_to_file, &s, err);
    if (status == DW_OK)
        status = flush(&s, err);
    dw_writer_release(&s.joined);
    if (status != DW_OK) {
        dw_new_file_abort(&s.file);
        return status;
    }
    return dw_new_file_commit(&s.file, err);
}
