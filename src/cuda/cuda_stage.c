#include "cuda/cuda_stage.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "codec/packed_block.h"
#include "cuda/cuda_digest.h"

/* What a round may take: entries by class, and bytes of dense blocks. */
#define ROUND_ENTRIES (64u << 20)
#define ROUND_DENSE   (64u << 20)
#define INPUT_SLACK   16

struct dw_cuda_stage {
    dw_cuda *c;
    const dw_tensor *tensors;
    dw_cuda_segment *list; /* [segments], as they start */
    uint64_t n_segments;
    cu_pointer segments, positions, olds, news, counters;
    uint64_t n_most; /* changes */
    uint32_t value_bytes;
    uint64_t counts[DW_CUDA_STAGE_COUNTERS]; /* a copy */
};

/* Blocks that are decoded together. */
typedef struct coded_round {
    dw_cuda_stage *s;
    dw_cuda *c;
    size_t n_blocks;
    uint64_t n_strips, n_entries, n_input, n_dense;
    dw_cuda_coded_block *blocks;
    uint32_t *block_of;
    dw_cuda_decoded *decoded;
    uint8_t *input;
    cu_pointer on_blocks, on_block_of, on_strips, on_decoded, on_ranks, on_moves,
        on_input, on_dense;
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

/* The most changes that the bytes of a block can hold: each takes a plain bit. */
static uint32_t most_changes(const dw_stage_block *b)
{
    uint64_t n = 8 * (uint64_t)b->block->n_bytes;
    n = n < b->span.n ? n : b->span.n;
    return (uint32_t)(n < b->entry->n_changed ? n : b->entry->n_changed);
}

/* ---- the lists that stay ---- */

static dw_status alloc_lists(dw_cuda_stage *s, const dw_stage_block *blocks, size_t n,
                             dw_error *err)
{
    s->value_bytes = 4;
    for (size_t i = 0; i < n; i++) {
        const unsigned width = blocks[i].entry->element.width;
        s->n_segments += strips_of(blocks[i].span.n, width);
        if (i == 0 || blocks[i].entry != blocks[i - 1].entry)
            s->n_most += blocks[i].entry->n_changed;
        if (width == 8)
            s->value_bytes = 8;
    }
    s->list = dw_alloc_zeroed((size_t)s->n_segments, sizeof *s->list);
    if (!s->list)
        return dw_fail_memory(err, s->c->where);
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const dw_stage_block *b = &blocks[i];
        const unsigned width = b->entry->element.width;
        for (uint32_t k = 0; k < strips_of(b->span.n, width); k++)
            s->list[at++] = (dw_cuda_segment){
                .data = (uint8_t *)s->tensors[b->tensor].data + b->span.first * width,
                .width = width,
                .tensor = (uint32_t)b->tensor};
    }
    const struct {
        cu_pointer *out;
        uint64_t n_bytes;
    } list[] = {{&s->segments, s->n_segments * sizeof *s->list},
                {&s->positions, s->n_most * sizeof(uint32_t)},
                {&s->olds, s->n_most * s->value_bytes},
                {&s->news, s->n_most * s->value_bytes},
                {&s->counters, DW_CUDA_STAGE_COUNTERS * sizeof(uint64_t)}};
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < sizeof list / sizeof list[0]; i++)
        status = dw_cuda_alloc(list[i].out, s->c, list[i].n_bytes, "staged changes", err);
    if (status == DW_OK)
        status =
            dw_cuda_up(s->c, s->segments, s->list, s->n_segments * sizeof *s->list, err);
    if (status == DW_OK)
        status = dw_cuda_zero(s->c, s->counters,
                              DW_CUDA_STAGE_COUNTERS * sizeof(uint64_t), err);
    return status;
}

static dw_cuda_changes changes_of(const dw_cuda_stage *s)
{
    return (dw_cuda_changes){.n_most = s->n_most,
                             .positions = dw_cuda_address(s->positions),
                             .olds = dw_cuda_address(s->olds),
                             .news = dw_cuda_address(s->news),
                             .counters = dw_cuda_address(s->counters),
                             .value_bytes = s->value_bytes};
}

