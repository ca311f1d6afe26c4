#include "cuda/cuda_encode.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "codec/packed_block.h"
#include "cuda/cuda_digest.h"

#define ELEMS_A_CHANGE 16 /* for which the default list of changes has room */

/* Memory of the device. */
typedef struct room {
    cu_pointer tensors, blocks, block_of, strips, codes, counters;
    cu_pointer places, ranks, moves, sorted_ranks, sorted_moves;
    cu_pointer bytes, out;
    uint64_t n_entries, n_bytes;
} room;

typedef struct run {
    dw_cuda_encoder *e;
    dw_cuda *c;
    const dw_encode_job *job;
    dw_encode_item *items;
    dw_cuda_tensor *tensors; /* [pairs] */
    dw_cuda_block *blocks;   /* [items] */
    uint32_t *block_of;      /* [strips] */
    dw_cuda_code *codes;     /* [items] */
    size_t *item_of;         /* [items]: the item of each block of this round */
    bool *is_done;           /* [items] */
    uint8_t *out;            /* what one round wrote */
    uint64_t n_out;
    uint32_t move_bytes;
    uint64_t counters[DW_CUDA_COUNTERS];
    dw_packed_scratch *packed;
    uint8_t *elems; /* [DW_BLOCK_BYTES] */
    room room;
} run;

static uint32_t strips_of(const dw_cuda_block *b)
{
    const uint32_t elems = DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(b->width);
    return (b->n + elems - 1) / elems;
}

static dw_cuda_block block_of_item(const run *r, const dw_encode_item *it)
{
    const dw_encode_pair *pair = &r->job->pairs[it->pair];
    const dw_element element = dw_dtype_element(pair->base.dtype);
    const dw_span span =
        dw_block_span(dw_tensor_units(&pair->base), element.width, it->block);
    const bool is_rounded = pair->next.dtype != pair->base.dtype;
    return (dw_cuda_block){
        .old = (uint8_t *)pair->base.data + span.first * element.width,
        .new_ = (const uint8_t *)pair->next.data +
                span.first * (is_rounded ? sizeof(float) : element.width),
        .first_byte = pair->base.first_byte + span.first * element.width,
        .n = span.n,
        .tensor = (uint32_t)it->pair,
        .width = (uint8_t)element.width,
        .is_float = element.is_float,
        .round_new = is_rounded};
}

/* ---- memory ---- */

static dw_status alloc_host(run *r, size_t n_items, dw_error *err)
{
    uint64_t n_strips = 0;
    for (size_t i = 0; i < n_items; i++) {
        const dw_cuda_block b = block_of_item(r, &r->items[i]);
        n_strips += strips_of(&b);
    }
    r->tensors = dw_alloc_zeroed(r->job->n_pairs, sizeof *r->tensors);
    r->blocks = dw_alloc_zeroed(n_items, sizeof *r->blocks);
    r->block_of = dw_alloc_array((size_t)n_strips, sizeof *r->block_of);
    r->codes = dw_alloc_zeroed(n_items, sizeof *r->codes);
    r->item_of = dw_alloc_array(n_items, sizeof *r->item_of);
    r->is_done = dw_alloc_zeroed(n_items, sizeof *r->is_done);
    r->elems = dw_alloc(DW_BLOCK_BYTES);
    return r->tensors && r->blocks && r->block_of && r->codes && r->item_of &&
                   r->is_done && r->elems
               ? DW_OK
               : dw_fail_memory(err, r->c->where);
}

static dw_status alloc_bytes(run *r, uint64_t n_bytes, dw_error *err)
{
    dw_cuda_free(r->c, &r->room.bytes);
    dw_cuda_free(r->c, &r->room.out);
    r->room.n_bytes = n_bytes;
    dw_status status =
        dw_cuda_alloc(&r->room.bytes, r->c, n_bytes, "symbols and bits", err);
    if (status == DW_OK)
        status = dw_cuda_alloc(&r->room.out, r->c, n_bytes, "encoded bytes", err);
    return status;
}

