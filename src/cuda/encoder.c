#include "cuda/encoder.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"

#define ELEMS_A_CHANGE 32 /* for which the list of changes has room by default */

/* The most bytes that symbols, the room for their code, and plain bits can take for each
 * element of a block: see class_scratch.h. */
#define MOST_BYTES_AN_ELEM 16

uint32_t dw_cuda_strips_of(const dw_cuda_block *b)
{
    const uint32_t elems = DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(b->width);
    return (b->n + elems - 1) / elems;
}

dw_cuda_block dw_cuda_encoder_block(const dw_cuda_encoder *e, size_t i)
{
    size_t low = 0, high = e->n_pairs; /* the last pair that begins at I or before */
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (e->first_block[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    const dw_encode_pair *pair = &e->pairs[low];
    const dw_element element = dw_dtype_element(pair->base.dtype);
    const dw_span span = dw_block_span(dw_tensor_units(&pair->base), element.width,
                                       i - e->first_block[low]);
    const bool is_rounded = pair->next.dtype != pair->base.dtype;
    return (dw_cuda_block){
        .old = (const uint8_t *)pair->base.data + span.first * element.width,
        .new_ = (const uint8_t *)pair->next.data +
                span.first * (is_rounded ? sizeof(float) : element.width),
        .first_byte = pair->base.first_byte + span.first * element.width,
        .n = span.n,
        .tensor = (uint32_t)low,
        .width = (uint8_t)element.width,
        .is_float = element.is_float,
        .round_new = is_rounded};
}

/* ---- memory ---- */

/* A part of an allocation. */
typedef struct part {
    void *out; /* takes a cu_pointer or a pointer of the host */
    uint64_t n_bytes;
} part;

static uint64_t sum_of(const part *parts, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (parts[i].n_bytes + 255) / 256 * 256;
    return sum;
}

static dw_status take_device(cu_pointer *out, dw_cuda *c, const part *parts, size_t n,
                             const char *what, dw_error *err)
{
    dw_status status = dw_cuda_alloc(out, c, sum_of(parts, n), what, err);
    cu_pointer next = *out;
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        *(cu_pointer *)parts[i].out = next;
        next += (parts[i].n_bytes + 255) / 256 * 256;
    }
    return status;
}

dw_status dw_cuda_encoder_room_for_bytes(dw_cuda_encoder *e, uint64_t n_bytes,
                                         dw_error *err)
{
    dw_cuda_encoder_room *m = &e->room;
    const uint64_t n_moves = (m->n_entries * e->move_bytes + 255) / 256 * 256,
                   n_sorted = n_moves + m->n_entries * sizeof(uint32_t),
                   n_out = n_sorted > n_bytes ? n_sorted : n_bytes;
    cu_pointer bytes, out = 0;
    dw_status status = dw_cuda_alloc(&bytes, e->c, n_bytes, "symbols and bits", err);
    if (status == DW_OK)
        status = dw_cuda_alloc(&out, e->c, n_out, "encoded bytes", err);
    if (status != DW_OK) {
        dw_cuda_free(e->c, &bytes);
        return status;
    }
    dw_cuda_free(e->c, &m->bytes);
    dw_cuda_free(e->c, &m->out);
    m->bytes = bytes;
    m->out = m->sorted_moves = out;
    m->sorted_ranks = out + n_moves;
    m->n_bytes = n_bytes;
    m->n_device_bytes =
        n_bytes + n_out +
        m->n_entries * (sizeof(uint32_t) + sizeof(uint16_t) + e->move_bytes);
    return DW_OK;
}

dw_status dw_cuda_encoder_take_room(dw_cuda_encoder *e, uint64_t n_entries, dw_error *err)
{
    dw_cuda_encoder_room m = {0}, old = e->room;
    /* a whole block must have room in any case */
    uint64_t n = n_entries < e->n_most ? e->n_most : n_entries;
    m.n_entries = n = n < e->n_elems ? n : e->n_elems;
    const part parts[] = {{&m.places, n * sizeof(uint32_t)},
                          {&m.ranks, n * sizeof(uint16_t)},
                          {&m.moves, n * e->move_bytes}};
    dw_status status = take_device(&m.list, e->c, parts, sizeof parts / sizeof parts[0],
                                   "a list of changes", err);
    if (status != DW_OK)
        return status;
    /* about what 8 bytes for each change and a little for each block come to, and the
     * most that one block can need */
    e->room = m;
    status = dw_cuda_encoder_room_for_bytes(
        e, 8 * n + 1024 * (uint64_t)e->n_blocks + MOST_BYTES_AN_ELEM * e->n_most, err);
    if (status != DW_OK) {
        dw_cuda_free(e->c, &m.list);
        e->room = old;
        return status;
    }
    dw_cuda_free(e->c, &old.list);
    dw_cuda_free(e->c, &old.bytes);
    dw_cuda_free(e->c, &old.out);
    return DW_OK;
}

dw_status dw_cuda_pinned_out(dw_cuda_encoder *e, uint64_t n, dw_error *err)
{
    if (n <= e->n_out)
        return DW_OK;
    dw_cuda_free_pinned(e->c, e->out);
    e->out = NULL;
    e->n_out = 0;
    void *out;
    n += n / 4; /* the next version may have more */
    dw_status status = dw_cuda_alloc_pinned(&out, e->c, n, "encoded bytes", err);
    if (status != DW_OK)
        return status;
    e->out = out;
    e->n_out = n;
    return DW_OK;
}

/* The tables on both sides, and what is needed for one dense block. */
static dw_status take_tables(dw_cuda_encoder *e, dw_error *err)
{
    dw_cuda_tables *t = &e->tables;
    const uint64_t n_tensors = e->n_pairs * sizeof *e->tensors,
                   n_blocks = e->n_blocks * sizeof *e->blocks,
                   n_codes = e->n_blocks * sizeof *e->codes,
                   n_block_of = e->n_strips * sizeof *e->block_of,
                   n_counters = DW_CUDA_COUNTERS * sizeof *e->counters;
    const part device[] = {
        {&t->tensors, n_tensors},     {&t->blocks, n_blocks},
        {&t->block_of, n_block_of},   {&t->strips, e->n_strips * sizeof(dw_cuda_strip)},
        {&t->codes, n_codes},         {&t->counters, n_counters},
        {&t->scratch, DW_BLOCK_BYTES}};
    const part host[] = {{&e->tensors, n_tensors},   {&e->blocks, n_blocks},
                         {&e->block_of, n_block_of}, {&e->chosen, n_tensors},
                         {&e->codes, n_codes},       {&e->counters, n_counters},
                         {&e->elems, DW_BLOCK_BYTES}};
    const size_t n = sizeof host / sizeof host[0];
    dw_status status = take_device(&t->memory, e->c, device,
                                   sizeof device / sizeof device[0], "tables", err);
    if (status == DW_OK)
        status = dw_cuda_alloc_pinned(&e->pinned, e->c, sum_of(host, n), "tables", err);
    uint8_t *next = e->pinned;
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        memcpy(host[i].out, &next, sizeof next);
        next += (host[i].n_bytes + 255) / 256 * 256;
    }
    t->n_bytes = sum_of(device, sizeof device / sizeof device[0]);
    return status;
}