/* ---- a round ---- */

/* Takes as many blocks from the front as a round may have, at least one. */
static void measure(coded_round *r, const dw_stage_block *blocks, size_t n)
{
    for (; r->n_blocks < n; r->n_blocks++) {
        const dw_stage_block *b = &blocks[r->n_blocks];
        const unsigned width = b->entry->element.width;
        const uint64_t n_entries = is_dense(b) ? 0 : most_changes(b);
        const uint64_t n_dense = is_dense(b) ? (uint64_t)b->span.n * width : 0;
        if (r->n_blocks > 0 && (r->n_entries + n_entries > ROUND_ENTRIES ||
                                r->n_dense + n_dense > ROUND_DENSE))
            break;
        r->n_entries += n_entries;
        r->n_dense += (n_dense + 15) / 16 * 16;
        r->n_input += is_dense(b) ? 0 : b->block->n_bytes;
        r->n_strips += strips_of(b->span.n, width);
    }
}

static dw_status alloc_round(coded_round *r, dw_error *err)
{
    r->blocks = dw_alloc_zeroed(r->n_blocks, sizeof *r->blocks);
    r->block_of = dw_alloc_array((size_t)r->n_strips, sizeof *r->block_of);
    r->decoded = dw_alloc_zeroed(r->n_blocks, sizeof *r->decoded);
    r->input = dw_alloc_zeroed((size_t)r->n_input + INPUT_SLACK, 1);
    if (!r->blocks || !r->block_of || !r->decoded || !r->input)
        return dw_fail_memory(err, r->c->where);
    const struct {
        cu_pointer *out;
        uint64_t n_bytes;
    } list[] = {{&r->on_blocks, r->n_blocks * sizeof *r->blocks},
                {&r->on_block_of, r->n_strips * sizeof *r->block_of},
                {&r->on_strips, r->n_strips * sizeof(dw_cuda_strip)},
                {&r->on_decoded, r->n_blocks * sizeof *r->decoded},
                {&r->on_ranks, r->n_entries * sizeof(uint32_t)},
                {&r->on_moves, r->n_entries * r->s->value_bytes},
                {&r->on_input, r->n_input + INPUT_SLACK},
                {&r->on_dense, r->n_dense}};
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < sizeof list / sizeof list[0]; i++)
        status = dw_cuda_alloc(list[i].out, r->c, list[i].n_bytes, "decoding", err);
    return status;
}

