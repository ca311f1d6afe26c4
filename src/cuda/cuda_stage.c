#include "cuda/cuda_stage.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "codec/packed_block.h"
#include "cuda/cuda_digest.h"
#include "cuda/cuda_stage_memory.h"

/* What a round may take: entries by class, fewer if memory is short, and bytes of dense
 * blocks. */
#define ROUND_ENTRIES (128u << 20)
#define ROUND_DENSE   (64u << 20)

struct dw_cuda_stage {
    dw_cuda *c;
    const dw_tensor *tensors;
    dw_cuda_stage_memory *m;
    size_t n_blocks;
    uint64_t n_strips;
    uint64_t n_most; /* changes */
    uint64_t round_entries;
    uint32_t value_bytes;
};

/* Blocks that are decoded together: numbers list[0 .. n_blocks). */
typedef struct coded_round {
    dw_cuda_stage *s;
    dw_cuda *c;
    dw_cuda_stage_memory *m;
    dw_stage_block *blocks;
    uint64_t first_in_order; /* of the list */
    const uint32_t *list;
    size_t n_blocks;
    uint64_t n_entries, n_input, n_dense;
} coded_round;

static uint32_t strips_of(uint32_t n, unsigned width)
{
    const uint32_t elems = DW_CUDA_CELLS * DW_CUDA_CELL_ELEMS(width);
    return (n + elems - 1) / elems;
}

static bool is_dense(const dw_stage_block *b)
{
    return b->block->mode != DW_BLOCK_CLASS;
}

static dw_cuda_coded_block *table(const dw_cuda_stage *s)
{
    return s->m->host_blocks.at;
}

static dw_cuda_decoded *outcomes(const dw_cuda_stage *s)
{
    return s->m->host_decoded.at;
}

/* ---- the table of blocks ---- */

/* The most changes that the bytes of a block can hold: each takes a plain bit. */
static uint64_t most_changes(const dw_stage_block *b)
{
    uint64_t n = 8 * (uint64_t)b->block->n_bytes;
    n = n < b->span.n ? n : b->span.n;
    return n < b->entry->n_changed ? n : b->entry->n_changed;
}

/* About how many there are: a tensor's changes by bytes. The sure bound is several times
 * as much. A block that has more is decoded again. */
static uint64_t likely_changes(const dw_stage_block *b, uint64_t n_bytes)
{
    const double share = (double)b->block->n_bytes / (double)n_bytes;
    return (uint64_t)((double)b->entry->n_changed * share * 1.25) + 64;
}

static void list_block(dw_cuda_coded_block *to, const dw_cuda_stage *s,
                       const dw_stage_block *b, uint64_t n_bytes, uint64_t strip)
{
    const dw_element element = b->entry->element;
    const dw_tensor *t = &s->tensors[b->tensor];
    const uint64_t most = most_changes(b);
    const uint64_t likely = is_dense(b) ? 0 : likely_changes(b, n_bytes);
    *to =
        (dw_cuda_coded_block){.data = (uint8_t *)t->data + b->span.first * element.width,
                              .first_byte = t->first_byte + b->span.first * element.width,
                              .map = b->entry->map,
                              .n_bytes = is_dense(b) ? 0 : b->block->n_bytes,
                              .n_most = (uint32_t)(likely < most ? likely : most),
                              .n = b->span.n,
                              .first_strip = (uint32_t)strip,
                              .tensor = (uint32_t)b->tensor,
                              .width = (uint8_t)element.width,
                              .is_float = element.is_float,
                              .is_guess = likely < most};
}

static void list_blocks(dw_cuda_stage *s, const dw_stage_block *blocks)
{
    uint32_t *order = s->m->host_order.at;
    uint64_t strip = 0;
    for (size_t i = 0, end; i < s->n_blocks; i = end) {
        uint64_t n_bytes = 0; /* of the tensor's coded blocks */
        for (end = i; end < s->n_blocks && blocks[end].entry == blocks[i].entry; end++)
            n_bytes += is_dense(&blocks[end]) ? 0 : blocks[end].block->n_bytes;
        for (size_t k = i; k < end; k++) {
            order[k] = (uint32_t)k;
            list_block(&table(s)[k], s, &blocks[k], n_bytes ? n_bytes : 1, strip);
            strip += strips_of(blocks[k].span.n, table(s)[k].width);
        }
    }
}

