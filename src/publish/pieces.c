#include "publish/pieces.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"

static dw_status cut_groups(dw_pieces *p, const dw_grain *grains, uint64_t group_bytes,
                            dw_error *err)
{
    dw_cut at = {0};
    dw_slices group = {0};
    size_t n_room = 0;
    dw_status status = DW_OK;
    while (status == DW_OK) {
        status = dw_cut_next(&group, &at, &p->owned, p->table, grains, group_bytes, err);
        if (status != DW_OK || group.n == 0)
            break;
        if (!dw_grow_array((void **)&p->groups, &n_room, p->n_groups, sizeof *p->groups))
            status = dw_fail_memory(err, NULL);
        else
            p->groups[p->n_groups++] = (dw_piece_group){p->cut.n, group.n};
        for (size_t i = 0; status == DW_OK && i < group.n; i++)
            status = dw_slices_append(&p->cut, group.items[i], err);
    }
    dw_slices_free(&group);
    return status;
}

dw_status dw_pieces_open(dw_pieces *out, const dw_tensor *table, size_t n_table,
                         dw_slices *owned, const dw_grain *grains, uint64_t group_bytes,
                         dw_error *err)
{
    *out = (dw_pieces){.table = table, .n_table = n_table, .owned = *owned};
    *owned = (dw_slices){0};
    dw_status status = cut_groups(out, grains, group_bytes, err);
    if (status == DW_OK)
        status =
            dw_slices_open(&out->shapes, table, n_table, out->cut.items, out->cut.n, err);
    if (status != DW_OK)
        dw_pieces_release(out);
    return status;
}

void dw_pieces_release(dw_pieces *p)
{
    dw_slices_free(&p->owned);
    dw_slices_free(&p->cut);
    dw_slices_release(&p->shapes);
    dw_free(p->groups);
    *p = (dw_pieces){0};
}

void dw_pieces_view(const dw_pieces *p, dw_tensor *views, void *const *data)
{
    dw_pieces_view_as(p, views, data, NULL);
}

/* The bytes of N_BYTES of type FROM, if their elements had type TO. */
static uint64_t bytes_as(dw_dtype from, dw_dtype to, uint64_t n_bytes)
{
    return from == to ? n_bytes
                      : n_bytes * 8 / dw_dtype_bits(from) * dw_dtype_bits(to) / 8;
}

/* The owned slice that contains piece I; K is that of the piece before, as both ascend.
 */
static size_t owned_by(const dw_pieces *p, size_t i, size_t k)
{
    const dw_slice *piece = &p->cut.items[i];
    const dw_slice *owned = &p->owned.items[k];
    while (owned->tensor != piece->tensor ||
           piece->first + piece->n > owned->first + owned->n)
        owned = &p->owned.items[++k];
    return k;
}

void dw_pieces_place(const dw_pieces *p, dw_tensor *views, dw_device *const *devices)
{
    for (size_t i = 0, k = 0; i < p->cut.n; i++) {
        k = owned_by(p, i, k);
        views[i].device = devices[k];
    }
}

void dw_pieces_view_as(const dw_pieces *p, dw_tensor *views, void *const *data,
                       const dw_dtype *types)
{
    for (size_t i = 0, k = 0; i < p->cut.n; i++) {
        k = owned_by(p, i, k);
        const dw_slice *piece = &p->cut.items[i];
        const dw_slice *owned = &p->owned.items[k];
        const dw_slice before = {owned->tensor, 0, piece->first - owned->first};
        const dw_dtype from = p->table[piece->tensor].dtype;
        const dw_dtype to = types ? types[piece->tensor] : from;
        views[i] = p->shapes.tensors[i];
        views[i].dtype = to;
        views[i].n_bytes = bytes_as(from, to, views[i].n_bytes);
        views[i].first_byte = bytes_as(from, to, views[i].first_byte);
        views[i].data = views[i].n_bytes > 0 && data[k]
                            ? (uint8_t *)data[k] +
                                  bytes_as(from, to, dw_slice_bytes(p->table, &before))
                            : NULL;
    }
}

uint64_t dw_pieces_group_room(const dw_pieces *p)
{
    uint64_t most = 64;
    for (size_t g = 0; g < p->n_groups; g++) {
        uint64_t n = 0;
        for (size_t i = 0; i < p->groups[g].n; i++)
            n += dw_padded(p->shapes.tensors[p->groups[g].first + i].n_bytes);
        most = n > most ? n : most;
    }
    return most;
}

dw_digest dw_pieces_share(const dw_pieces *p, const dw_digest *digests)
{
    return dw_slices_share(p->table, p->cut.items, digests, p->cut.n);
}

dw_digest dw_pieces_state(const dw_pieces *p, const dw_digest *digests)
{
    return dw_digest_plus(dw_state_floor(p->table, p->n_table),
                          dw_pieces_share(p, digests));
}
