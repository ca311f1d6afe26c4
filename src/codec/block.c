#include "codec/block.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/element.h"

dw_status dw_block_scratch_init(dw_block_scratch *s, dw_error *err)
{
    *s = (dw_block_scratch){.classes = dw_class_scratch_new()};
    return s->classes ? DW_OK : dw_fail_memory(err, NULL);
}

void dw_block_scratch_release(dw_block_scratch *s)
{
    dw_class_scratch_free(s->classes);
    dw_packed_scratch_free(s->packed);
    dw_free(s->positions);
    dw_free(s->elems);
    dw_free(s->values);
    dw_loan_release(&s->old_elems);
    dw_loan_release(&s->new_elems);
    *s = (dw_block_scratch){0};
}

void dw_note_list(dw_note *note, const dw_decoded *d, const void *old, unsigned width)
{
    for (size_t i = 0; i < d->n_changes; i++)
        dw_digest_move(&note->digest,
                       note->first_byte + (uint64_t)d->positions[i] * width,
                       dw_element_load(old, d->positions[i], width),
                       dw_element_load(d->values, i, width), width);
}

static dw_status need_packed(dw_block_scratch *s, dw_error *err)
{
    if (!s->packed)
        s->packed = dw_packed_scratch_new();
    return s->packed ? DW_OK : dw_fail_memory(err, NULL);
}

static dw_status need_room(dw_block_scratch *s, dw_error *err)
{
    if (!s->positions)
        s->positions =
            dw_alloc_array(DW_BLOCK_ELEMS + DW_LIST_SLACK, sizeof *s->positions);
    if (!s->elems)
        s->elems = dw_alloc(DW_BLOCK_BYTES);
    if (!s->values)
        s->values = dw_alloc(DW_BLOCK_BYTES);
    return s->positions && s->elems && s->values ? DW_OK : dw_fail_memory(err, NULL);
}

dw_status dw_block_scratch_reserve(dw_block_scratch *s, dw_error *err)
{
    dw_status status = need_packed(s, err);
    return status == DW_OK ? need_room(s, err) : status;
}

/* Gets the new elements of a block that was just encoded, as they were read; the caller's
 * memory may have changed since. Moves the encoded bytes E out of the way. */
static dw_status rebuild_new(const uint8_t **out, dw_block_scratch *s, dw_encoded *e,
                             const void *old, uint32_t n, dw_element element,
                             const dw_class_map *map, const dw_note *note, dw_error *err)
{
    *out = old;
    if (note->update_old)
        return DW_OK; /* they already replaced the old ones */
    const size_t n_plain = (size_t)n * element.width;
    dw_status status = need_room(s, err);
    if (status != DW_OK)
        return status;
    if (e->n_bytes <= n_plain) /* else they are not used */
        e->bytes = memcpy(s->values, e->bytes, e->n_bytes);
    const dw_decoded found = dw_class_found(s->classes, old, n, element, map);
    memcpy(s->elems, old, n_plain);
    dw_kernels_get()->scatter[dw_width_index(element.width)](
        s->elems, found.positions, found.values, found.n_changes);
    *out = s->elems;
    return DW_OK;
}

dw_status dw_block_encode(dw_block_code *out, dw_block_scratch *s, void *old,
                          const void *new_, uint32_t n, dw_element element,
                          const dw_class_map *map, dw_note *note, dw_error *err)
{
    dw_encoded e = dw_class_encode(s->classes, old, new_, n, element, map, note);
    *out = (dw_block_code){e.n_changes ? DW_BLOCK_CLASS : DW_BLOCK_SAME, e};
    size_t n_plain = (size_t)n * element.width;
    /* packing saves about a third, so it cannot beat less than half */
    if (e.n_bytes <= n_plain / 2)
        return DW_OK;
    const uint8_t *packed, *elems;
    dw_status status = need_packed(s, err);
    if (status == DW_OK)
        status = rebuild_new(&elems, s, &out->encoded, old, n, element, map, note, err);
    if (status != DW_OK)
        return status;
    size_t n_packed = dw_packed_encode(&packed, s->packed, elems, n, element);
    if (n_packed == 0)
        return dw_fail_memory(err, NULL);
    if (n_packed < e.n_bytes) {
        out->mode = DW_BLOCK_PACKED;
        out->encoded.bytes = packed;
        out->encoded.n_bytes = n_packed;
    }
    if (n_plain < out->encoded.n_bytes) {
        out->mode = DW_BLOCK_STORED;
        out->encoded.bytes = elems;
        out->encoded.n_bytes = n_plain;
    }
    return DW_OK;
}

dw_status dw_block_decode(dw_decoded *out, dw_block_scratch *s, dw_block_mode mode,
                          const uint8_t *bytes, size_t n_bytes, const void *old,
                          uint32_t n, dw_element element, const dw_class_map *map,
                          dw_note *note, dw_error *err)
{
    *out = (dw_decoded){0};
    if (mode == DW_BLOCK_SAME)
        return DW_OK;
    if (mode == DW_BLOCK_CLASS)
        return dw_class_decode(out, s->classes, bytes, n_bytes, old, n, element, map,
                               note)
                   ? DW_OK
                   : DW_CORRUPT;

    dw_status status = need_room(s, err);
    const void *elems = bytes;
    if (status == DW_OK && mode == DW_BLOCK_PACKED) {
        status = need_packed(s, err);
        if (status == DW_OK &&
            !dw_packed_decode(s->elems, s->packed, bytes, n_bytes, n, element))
            status = DW_CORRUPT;
        elems = s->elems;
    } else if (status == DW_OK && n_bytes != (size_t)n * element.width) {
        status = DW_CORRUPT;
    }
    if (status != DW_OK)
        return status;
    /* list the changes, as the other mode does */
    const dw_kernels *k = dw_kernels_get();
    unsigned w = dw_width_index(element.width);
    out->n_changes = k->diff[w](s->positions, old, elems, n);
    k->gather[w](s->values, elems, s->positions, out->n_changes);
    out->positions = s->positions;
    out->values = s->values;
    dw_note_list(note, out, old, element.width);
    return DW_OK;
}