/* Measures the stage and gets the memory that all rounds share. */
static dw_status prepare(dw_cuda_stage *s, const dw_stage_block *blocks, size_t n,
                         dw_error *err)
{
    s->n_blocks = n;
    s->round_entries = ROUND_ENTRIES;
    s->value_bytes = 1;
    for (size_t i = 0; i < n; i++) {
        const unsigned width = blocks[i].entry->element.width;
        s->n_strips += strips_of(blocks[i].span.n, width);
        if (i == 0 || blocks[i].entry != blocks[i - 1].entry)
            s->n_most += blocks[i].entry->n_changed;
        if (width > s->value_bytes)
            s->value_bytes = width;
    }
    if (s->n_strips > UINT32_MAX)
        return dw_fail(err, DW_UNSUPPORTED, s->c->where, "too many weights at once");
    dw_cuda_stage_memory *m = s->m;
    const uint64_t n_counters = DW_CUDA_STAGE_COUNTERS * sizeof(uint64_t);
    const struct {
        dw_cuda_room *room;
        uint64_t n_bytes;
    } rooms[] = {{&m->blocks, n * sizeof(dw_cuda_coded_block)},
                 {&m->order, n * sizeof(uint32_t)},
                 {&m->decoded, n * sizeof(dw_cuda_decoded)},
                 {&m->segments, s->n_strips * sizeof(dw_cuda_segment)},
                 {&m->totals, s->n_strips * DW_CLASSES * sizeof(uint16_t)},
                 {&m->bases, s->n_strips * DW_CLASSES * sizeof(uint32_t)},
                 {&m->lows, s->n_strips * DW_CLASSES * sizeof(uint32_t)},
                 {&m->positions, s->n_most * sizeof(uint32_t)},
                 {&m->olds, s->n_most * s->value_bytes},
                 {&m->news, s->n_most * s->value_bytes},
                 {&m->counters, n_counters}};
    const struct {
        dw_cuda_pinned *pinned;
        uint64_t n_bytes;
    } pinned[] = {{&m->host_blocks, n * sizeof(dw_cuda_coded_block)},
                  {&m->host_order, n * sizeof(uint32_t)},
                  {&m->host_decoded, n * sizeof(dw_cuda_decoded)},
                  {&m->host_counters, n_counters}};
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < sizeof rooms / sizeof rooms[0]; i++)
        status = dw_cuda_room_reserve(rooms[i].room, s->c, rooms[i].n_bytes,
                                      "staged changes", err);
    for (size_t i = 0; status == DW_OK && i < sizeof pinned / sizeof pinned[0]; i++)
        status = dw_cuda_pinned_reserve(pinned[i].pinned, s->c, pinned[i].n_bytes, err);
    if (status != DW_OK)
        return status;
    list_blocks(s, blocks);
    status = dw_cuda_zero(s->c, m->decoded.at, n * sizeof(dw_cuda_decoded), err);
    return status == DW_OK ? dw_cuda_zero(s->c, m->counters.at, n_counters, err) : status;
}

static dw_cuda_changes changes_of(const dw_cuda_stage *s)
{
    return (dw_cuda_changes){.n_most = s->n_most,
                             .positions = dw_cuda_address(s->m->positions.at),
                             .olds = dw_cuda_address(s->m->olds.at),
                             .news = dw_cuda_address(s->m->news.at),
                             .counters = dw_cuda_address(s->m->counters.at),
                             .value_bytes = s->value_bytes};
}

/* ---- a round ---- */

/* Takes as many blocks of a list of N as a round may have, at least one, and gives them
 * their places. */