static dw_status alloc_device(run *r, size_t n_items, dw_error *err)
{
    uint64_t n_elems = 0, n_strips = 0, n_most = 0;
    r->move_bytes = 4;
    for (size_t i = 0; i < n_items; i++) {
        const dw_cuda_block b = block_of_item(r, &r->items[i]);
        n_elems += b.n;
        n_strips += strips_of(&b);
        n_most = b.n > n_most ? b.n : n_most;
        if (b.width == 8)
            r->move_bytes = 8;
    }
    /* a whole block must have room in any case */
    uint64_t n = r->e->n_entries ? r->e->n_entries : n_elems / ELEMS_A_CHANGE + 1;
    n = n < n_most ? n_most : n;
    room *m = &r->room;
    m->n_entries = n < n_elems ? n : n_elems;
    n = m->n_entries;
    const struct {
        cu_pointer *out;
        uint64_t n_bytes;
        const char *what;
    } list[] = {
        {&m->tensors, r->job->n_pairs * sizeof *r->tensors, "a list of tensors"},
        {&m->blocks, n_items * sizeof *r->blocks, "a list of blocks"},
        {&m->block_of, n_strips * sizeof *r->block_of, "a list of strips"},
        {&m->strips, n_strips * sizeof(dw_cuda_strip), "a list of strips"},
        {&m->codes, n_items * sizeof *r->codes, "a list of blocks"},
        {&m->counters, DW_CUDA_COUNTERS * sizeof(uint64_t), "counters"},
        {&m->places, n * sizeof(uint32_t), "a list of changes"},
        {&m->ranks, n * sizeof(uint16_t), "a list of changes"},
        {&m->moves, n * r->move_bytes, "a list of changes"},
        {&m->sorted_ranks, n * sizeof(uint32_t), "a list of changes"},
        {&m->sorted_moves, n * r->move_bytes, "a list of changes"},
    };
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < sizeof list / sizeof list[0]; i++)
        status = dw_cuda_alloc(list[i].out, r->c, list[i].n_bytes, list[i].what, err);
    /* about what 8 bytes for each change and a little for each block come to; if it is
     * too little, the device reports how much it needs */
    return status == DW_OK ? alloc_bytes(r, 8 * n + 1024 * (uint64_t)n_items, err)
                           : status;
}

static void release(run *r)
{
    room *m = &r->room;
    cu_pointer *const list[] = {
        &m->tensors,      &m->blocks,       &m->block_of, &m->strips, &m->codes,
        &m->counters,     &m->places,       &m->ranks,    &m->moves,  &m->bytes,
        &m->sorted_ranks, &m->sorted_moves, &m->out};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        dw_cuda_free(r->c, list[i]);
    dw_free(r->tensors);
    dw_free(r->blocks);
    dw_free(r->block_of);
    dw_free(r->codes);
    dw_free(r->item_of);
    dw_free(r->is_done);
    dw_free(r->elems);
    dw_free(r->out);
    dw_packed_scratch_free(r->packed);
}

/* ---- a round ---- */

static dw_cuda_encode_job device_job(const run *r, size_t n_blocks)
{
    const room *m = &r->room;
    return (dw_cuda_encode_job){.constants = dw_cuda_address(r->c->constants),
                                .tensors = dw_cuda_address(m->tensors),
                                .blocks = dw_cuda_address(m->blocks),
                                .block_of = dw_cuda_address(m->block_of),
                                .strips = dw_cuda_address(m->strips),
                                .codes = dw_cuda_address(m->codes),
                                .counters = dw_cuda_address(m->counters),
                                .n_blocks = (uint32_t)n_blocks,
                                .move_bytes = r->move_bytes,
                                .n_entries = m->n_entries,
                                .places = dw_cuda_address(m->places),
                                .ranks = dw_cuda_address(m->ranks),
                                .moves = dw_cuda_address(m->moves),
                                .sorted_ranks = dw_cuda_address(m->sorted_ranks),
                                .sorted_moves = dw_cuda_address(m->sorted_moves),
                                .n_room = m->n_bytes,
                                .bytes = dw_cuda_address(m->bytes),
                                .out = dw_cuda_address(m->out)};
}

/* Lists the blocks of a round: all that are left, or with IS_SURE only as many as have
 * room for all their elements. Returns their number. */
static size_t list_blocks(run *r, size_t n_items, bool is_sure, uint64_t *n_strips)
{
    size_t n = 0;
    uint64_t n_elems = 0;
    *n_strips = 0;
    for (size_t i = 0; i < n_items; i++) {
        if (r->is_done[i])
            continue;
        dw_cuda_block b = block_of_item(r, &r->items[i]);
        n_elems += b.n;
        if (is_sure && n_elems > r->room.n_entries)
            break;
        b.first_strip = (uint32_t)*n_strips;
        for (uint32_t k = 0; k < strips_of(&b); k++)
            r->block_of[(*n_strips)++] = (uint32_t)n;
        r->item_of[n] = i;
        r->blocks[n++] = b;
    }
    return n;
}

static dw_status upload_round(run *r, size_t n, uint64_t n_strips, dw_error *err)
{
    const room *m = &r->room;
    dw_status status = dw_cuda_up(r->c, m->blocks, r->blocks, n * sizeof *r->blocks, err);
    if (status == DW_OK)
        status = dw_cuda_up(r->c, m->block_of, r->block_of,
                            n_strips * sizeof *r->block_of, err);
    if (status == DW_OK)
        status = dw_cuda_zero(r->c, m->codes, n * sizeof *r->codes, err);
    if (status == DW_OK)
        status =
            dw_cuda_zero(r->c, m->counters, DW_CUDA_COUNTERS * sizeof(uint64_t), err);
    return status;
}