/* Counts blocks, strips and elements. */
static dw_status count_blocks(dw_cuda_encoder *e, dw_error *err)
{
    e->move_bytes = 4;
    for (size_t p = 0; p < e->n_pairs; p++) {
        const dw_tensor *base = &e->pairs[p].base;
        const unsigned width = dw_dtype_element(base->dtype).width;
        e->first_block[p] = e->n_blocks;
        e->n_blocks += (size_t)dw_block_count(dw_tensor_units(base), width);
        e->first_block[p + 1] = e->n_blocks;
        e->move_bytes = width == 8 ? 8 : e->move_bytes;
    }
    for (size_t i = 0; i < e->n_blocks; i++) {
        const dw_cuda_block b = dw_cuda_encoder_block(e, i);
        e->n_strips += dw_cuda_strips_of(&b);
        e->n_elems += b.n;
        e->n_base += (uint64_t)b.n * b.width;
        e->n_largest = b.n * b.width > e->n_largest ? b.n * b.width : e->n_largest;
        e->n_most = b.n > e->n_most ? b.n : e->n_most;
    }
    if (e->n_strips > UINT32_MAX)
        return dw_fail(err, DW_UNSUPPORTED, e->c->where, "too many weights at once");
    e->round = dw_alloc_array(e->n_blocks, sizeof *e->round);
    e->outcomes = dw_alloc_zeroed(e->n_blocks, sizeof *e->outcomes);
    return e->round && e->outcomes ? DW_OK : dw_fail_memory(err, e->c->where);
}