static void plan_round(coded_round *r, size_t n)
{
    r->n_blocks = 0;
    r->n_entries = r->n_input = r->n_dense = 0;
    for (; r->n_blocks < n; r->n_blocks++) {
        const dw_stage_block *b = &r->blocks[r->list[r->n_blocks]];
        dw_cuda_coded_block *to = &table(r->s)[r->list[r->n_blocks]];
        const uint64_t n_entries = is_dense(b) ? 0 : to->n_most;
        const uint64_t n_dense = is_dense(b) ? (uint64_t)to->n * to->width : 0;
        if (r->n_blocks > 0 && (r->n_entries + n_entries > r->s->round_entries ||
                                r->n_dense + n_dense > ROUND_DENSE))
            break;
        to->first = r->n_entries;
        to->bytes = r->n_input;
        r->n_entries += n_entries;
        r->n_dense += (n_dense + 15) / 16 * 16;
        r->n_input += to->n_bytes;
    }
}

static dw_status reserve_round(coded_round *r, dw_error *err)
{
    dw_cuda_stage_memory *m = r->m;
    const struct {
        dw_cuda_room *room;
        uint64_t n_bytes;
    } list[] = {{&m->ranks, r->n_entries * sizeof(uint32_t)},
                {&m->moves, r->n_entries * r->s->value_bytes},
                {&m->input, r->n_input + DW_CUDA_SLACK},
                {&m->dense, r->n_dense}};
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < sizeof list / sizeof list[0]; i++)
        status =
            dw_cuda_room_reserve(list[i].room, r->c, list[i].n_bytes, "decoding", err);
    return status;
}

/* For a round that memory was too short for. False if it is as small as it can be. */
static bool make_smaller(coded_round *r)
{
    r->s->round_entries = r->n_entries / 2;
    return r->n_blocks > 1 && r->n_entries > 0;
}

/* Unpacks a dense block on the host and copies it to the device. */
static dw_status upload_dense(coded_round *r, const dw_stage_block *b, cu_pointer to,
                              uint8_t *elems, dw_packed_scratch *packed, dw_error *err)
{
    const uint64_t n_bytes = (uint64_t)b->span.n * b->entry->element.width;
    const uint8_t *from = b->block->bytes;
    bool is_valid = b->block->n_bytes == n_bytes;
    if (b->block->mode == DW_BLOCK_PACKED) {
        is_valid = dw_packed_decode(elems, packed, b->block->bytes, b->block->n_bytes,
                                    b->span.n, b->entry->element);
        from = elems;
    }
    if (!is_valid)
        return dw_fail_tensor(err, DW_CORRUPT, r->c->where, b->entry->shape.name,
                              "a block does not decode");
    dw_status status = dw_cuda_up(r->c, to, from, n_bytes, err);
    return status == DW_OK ? dw_cuda_wait(r->c, err) : status;
}

static dw_status upload_all_dense(coded_round *r, dw_error *err)
{
    if (r->n_dense == 0)
        return DW_OK;
    uint8_t *elems = dw_alloc(DW_BLOCK_BYTES);
    dw_packed_scratch *packed = dw_packed_scratch_new();
    dw_status status = elems && packed ? DW_OK : dw_fail_memory(err, r->c->where);
    cu_pointer at = r->m->dense.at;
    for (size_t i = 0; status == DW_OK && i < r->n_blocks; i++) {
        const dw_stage_block *b = &r->blocks[r->list[i]];
        dw_cuda_coded_block *to = &table(r->s)[r->list[i]];
        if (!is_dense(b))
            continue;
        to->news = dw_cuda_address(at);
        status = upload_dense(r, b, at, elems, packed, err);
        at += ((uint64_t)to->n * to->width + 15) / 16 * 16;
    }
    dw_cuda_drain(r->c, status);
    dw_free(elems);
    dw_packed_scratch_free(packed);
    return status;
}

