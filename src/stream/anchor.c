#include "stream/anchor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "tensor/device.h"
#include "tensor/safetensors.h"

/* The header and the offsets of what is in the list. */
static dw_status lay_out(dw_anchor *out, const dw_pair *metadata, size_t n_metadata,
                         dw_error *err)
{
    dw_tensor *list = out->list.tensors;
    if (out->list.n > 0)
        qsort(list, out->list.n, sizeof *list, dw_safetensors_compare);
    dw_status status = dw_safetensors_header(&out->header, list, out->list.n, metadata,
                                             n_metadata, out->where, err);
    out->offsets = dw_alloc_array(out->list.n + 1, sizeof *out->offsets);
    if (status == DW_OK && !out->offsets)
        status = dw_fail_memory(err, out->where);
    if (status != DW_OK) {
        dw_anchor_release(out);
        return status;
    }
    uint64_t at = out->header.n_bytes;
    for (size_t i = 0; i < out->list.n; i++) {
        out->offsets[i] = at;
        at += list[i].n_bytes;
    }
    out->offsets[out->list.n] = out->n_bytes = at;
    return DW_OK;
}

dw_status dw_anchor_open(dw_anchor *out, const dw_tensor *tensors, size_t n_tensors,
                         const dw_slices *slices, const char *where, dw_error *err)
{
    *out = (dw_anchor){0};
    snprintf(out->where, sizeof out->where, "%s", where);
    dw_status status =
        dw_slices_open(&out->list, tensors, n_tensors, slices->items, slices->n, err);
    static const dw_pair format = {"format", "pt"}; /* some loaders ask for it */
    return status == DW_OK ? lay_out(out, &format, 1, err) : status;
}

dw_status dw_anchor_open_file(dw_anchor *out, const dw_tensor *tensors, size_t n_tensors,
                              const dw_pair *metadata, size_t n_metadata,
                              const char *where, dw_error *err)
{
    *out = (dw_anchor){0};
    snprintf(out->where, sizeof out->where, "%s", where);
    out->list.tensors = dw_alloc_array(n_tensors, sizeof *tensors);
    if (!out->list.tensors)
        return dw_fail_memory(err, where);
    out->list.n = n_tensors;
    if (n_tensors > 0)
        memcpy(out->list.tensors, tensors, n_tensors * sizeof *tensors);
    return lay_out(out, metadata, n_metadata, err);
}

void dw_anchor_release(dw_anchor *anchor)
{
    dw_writer_release(&anchor->header);
    dw_slices_release(&anchor->list);
    dw_free(anchor->offsets);
    *anchor = (dw_anchor){0};
}

/* The tensor of the byte at OFFSET, which is after the header. */
static size_t find(const dw_anchor *a, uint64_t offset)
{
    size_t low = 0, high = a->list.n;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (a->offsets[middle] <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The longest run from OFFSET on in one piece of memory: sets *PLACE, returns its length.
 */
static uint64_t run_at(const dw_anchor *a, uint64_t offset, uint64_t n_bytes,
                       dw_place *place)
{
    if (offset < a->header.n_bytes) {
        *place = (dw_place){NULL, a->header.bytes + offset};
        uint64_t n = a->header.n_bytes - offset;
        return n < n_bytes ? n : n_bytes;
    }
    size_t t = find(a, offset);
    *place = (dw_place){a->list.tensors[t].device,
                        (uint8_t *)a->list.tensors[t].data + (offset - a->offsets[t])};
    uint64_t n = a->offsets[t + 1] - offset;
    return n < n_bytes ? n : n_bytes;
}

static dw_status read_anchor(void *context, uint64_t offset, void *into, size_t n_bytes,
                             dw_error *err)
{
    const dw_anchor *a = context;
    uint8_t *to = into;
    while (n_bytes > 0) {
        dw_place place;
        size_t n = (size_t)run_at(a, offset, n_bytes, &place);
        dw_status status = dw_place_copy((dw_place){NULL, to}, place, n, err);
        if (status != DW_OK)
            return status;
        to += n;
        offset += n;
        n_bytes -= n;
    }
    return DW_OK;
}

dw_source dw_anchor_source(dw_anchor *anchor)
{
    return (dw_source){
        .n_bytes = anchor->n_bytes, .read = read_anchor, .context = anchor};
}

dw_status dw_anchor_take(void *context, uint64_t offset, const uint8_t *bytes,
                         size_t n_bytes, dw_error *err)
{
    dw_anchor *a = context;
    while (n_bytes > 0) {
        dw_place place;
        size_t n = (size_t)run_at(a, offset, n_bytes, &place);
        if (offset < a->header.n_bytes) {
            if (memcmp(place.data, bytes, n) != 0)
                return dw_fail(err, DW_CORRUPT, a->where,
                               "the anchor's header is not the one that its record asks "
                               "for");
        } else {
            const dw_place from = {NULL, (void *)(uintptr_t)bytes};
            dw_status status = dw_place_copy(place, from, n, err);
            if (status != DW_OK)
                return status;
        }
        bytes += n;
        offset += n;
        n_bytes -= n;
    }
    return DW_OK;
}

/* ---- what the bytes of a file are ---- */

dw_status dw_anchor_check_open(dw_anchor_check *out, const dw_anchor *anchor,
                               dw_error *err)
{
    *out = (dw_anchor_check){.anchor = anchor};
    out->shares = dw_alloc_zeroed(anchor->list.n, sizeof *out->shares);
    return out->shares ? DW_OK : dw_fail_memory(err, anchor->where);
}

void dw_anchor_check_release(dw_anchor_check *check)
{
    dw_free(check->shares);
    *check = (dw_anchor_check){0};
}

dw_status dw_anchor_check_take(void *context, uint64_t offset, const uint8_t *bytes,
                               size_t n_bytes, dw_error *err)
{
    dw_anchor_check *c = context;
    const dw_anchor *a = c->anchor;
    if (offset == 0) { /* perhaps not for the first time */
        c->at = 0;
        memset(c->shares, 0, a->list.n * sizeof *c->shares);
    }
    if (offset < a->header.n_bytes) {
        uint64_t left = a->header.n_bytes - offset;
        size_t n = left < n_bytes ? (size_t)left : n_bytes;
        if (memcmp(a->header.bytes + offset, bytes, n) != 0)
            return dw_fail(err, DW_CORRUPT, a->where,
                           "the anchor's header is not the one that its record asks for");
        offset += n;
        bytes += n;
        n_bytes -= n;
    }
    while (n_bytes > 0) {
        while (a->offsets[c->at + 1] <= offset)
            c->at++;
        const dw_tensor *t = &a->list.tensors[c->at];
        uint64_t left = a->offsets[c->at + 1] - offset;
        size_t n = left < n_bytes ? (size_t)left : n_bytes;
        uint64_t inside = t->first_byte + (offset - a->offsets[c->at]);
        c->shares[c->at] =
            dw_digest_plus(c->shares[c->at], dw_digest_share(bytes, n, inside));
        offset += n;
        bytes += n;
        n_bytes -= n;
    }
    return DW_OK;
}