static void release_round(coded_round *r)
{
    cu_pointer *const list[] = {&r->on_blocks,  &r->on_block_of, &r->on_strips,
                                &r->on_decoded, &r->on_ranks,    &r->on_moves,
                                &r->on_input,   &r->on_dense};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        dw_cuda_free(r->c, list[i]);
    dw_free(r->blocks);
    dw_free(r->block_of);
    dw_free(r->decoded);
    dw_free(r->input);
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

static dw_status upload_all_dense(coded_round *r, const dw_stage_block *blocks,
                                  dw_error *err)
{
    if (r->n_dense == 0)
        return DW_OK;
    uint8_t *elems = dw_alloc(DW_BLOCK_BYTES);
    dw_packed_scratch *packed = dw_packed_scratch_new();
    dw_status status = elems && packed ? DW_OK : dw_fail_memory(err, r->c->where);
    for (size_t i = 0; status == DW_OK && i < r->n_blocks; i++)
        if (is_dense(&blocks[i]))
            status = upload_dense(r, &blocks[i], (cu_pointer)(uintptr_t)r->blocks[i].news,
                                  elems, packed, err);
    dw_cuda_drain(r->c, status);
    dw_free(elems);
    dw_packed_scratch_free(packed);
    return status;
}

static void fill_round(coded_round *r, const dw_stage_block *blocks)
{
    uint64_t strip = 0, entry = 0, input = 0, dense = 0;
    for (size_t i = 0; i < r->n_blocks; i++) {
        const dw_stage_block *b = &blocks[i];
        const dw_element element = b->entry->element;
        const dw_tensor *t = &r->s->tensors[b->tensor];
        dw_cuda_coded_block *to = &r->blocks[i];
        *to = (dw_cuda_coded_block){
            .data = (uint8_t *)t->data + b->span.first * element.width,
            .first_byte = t->first_byte + b->span.first * element.width,
            .bytes = input,
            .first = entry,
            .map = b->entry->map,
            .n = b->span.n,
            .first_strip = (uint32_t)strip,
            .width = (uint8_t)element.width,
            .is_float = element.is_float};
        for (uint32_t k = 0; k < strips_of(b->span.n, element.width); k++)
            r->block_of[strip++] = (uint32_t)i;
        if (is_dense(b)) {
            to->news = dw_cuda_address(r->on_dense + dense);
            dense += ((uint64_t)b->span.n * element.width + 15) / 16 * 16;
            continue;
        }
        to->n_bytes = b->block->n_bytes;
        to->n_most = most_changes(b);
        memcpy(r->input + input, b->block->bytes, b->block->n_bytes);
        input += b->block->n_bytes;
        entry += to->n_most;
    }
}

/* FIRST_STRIP is the round's first one among all segments. */
static dw_status launch_round(coded_round *r, uint64_t first_strip, dw_error *err)
{
    const dw_cuda_decode_job job = {
        .constants = dw_cuda_address(r->c->constants),
        .blocks = dw_cuda_address(r->on_blocks),
        .block_of = dw_cuda_address(r->on_block_of),
        .strips = dw_cuda_address(r->on_strips),
        .decoded = dw_cuda_address(r->on_decoded),
        .segments = (dw_cuda_segment *)dw_cuda_address(r->s->segments) + first_strip,
        .input = dw_cuda_address(r->on_input),
        .sorted_ranks = dw_cuda_address(r->on_ranks),
        .sorted_moves = dw_cuda_address(r->on_moves),
        .changes = changes_of(r->s)};
    dw_status status =
        dw_cuda_up(r->c, r->on_blocks, r->blocks, r->n_blocks * sizeof *r->blocks, err);
    if (status == DW_OK)
        status = dw_cuda_up(r->c, r->on_block_of, r->block_of,
                            r->n_strips * sizeof *r->block_of, err);
    if (status == DW_OK)
        status = dw_cuda_up(r->c, r->on_input, r->input, r->n_input + INPUT_SLACK, err);
    if (status == DW_OK)
        status = dw_cuda_zero(r->c, r->on_decoded, r->n_blocks * sizeof *r->decoded, err);
    if (status == DW_OK)
        status = dw_cuda_launch(r->c, DW_CUDA_COUNT, r->n_strips, &job, err);
    if (status == DW_OK)
        status = dw_cuda_launch(r->c, DW_CUDA_READ, r->n_blocks, &job, err);
    if (status == DW_OK)
        status = dw_cuda_launch(r->c, DW_CUDA_LOCATE, r->n_strips, &job, err);
    if (status == DW_OK)
        status = dw_cuda_down(r->c, r->decoded, r->on_decoded,
                              r->n_blocks * sizeof *r->decoded, err);
    return status == DW_OK ? dw_cuda_wait(r->c, err) : status;
}

static dw_status take_round(const coded_round *r, dw_stage_block *blocks, dw_error *err)
{
    for (size_t i = 0; i < r->n_blocks; i++) {
        const dw_cuda_decoded *d = &r->decoded[i];
        if (d->state != DW_CUDA_STAGED)
            return dw_fail_tensor(err, DW_CORRUPT, r->c->where,
                                  blocks[i].entry->shape.name, "a block does not decode");
        const uint64_t sum =
            dw_digest_reduce(((unsigned __int128)d->digest[1] << 32) + d->digest[0]);
        blocks[i].n_changed = d->n_changes;
        blocks[i].move_share = dw_digest_times(
            dw_digest_power(r->blocks[i].first_byte / DW_DIGEST_CHUNK), sum);
    }
    return DW_OK;
}

static dw_status run_round(coded_round *r, dw_stage_block *blocks, uint64_t first_strip,
                           dw_error *err)
{
    dw_status status = alloc_round(r, err);
    if (status == DW_OK) {
        fill_round(r, blocks);
        status = upload_all_dense(r, blocks, err);
    }
    if (status == DW_OK)
        status = launch_round(r, first_strip, err);
    if (status == DW_OK)
        status = take_round(r, blocks, err);
    dw_cuda_drain(r->c, status);
    release_round(r);
    return status;
}

static dw_status decode(void *context, const dw_tensor *tensors, dw_stage_block *blocks,
                        size_t n_blocks, dw_error *err)
{
    dw_cuda_stage *s = context;
    (void)tensors; /* the stage's own */
    uint64_t n_strips = 0;
    dw_status status = dw_cuda_enter(s->c, err);
    if (status != DW_OK)
        return status;
    status = alloc_lists(s, blocks, n_blocks, err);
    for (size_t at = 0; status == DW_OK && at < n_blocks;) {
        coded_round r = {.s = s, .c = s->c};
        measure(&r, blocks + at, n_blocks - at);
        status = run_round(&r, blocks + at, n_strips, err);
        at += r.n_blocks;
        n_strips += r.n_strips;
    }
    dw_cuda_drain(s->c, status);
    dw_cuda_leave(s->c);
    return status;
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
    if (dw_cuda_enter(s->c, NULL) == DW_OK) {
        cu_pointer *const list[] = {&s->segments, &s->positions, &s->olds, &s->news,
                                    &s->counters};
        for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
            dw_cuda_free(s->c, list[i]);
        dw_cuda_leave(s->c);
    }
    dw_free(s->list);
    dw_free(s);
}

dw_status dw_cuda_stage_open(dw_cuda_stage **out, dw_stage_result *result, dw_cuda *c,
                             const dw_delta *delta, const dw_tensor *tensors,
                             size_t n_tensors, const dw_apply_options *options,
                             dw_error *err)
{
    *out = NULL;
    dw_stage *stage = NULL;
    dw_cuda_stage *s = dw_alloc_zeroed(1, sizeof *s);
    if (!s)
        return dw_fail_memory(err, c->where);
    s->c = c;
    s->tensors = tensors;
    const dw_stage_device device = {decode, digest, s};
    dw_status status = dw_stage_open(&stage, delta, tensors, n_tensors, 1, err);
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

static dw_status scatter(dw_cuda_stage *s, dw_error *err)
{
    const dw_cuda_scatter_job job = {dw_cuda_address(s->segments), changes_of(s)};
    dw_status status = dw_cuda_launch(s->c, DW_CUDA_SCATTER, s->n_segments, &job, err);
    if (status == DW_OK)
        status = dw_cuda_down(s->c, s->counts, s->counters, sizeof s->counts, err);
    if (status == DW_OK)
        status = dw_cuda_wait(s->c, err);
    if (status != DW_OK || s->counts[DW_CUDA_MISMATCHES] == 0)
        return status;
    status = dw_cuda_launch(s->c, DW_CUDA_UNDO, s->n_segments, &job, err);
    if (status == DW_OK)
        status = dw_cuda_wait(s->c, err);
    return status == DW_OK
               ? dw_fail_tensor(err, DW_STALE, s->c->where,
                                s->tensors[s->counts[DW_CUDA_FAULT]].name,
                                "%" PRIu64
                                " weights on the device are not what they were "
                                "when the step was staged; it was taken back: stage it "
                                "again",
                                s->counts[DW_CUDA_MISMATCHES])
               : status;
}

dw_status dw_cuda_stage_apply(dw_cuda_stage *s, dw_error *err)
{
    dw_status status = dw_cuda_enter(s->c, err);
    if (status != DW_OK)
        return status;
    status = scatter(s, err);
    dw_cuda_drain(s->c, status);
    dw_cuda_leave(s->c);
    return status;
}