/* The lowest and the highest block of the round. */
static void range_of(const coded_round *r, uint32_t *low, uint32_t *high)
{
    *low = *high = r->list[0];
    for (size_t i = 1; i < r->n_blocks; i++) {
        *low = r->list[i] < *low ? r->list[i] : *low;
        *high = r->list[i] > *high ? r->list[i] : *high;
    }
}

/* A launch over the strips of all blocks: one for each sequence of neighbours. */
static dw_status launch_strips(coded_round *r, dw_cuda_kernel kernel,
                               dw_cuda_decode_job job, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0, end; status == DW_OK && i < r->n_blocks; i = end) {
        uint64_t n_strips = 0;
        for (end = i; end < r->n_blocks && r->list[end] == r->list[i] + (end - i); end++)
            n_strips +=
                strips_of(table(r->s)[r->list[end]].n, table(r->s)[r->list[end]].width);
        job.first_strip = table(r->s)[r->list[i]].first_strip;
        status = dw_cuda_launch(r->c, kernel, n_strips, &job, err);
    }
    return status;
}

static dw_status launch_round(coded_round *r, dw_error *err)
{
    dw_cuda_stage_memory *m = r->m;
    const dw_cuda_decode_job job = {
        .constants = dw_cuda_address(r->c->constants),
        .blocks = dw_cuda_address(m->blocks.at),
        .order = dw_cuda_address(m->order.at + r->first_in_order * sizeof(uint32_t)),
        .decoded = dw_cuda_address(m->decoded.at),
        .segments = dw_cuda_address(m->segments.at),
        .totals = dw_cuda_address(m->totals.at),
        .bases = dw_cuda_address(m->bases.at),
        .lows = dw_cuda_address(m->lows.at),
        .input = dw_cuda_address(m->input.at),
        .sorted_ranks = dw_cuda_address(m->ranks.at),
        .sorted_moves = dw_cuda_address(m->moves.at),
        .changes = changes_of(r->s)};
    uint32_t low, high;
    range_of(r, &low, &high);
    dw_status status = dw_cuda_up(
        r->c, m->blocks.at + low * sizeof(dw_cuda_coded_block), &table(r->s)[low],
        ((uint64_t)high - low + 1) * sizeof(dw_cuda_coded_block), err);
    if (status == DW_OK)
        status = dw_cuda_launch(r->c, DW_CUDA_SPREAD, r->n_blocks, &job, err);
    if (status == DW_OK)
        status = launch_strips(r, DW_CUDA_COUNT, job, err);
    if (status == DW_OK) /* while the device counts */
        status = dw_cuda_stage_upload(m, r->c, r->blocks, r->list, r->n_blocks, err);
    if (status == DW_OK)
        status = dw_cuda_launch(r->c, DW_CUDA_READ, r->n_blocks, &job, err);
    if (status == DW_OK)
        status = dw_cuda_launch(r->c, DW_CUDA_BOUNDS, r->n_blocks, &job, err);
    if (status == DW_OK)
        status = launch_strips(r, DW_CUDA_LOCATE, job, err);
    if (status == DW_OK)
        status = dw_cuda_down(r->c, &outcomes(r->s)[low],
                              m->decoded.at + low * sizeof(dw_cuda_decoded),
                              ((uint64_t)high - low + 1) * sizeof(dw_cuda_decoded), err);
    return status == DW_OK ? dw_cuda_wait(r->c, err) : status;
}

/* Takes the outcomes. Blocks to decode again go to CROWDED. */
static dw_status take_round(const coded_round *r, uint32_t *crowded, size_t *n_crowded,
                            dw_error *err)
{
    for (size_t i = 0; i < r->n_blocks; i++) {
        const uint32_t number = r->list[i];
        const dw_cuda_decoded *d = &outcomes(r->s)[number];
        dw_cuda_coded_block *coded = &table(r->s)[number];
        dw_stage_block *b = &r->blocks[number];
        if (d->state == DW_CUDA_CROWDED && coded->is_guess) {
            coded->n_most = (uint32_t)most_changes(b);
            coded->is_guess = false;
            crowded[(*n_crowded)++] = number;
            continue;
        }
        if (d->state != DW_CUDA_STAGED)
            return dw_fail_tensor(err, DW_CORRUPT, r->c->where, b->entry->shape.name,
                                  "a block does not decode");
        const uint64_t sum =
            dw_digest_reduce(((unsigned __int128)d->digest[1] << 32) + d->digest[0]);
        b->n_changed = d->n_changes;
        b->move_share =
            dw_digest_times(dw_digest_power(coded->first_byte / DW_DIGEST_CHUNK), sum);
    }
    return DW_OK;
}