/* Codes the list of changes; again with more room for bytes if there was too little. */
static dw_status code_round(run *r, size_t n, dw_error *err)
{
    for (;;) {
        const dw_cuda_encode_job job = device_job(r, n);
        const room *m = &r->room;
        dw_status status = dw_cuda_launch(r->c, DW_CUDA_MODEL, n, &job, err);
        if (status == DW_OK)
            status = dw_cuda_launch(r->c, DW_CUDA_ANS, n, &job, err);
        if (status == DW_OK)
            status = dw_cuda_launch(r->c, DW_CUDA_PACK, n, &job, err);
        if (status == DW_OK)
            status = dw_cuda_down(r->c, r->codes, m->codes, n * sizeof *r->codes, err);
        if (status == DW_OK)
            status =
                dw_cuda_down(r->c, r->counters, m->counters, sizeof r->counters, err);
        if (status == DW_OK)
            status = dw_cuda_wait(r->c, err);
        if (status != DW_OK || r->counters[DW_CUDA_BYTES] <= m->n_bytes)
            return status;
        status = alloc_bytes(r, r->counters[DW_CUDA_BYTES], err);
        if (status == DW_OK) /* all but the list of changes starts again */
            status =
                dw_cuda_zero(r->c, m->counters + DW_CUDA_SORTED * sizeof(uint64_t),
                             (DW_CUDA_COUNTERS - DW_CUDA_SORTED) * sizeof(uint64_t), err);
        if (status != DW_OK)
            return status;
    }
}

static dw_status fetch_round(run *r, size_t n, dw_error *err)
{
    const uint64_t n_bytes = n ? r->codes[n - 1].out + r->codes[n - 1].n_bytes : 0;
    if (n_bytes > r->n_out) {
        dw_free(r->out);
        r->n_out = 0;
        r->out = dw_alloc((size_t)n_bytes);
        if (!r->out)
            return dw_fail_memory(err, r->c->where);
        r->n_out = n_bytes;
    }
    dw_status status = dw_cuda_down(r->c, r->out, r->room.out, n_bytes, err);
    return status == DW_OK ? dw_cuda_wait(r->c, err) : status;
}

/* Takes the smallest form of a block, as dw_block_encode does: the class bytes, or a
 * dense form of the new elements, which are in the base now. */
static dw_status choose_form(run *r, dw_encode_item *it, const dw_cuda_block *b,
                             const uint8_t **bytes, dw_error *err)
{
    const uint32_t n_plain = b->n * b->width;
    it->mode = DW_BLOCK_CLASS;
    if (it->n_bytes <= n_plain / 2)
        return DW_OK;
    if (!r->packed)
        r->packed = dw_packed_scratch_new();
    if (!r->packed)
        return dw_fail_memory(err, r->c->where);
    const uint8_t *packed;
    dw_status status =
        dw_cuda_down(r->c, r->elems, (cu_pointer)(uintptr_t)b->old, n_plain, err);
    if (status == DW_OK)
        status = dw_cuda_wait(r->c, err);
    if (status != DW_OK)
        return status;
    r->e->n_dense++;
    const size_t n_packed =
        dw_packed_encode(&packed, r->packed, r->elems, b->n,
                         dw_dtype_element(r->job->pairs[it->pair].base.dtype));
    if (n_packed == 0)
        return dw_fail_memory(err, r->c->where);
    if (n_packed < it->n_bytes) {
        it->mode = DW_BLOCK_PACKED;
        it->n_bytes = (uint32_t)n_packed;
        *bytes = packed;
    }
    if (n_plain < it->n_bytes) {
        it->mode = DW_BLOCK_STORED;
        it->n_bytes = n_plain;
        *bytes = r->elems;
    }
    return DW_OK;
}

static dw_status take_block(run *r, size_t i, dw_error *err)
{
    const dw_cuda_code *code = &r->codes[i];
    const dw_cuda_block *b = &r->blocks[i];
    dw_encode_item *it = &r->items[r->item_of[i]];
    r->is_done[r->item_of[i]] = true;
    it->n_changed = code->n_changes;
    it->n_bytes = code->n_bytes;
    it->mode = DW_BLOCK_SAME;
    if (it->n_changed == 0)
        return DW_OK;
    const uint64_t sum =
        dw_digest_reduce(((unsigned __int128)code->digest[1] << 32) + code->digest[0]);
    it->move_share =
        dw_digest_times(dw_digest_power(b->first_byte / DW_DIGEST_CHUNK), sum);
    const uint8_t *bytes = r->out + code->out;
    dw_status status = choose_form(r, it, b, &bytes, err);
    if (status != DW_OK)
        return status;
    it->bytes = dw_alloc(it->n_bytes);
    if (!it->bytes)
        return dw_fail_memory(err, r->c->where);
    memcpy(it->bytes, bytes, it->n_bytes);
    return DW_OK;
}