static dw_status take_all(dw_cuda_encoder *e, uint64_t n_entries, dw_error *err)
{
    dw_status status = take_tables(e, err);
    if (status == DW_OK && e->base_on_host)
        status = dw_cuda_windows_open(&e->windows, e->c, e->n_blocks, e->n_base,
                                      e->n_largest, err);
    if (status == DW_OK)
        status = dw_cuda_encoder_take_room(
            e, n_entries ? n_entries : e->n_elems / ELEMS_A_CHANGE + 1, err);
    if (status == DW_OK) {
        const cu_result result =
            e->c->driver->event_create(&e->compared, CU_EVENT_DISABLE_TIMING);
        if (result != CU_SUCCESS)
            e->compared = NULL;
        status = dw_cuda_check(e->c->driver, result, e->c->where, "create an event", err);
    }
    return status;
}

dw_status dw_cuda_encoder_open(dw_cuda_encoder **out, dw_cuda *c,
                               const dw_encode_pair *pairs, size_t n_pairs,
                               uint64_t n_entries, bool base_on_host, dw_error *err)
{
    *out = NULL;
    dw_cuda_encoder *e = dw_alloc_zeroed(1, sizeof *e);
    if (!e)
        return dw_fail_memory(err, c->where);
    e->c = c;
    e->n_pairs = n_pairs;
    e->grows = n_entries == 0;
    e->base_on_host = base_on_host;
    e->pairs = dw_alloc_array(n_pairs, sizeof *e->pairs);
    e->first_block = dw_alloc_zeroed(n_pairs + 1, sizeof *e->first_block);
    dw_status status = e->pairs && e->first_block ? DW_OK : dw_fail_memory(err, c->where);
    if (status == DW_OK && n_pairs > 0)
        memcpy(e->pairs, pairs, n_pairs * sizeof *e->pairs);
    if (status == DW_OK)
        status = count_blocks(e, err);
    if (status == DW_OK)
        status = dw_cuda_enter(c, err);
    if (status == DW_OK) {
        status = take_all(e, n_entries, err);
        dw_cuda_leave(c);
    }
    if (status != DW_OK)
        dw_cuda_encoder_close(e);
    else
        *out = e;
    return status;
}

void dw_cuda_encoder_close(dw_cuda_encoder *e)
{
    if (!e)
        return;
    dw_cuda_encoder_forget(e);
    if (dw_cuda_enter(e->c, NULL) == DW_OK) {
        (void)e->c->driver->stream_wait(e->c->stream);
        if (e->compared)
            (void)e->c->driver->event_destroy(e->compared);
        dw_cuda_windows_close(&e->windows, e->c);
        dw_cuda_free(e->c, &e->tables.memory);
        dw_cuda_free(e->c, &e->room.list);
        dw_cuda_free(e->c, &e->room.bytes);
        dw_cuda_free(e->c, &e->room.out);
        dw_cuda_free_pinned(e->c, e->pinned);
        dw_cuda_free_pinned(e->c, e->out);
        dw_cuda_leave(e->c);
    }
    dw_free(e->windows.items);
    dw_packed_scratch_free(e->packed);
    dw_free(e->pairs);
    dw_free(e->first_block);
    dw_free(e->round);
    dw_free(e->outcomes);
    dw_free(e->kept);
    dw_free(e);
}