/* Decodes the blocks of the order's first N. N becomes the number of those to decode
 * again, which are then first in the order. */
static dw_status run_rounds(dw_cuda_stage *s, dw_stage_block *blocks, size_t *n,
                            dw_error *err)
{
    uint32_t *order = s->m->host_order.at;
    size_t n_crowded = 0;
    dw_status status = dw_cuda_up(s->c, s->m->order.at, order, *n * sizeof *order, err);
    for (size_t at = 0; status == DW_OK && at < *n;) {
        coded_round r = {.s = s,
                         .c = s->c,
                         .m = s->m,
                         .blocks = blocks,
                         .first_in_order = at,
                         .list = order + at};
        do {
            plan_round(&r, *n - at);
            status = reserve_round(&r, err);
        } while (status == DW_NO_MEMORY && make_smaller(&r));
        if (status == DW_OK)
            status = upload_all_dense(&r, err);
        if (status == DW_OK)
            status = launch_round(&r, err);
        if (status == DW_OK)
            status = take_round(&r, order, &n_crowded, err);
        at += r.n_blocks;
    }
    *n = n_crowded;
    return status;
}

dw_status dw_cuda_stage_decode(dw_cuda_stage *s, dw_stage_block *blocks, size_t n_blocks,
                               dw_error *err)
{
    if (n_blocks == 0)
        return DW_OK;
    dw_status status = dw_cuda_enter(s->c, err);
    if (status != DW_OK)
        return status;
    status = dw_cuda_stage_memory_take(&s->m, s->c, err);
    if (status == DW_OK)
        status = prepare(s, blocks, n_blocks, err);
    for (size_t n = n_blocks; status == DW_OK && n > 0;)
        status = run_rounds(s, blocks, &n, err);
    dw_cuda_drain(s->c, status);
    dw_cuda_leave(s->c);
    return status;
}

static dw_status decode(void *context, const dw_tensor *tensors, dw_stage_block *blocks,
                        size_t n_blocks, dw_error *err)
{
    (void)tensors; /* the stage's own */
    return dw_cuda_stage_decode(context, blocks, n_blocks, err);
}

static dw_status digest(void *context, dw_digest *out, const dw_tensor *tensors,
                        size_t n_tensors, dw_error *err)
{
    return dw_cuda_digest_tensors(out, ((dw_cuda_stage *)context)->c, tensors, n_tensors,
                                  err);
}

/* ---- the stage ---- */

void dw_cuda_stage_close(dw_cuda_stage *s)
{
    if (!s)
        return;
    if (s->m && dw_cuda_enter(s->c, NULL) == DW_OK) {
        dw_cuda_stage_memory_give(s->c, s->m);
        dw_cuda_leave(s->c);
    }
    dw_free(s);
}

dw_status dw_cuda_stage_new(dw_cuda_stage **out, dw_cuda *c, const dw_tensor *tensors,
                            dw_error *err)
{
    *out = dw_alloc_zeroed(1, sizeof **out);
    if (!*out)
        return dw_fail_memory(err, c->where);
    (*out)->c = c;
    (*out)->tensors = tensors;
    return DW_OK;
}