/* One round. IS_FIRST: over all blocks, and the maps are chosen. */
static dw_status run_round(run *r, size_t n_items, bool is_first, uint64_t *n_left,
                           dw_error *err)
{
    uint64_t n_strips, n_put_off = 0;
    const size_t n = list_blocks(r, n_items, !is_first, &n_strips);
    const uint64_t n_tensors = r->job->n_pairs * sizeof *r->tensors;
    dw_status status = upload_round(r, n, n_strips, err);
    const dw_cuda_encode_job job = device_job(r, n);
    if (status == DW_OK && is_first) {
        status = dw_cuda_up(r->c, r->room.tensors, r->tensors, n_tensors, err);
        if (status == DW_OK)
            status = dw_cuda_launch(r->c, DW_CUDA_CHOOSE, r->job->n_pairs, &job, err);
        if (status == DW_OK)
            status = dw_cuda_down(r->c, r->tensors, r->room.tensors, n_tensors, err);
    }
    if (status == DW_OK)
        status = dw_cuda_launch(r->c, DW_CUDA_COMPARE, n_strips, &job, err);
    if (status == DW_OK)
        status = code_round(r, n, err);
    for (size_t i = 0; status == DW_OK && i < n; i++)
        n_put_off += r->codes[i].state == DW_CUDA_PUT_OFF;
    if (status == DW_OK && n_put_off > 0)
        status = dw_cuda_launch(r->c, DW_CUDA_RESTORE, n_strips, &job, err);
    if (status == DW_OK)
        status = fetch_round(r, n, err);
    for (size_t i = 0; status == DW_OK && i < n; i++)
        if (r->codes[i].state == DW_CUDA_CODED)
            status = take_block(r, i, err);
    if (status == DW_OK && !is_first && n_put_off > 0)
        status = dw_fail(err, DW_IO, r->c->where, "the weights changed while encoded");
    r->e->n_put_off += n_put_off;
    *n_left -= n - n_put_off;
    return status;
}

static dw_status encode_all(run *r, size_t n_items, dw_error *err)
{
    for (size_t p = 0; p < r->job->n_pairs; p++) {
        const dw_tensor *base = &r->job->pairs[p].base;
        const dw_element element = dw_dtype_element(base->dtype);
        r->tensors[p] = (dw_cuda_tensor){.old = base->data,
                                         .n_elems = dw_tensor_units(base),
                                         .map = dw_class_map_make(element, 0),
                                         .width = element.width,
                                         .is_float = element.is_float};
    }
    uint64_t n_left = n_items;
    dw_status status = DW_OK;
    for (bool is_first = true; status == DW_OK && n_left > 0; is_first = false)
        status = run_round(r, n_items, is_first, &n_left, err);
    return status;
}

/* The digests of the old weights: each as the share of its tensor's first block. */
static dw_status digest_bases(run *r, size_t n_items, dw_error *err)
{
    const size_t n = r->job->n_pairs;
    dw_tensor *bases = dw_alloc_array(n, sizeof *bases);
    dw_digest *digests = dw_alloc_array(n, sizeof *digests);
    dw_status status = bases && digests ? DW_OK : dw_fail_memory(err, r->c->where);
    for (size_t p = 0; status == DW_OK && p < n; p++)
        bases[p] = r->job->pairs[p].base;
    if (status == DW_OK)
        status = dw_cuda_digest_tensors(digests, r->c, bases, n, err);
    for (size_t i = 0; status == DW_OK && i < n_items; i++)
        if (r->items[i].block == 0)
            r->items[i].base_share = digests[r->items[i].pair];
    dw_free(bases);
    dw_free(digests);
    return status;
}

dw_status dw_cuda_encode(void *encoder, const dw_encode_job *job, dw_class_map *maps,
                         dw_encode_item *items, size_t n_items, dw_error *err)
{
    dw_cuda_encoder *e = encoder;
    run r = {.e = e, .c = e->cuda, .job = job, .items = items};
    e->n_put_off = e->n_dense = 0;
    dw_status status = DW_OK;
    if (!job->digests_known)
        status = digest_bases(&r, n_items, err);
    if (status == DW_OK)
        status = dw_cuda_enter(r.c, err);
    if (status != DW_OK)
        return status;
    status = alloc_host(&r, n_items, err);
    if (status == DW_OK)
        status = alloc_device(&r, n_items, err);
    if (status == DW_OK)
        status = encode_all(&r, n_items, err);
    dw_cuda_drain(r.c, status);
    for (size_t p = 0; status == DW_OK && p < job->n_pairs; p++)
        maps[p] = r.tensors[p].map;
    release(&r);
    dw_cuda_leave(r.c);
    return status;
}