dw_status dw_cuda_stage_open(dw_cuda_stage **out, dw_stage_result *result, dw_cuda *c,
                             const dw_delta *delta, const dw_tensor *tensors,
                             size_t n_tensors, const dw_apply_options *options,
                             dw_error *err)
{
    *out = NULL;
    dw_stage *stage = NULL;
    dw_cuda_stage *s;
    dw_status status = dw_cuda_stage_new(&s, c, tensors, err);
    if (status != DW_OK)
        return status;
    const dw_stage_device device = {decode, digest, s};
    status = dw_stage_open(&stage, delta, tensors, n_tensors, 1, err);
    if (status == DW_OK) {
        dw_stage_set_device(stage, &device);
        status = dw_stage_verify(result, stage, options, NULL, NULL, err);
    }
    dw_stage_close(stage);
    if (status != DW_OK)
        dw_cuda_stage_close(s);
    else
        *out = s;
    return status;
}

/* ---- storing ---- */

static dw_status launch_scatter(dw_cuda_stage *s, dw_cuda_kernel kernel, dw_error *err)
{
    const dw_cuda_scatter_job job = {.blocks = dw_cuda_address(s->m->blocks.at),
                                     .segments = dw_cuda_address(s->m->segments.at),
                                     .changes = changes_of(s)};
    return dw_cuda_launch(s->c, kernel, s->n_strips, &job, err);
}

dw_status dw_cuda_stage_store(dw_cuda_stage *s, dw_error *err)
{
    if (!s->m) /* nothing changes */
        return DW_OK;
    const uint64_t first = DW_CUDA_MISMATCHES * sizeof(uint64_t);
    const uint64_t end = DW_CUDA_STAGE_COUNTERS * sizeof(uint64_t);
    dw_status status = dw_cuda_enter(s->c, err);
    if (status != DW_OK)
        return status;
    status = dw_cuda_zero(s->c, s->m->counters.at + first, end - first, err);
    if (status == DW_OK)
        status = launch_scatter(s, DW_CUDA_SCATTER, err);
    dw_cuda_leave(s->c);
    return status;
}

dw_status dw_cuda_stage_wait(dw_cuda_stage *s, uint64_t *n_wrong, size_t *tensor,
                             dw_error *err)
{
    *n_wrong = 0;
    *tensor = 0;
    if (!s->m)
        return DW_OK;
    uint64_t *counts = s->m->host_counters.at;
    dw_status status = dw_cuda_enter(s->c, err);
    if (status != DW_OK)
        return status;
    status = dw_cuda_down(s->c, counts, s->m->counters.at,
                          DW_CUDA_STAGE_COUNTERS * sizeof *counts, err);
    if (status == DW_OK)
        status = dw_cuda_wait(s->c, err);
    dw_cuda_drain(s->c, status);
    dw_cuda_leave(s->c);
    if (status == DW_OK) {
        *n_wrong = counts[DW_CUDA_MISMATCHES];
        *tensor = (size_t)counts[DW_CUDA_FAULT];
    }
    return status;
}

dw_status dw_cuda_stage_undo(dw_cuda_stage *s, dw_error *err)
{
    if (!s->m)
        return DW_OK;
    dw_status status = dw_cuda_enter(s->c, err);
    if (status != DW_OK)
        return status;
    status = launch_scatter(s, DW_CUDA_UNDO, err);
    if (status == DW_OK)
        status = dw_cuda_wait(s->c, err);
    dw_cuda_leave(s->c);
    return status;
}

dw_status dw_cuda_stage_apply(dw_cuda_stage *s, dw_error *err)
{
    uint64_t n_wrong = 0;
    size_t tensor = 0;
    dw_status status = dw_cuda_stage_store(s, err);
    if (status == DW_OK)
        status = dw_cuda_stage_wait(s, &n_wrong, &tensor, err);
    if (status != DW_OK || n_wrong == 0)
        return status;
    status = dw_cuda_stage_undo(s, err);
    return status == DW_OK
               ? dw_fail_tensor(err, DW_STALE, s->c->where, s->tensors[tensor].name,
                                "%" PRIu64
                                " weights on the device are not what they were "
                                "when the step was staged; it was taken back: stage it "
                                "again",
                                n_wrong)
               : status;
}
