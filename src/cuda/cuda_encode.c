#include "cuda/cuda_encode.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "cuda/cuda_digest.h"
#include "cuda/encoder.h"

#define MIN_ELEMS_A_CHANGE 8 /* the list grows up to room for one in so many */

static dw_cuda_encode_job device_job(const dw_cuda_encoder *e)
{
    const dw_cuda_tables *t = &e->tables;
    const dw_cuda_encoder_room *m = &e->room;
    return (dw_cuda_encode_job){.constants = dw_cuda_address(e->c->constants),
                                .tensors = dw_cuda_address(t->tensors),
                                .blocks = dw_cuda_address(t->blocks),
                                .block_of = dw_cuda_address(t->block_of),
                                .strips = dw_cuda_address(t->strips),
                                .codes = dw_cuda_address(t->codes),
                                .counters = dw_cuda_address(t->counters),
                                .scratch = dw_cuda_address(t->scratch),
                                .n_blocks = (uint32_t)e->n_round,
                                .move_bytes = e->move_bytes,
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

/* ---- a round ---- */

/* Lists the blocks of a round: all of the model if IS_FIRST; otherwise those that are
 * left, as many as have room for all their elements. */
static void list_blocks(dw_cuda_encoder *e, bool is_first)
{
    uint64_t n_elems = 0;
    e->n_round = 0;
    e->n_round_strips = 0;
    for (size_t i = 0; i < e->n_blocks; i++) {
        if (!is_first && e->outcomes[i].is_done)
            continue;
        dw_cuda_block b = dw_cuda_encoder_block(e, i);
        n_elems += b.n;
        if (!is_first && n_elems > e->room.n_entries)
            break;
        b.first_strip = (uint32_t)e->n_round_strips;
        for (uint32_t k = 0; k < dw_cuda_strips_of(&b); k++)
            e->block_of[e->n_round_strips++] = (uint32_t)e->n_round;
        e->round[e->n_round] = i;
        e->blocks[e->n_round++] = b;
    }
    if (e->base_on_host)
        dw_cuda_windows_list(&e->windows, e->blocks, e->n_round);
}

static dw_status upload_blocks(dw_cuda_encoder *e, dw_error *err)
{
    dw_status status = dw_cuda_up(e->c, e->tables.blocks, e->blocks,
                                  e->n_round * sizeof *e->blocks, err);
    if (status == DW_OK)
        status = dw_cuda_up(e->c, e->tables.block_of, e->block_of,
                            e->n_round_strips * sizeof *e->block_of, err);
    if (status == DW_OK && e->base_on_host)
        status = dw_cuda_windows_upload(&e->windows, e->c, e->n_round, err);
    return status;
}

static dw_status upload_tables(dw_cuda_encoder *e, dw_error *err)
{
    for (size_t p = 0; p < e->n_pairs; p++) {
        const dw_tensor *base = &e->pairs[p].base;
        const dw_element element = dw_dtype_element(base->dtype);
        e->tensors[p] = (dw_cuda_tensor){.old = base->data,
                                         .n_elems = dw_tensor_units(base),
                                         .map = dw_class_map_make(element, 0),
                                         .width = element.width,
                                         .is_float = element.is_float};
    }
    list_blocks(e, true);
    dw_status status = dw_cuda_up(e->c, e->tables.tensors, e->tensors,
                                  e->n_pairs * sizeof *e->tensors, err);
    if (status == DW_OK)
        status = upload_blocks(e, err);
    e->is_uploaded = status == DW_OK;
    return status;
}

/* Compares the blocks of the round, and reports how many changes there are. */
static dw_status compare_round(dw_cuda_encoder *e, dw_error *err)
{
    const dw_cuda_encode_job job = device_job(e);
    const uint64_t n_counters = DW_CUDA_COUNTERS * sizeof *e->counters;
    e->report.n_windows += e->windows.n;
    dw_status status = dw_cuda_zero(e->c, e->tables.counters, n_counters, err);
    if (status == DW_OK)
        status =
            e->base_on_host
                ? dw_cuda_windows_compare(&e->windows, e->c, e->blocks, &job, err)
                : dw_cuda_launch(e->c, DW_CUDA_COMPARE, e->n_round_strips, &job, err);
    if (status == DW_OK)
        status = dw_cuda_down(e->c, e->counters, e->tables.counters, n_counters, err);
    if (status == DW_OK)
        status = dw_cuda_check(e->c->driver,
                               e->c->driver->event_record(e->compared, e->c->stream),
                               e->c->where, "record an event", err);
    return status;
}

static dw_status wait_for_round(dw_cuda_encoder *e, dw_error *err)
{
    return dw_cuda_check(e->c->driver, e->c->driver->event_wait(e->compared), e->c->where,
                         "wait for the device", err);
}

/* Codes the list of changes. */
static dw_status code_round(dw_cuda_encoder *e, dw_error *err)
{
    const dw_cuda_encode_job job = device_job(e);
    const size_t n = e->n_round;
    /* all but the list of changes starts again */
    dw_status status =
        dw_cuda_zero(e->c, e->tables.counters + DW_CUDA_SORTED * sizeof *e->counters,
                     (DW_CUDA_COUNTERS - DW_CUDA_SORTED) * sizeof *e->counters, err);
    if (status == DW_OK)
        status = dw_cuda_launch(e->c, DW_CUDA_MODEL, n, &job, err);
    if (status == DW_OK)
        status = dw_cuda_launch(e->c, DW_CUDA_ANS, n, &job, err);
    if (status == DW_OK)
        status = dw_cuda_launch(e->c, DW_CUDA_PACK, n, &job, err);
    if (status == DW_OK)
        status = dw_cuda_down(e->c, e->codes, e->tables.codes, n * sizeof *e->codes, err);
    if (status == DW_OK)
        status = dw_cuda_down(e->c, e->counters, e->tables.counters,
                              DW_CUDA_COUNTERS * sizeof *e->counters, err);
    return status == DW_OK ? dw_cuda_wait(e->c, err) : status;
}

/* The bytes that the round has encoded. */
static uint64_t bytes_of_round(const dw_cuda_encoder *e)
{
    const dw_cuda_code *last = e->n_round ? &e->codes[e->n_round - 1] : NULL;
    return last ? last->out + last->n_bytes : 0;
}

/* Takes what the round has encoded; its bytes are at OUT. */
static void take_round(dw_cuda_encoder *e, const uint8_t *out)
{
    e->has_outcomes = true;
    for (size_t i = 0; i < e->n_round; i++) {
        dw_cuda_outcome *o = &e->outcomes[e->round[i]];
        if (e->codes[i].state != DW_CUDA_CODED)
            continue;
        o->code = e->codes[i];
        o->bytes = out + o->code.out;
        o->place = i;
        o->is_done = true;
        e->report.n_changed += o->code.n_changes;
    }
}

/* ---- dense blocks ---- */

/* Whether a block may be smaller in a dense form. */
static bool is_dense(const dw_cuda_code *code, const dw_cuda_block *b)
{
    return code->n_changes > 0 && code->n_bytes > b->n * b->width / 2;
}

/* The new elements of a block of this round in OUT. */
static dw_status rebuild(dw_cuda_encoder *e, uint8_t *out, size_t place,
                         const dw_cuda_block *b, dw_error *err)
{
    dw_cuda_encode_job job = device_job(e);
    job.block = (uint32_t)place;
    dw_status status =
        dw_cuda_launch(e->c, DW_CUDA_REBUILD, dw_cuda_strips_of(b), &job, err);
    if (status == DW_OK)
        status = dw_cuda_down(e->c, out, e->tables.scratch, b->n * b->width, err);
    return status == DW_OK ? dw_cuda_wait(e->c, err) : status;
}

/* Copies the dense blocks of a round that is not the last to the host. */
static dw_status keep_dense(dw_cuda_encoder *e, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < e->n_round; i++) {
        dw_cuda_outcome *o = &e->outcomes[e->round[i]];
        const dw_cuda_block b = e->blocks[i];
        if (!o->is_done || o->elems || !is_dense(&o->code, &b))
            continue;
        o->elems = dw_alloc((size_t)b.n * b.width);
        status = o->elems ? rebuild(e, o->elems, i, &b, err)
                          : dw_fail_memory(err, e->c->where);
    }
    return status;
}

/* ---- a version ---- */

void dw_cuda_encoder_forget(dw_cuda_encoder *e)
{
    for (size_t i = 0; i < e->n_kept; i++)
        dw_free(e->kept[i]);
    e->n_kept = 0;
    for (size_t i = 0; e->has_outcomes && i < e->n_blocks; i++) {
        dw_free(e->outcomes[i].elems);
        e->outcomes[i] = (dw_cuda_outcome){0};
    }
    e->has_outcomes = false;
    e->n_wanted = 0;
}

/* Whether tensors are at other addresses than before. */
static bool has_moved(const dw_cuda_encoder *e, const dw_encode_pair *pairs)
{
    for (size_t p = 0; pairs && p < e->n_pairs; p++)
        if (pairs[p].base.data != e->pairs[p].base.data ||
            pairs[p].next.data != e->pairs[p].next.data)
            return true;
    return false;
}

/* After a failure: waits until nothing is copied any more. */
static void drain(dw_cuda_encoder *e, dw_status status)
{
    dw_cuda_drain(e->c, status);
    dw_cuda_windows_drain(&e->windows, e->c, status);
}

static dw_status begin(dw_cuda_encoder *e, dw_error *err)
{
    dw_status status = e->is_uploaded ? DW_OK : upload_tables(e, err);
    const dw_cuda_encode_job job = device_job(e);
    if (status == DW_OK)
        status = dw_cuda_launch(e->c, DW_CUDA_CHOOSE, e->n_pairs, &job, err);
    if (status == DW_OK)
        status = compare_round(e, err);
    if (status == DW_OK)
        status = dw_cuda_down(e->c, e->chosen, e->tables.tensors,
                              e->n_pairs * sizeof *e->chosen, err);
    return status;
}

dw_status dw_cuda_encoder_begin(dw_cuda_encoder *e, const dw_encode_pair *pairs,
                                dw_error *err)
{
    dw_cuda_encoder_forget(e);
    e->report = (dw_cuda_encode_report){0};
    dw_status status = dw_cuda_enter(e->c, err);
    if (status != DW_OK)
        return status;
    if (has_moved(e, pairs)) {
        for (size_t p = 0; p < e->n_pairs; p++) {
            e->pairs[p].base.data = pairs[p].base.data;
            e->pairs[p].next.data = pairs[p].next.data;
        }
        e->is_uploaded = false;
    }
    status = begin(e, err);
    drain(e, status);
    dw_cuda_leave(e->c);
    return status;
}

/* Encodes the round, keeps it, and compares the next blocks. */
static dw_status next_round(dw_cuda_encoder *e, dw_error *err)
{
    dw_status status = code_round(e, err);
    if (status != DW_OK)
        return status;
    const uint64_t n_bytes = bytes_of_round(e);
    if (!dw_grow_array((void **)&e->kept, &e->n_kept_room, e->n_kept, sizeof *e->kept))
        return dw_fail_memory(err, e->c->where);
    uint8_t *out = dw_alloc((size_t)n_bytes);
    if (!out)
        return dw_fail_memory(err, e->c->where);
    e->kept[e->n_kept++] = out;
    status = dw_cuda_down(e->c, out, e->room.out, n_bytes, err);
    if (status == DW_OK)
        status = dw_cuda_wait(e->c, err);
    if (status == DW_OK) {
        take_round(e, out);
        status = keep_dense(e, err);
    }
    e->is_uploaded = false;
    list_blocks(e, false);
    if (status == DW_OK)
        status = upload_blocks(e, err);
    if (status == DW_OK)
        status = compare_round(e, err);
    return status == DW_OK ? wait_for_round(e, err) : status;
}

/* Blocks that are not in this round and not done. */
static size_t blocks_left(const dw_cuda_encoder *e)
{
    size_t n = 0;
    for (size_t i = 0; i < e->n_blocks; i++)
        n += !e->outcomes[i].is_done;
    return n - e->n_round;
}

dw_status dw_cuda_encoder_wait(dw_cuda_encoder *e, dw_error *err)
{
    dw_status status = dw_cuda_enter(e->c, err);
    if (status != DW_OK)
        return status;
    status = wait_for_round(e, err);
    if (status == DW_OK && e->counters[DW_CUDA_ENTRIES] > e->room.n_entries) {
        e->n_wanted = e->counters[DW_CUDA_ENTRIES];
        status = next_round(e, err);
        e->report.n_put_off = e->n_round + blocks_left(e);
        while (status == DW_OK && blocks_left(e) > 0)
            status = next_round(e, err);
    }
    drain(e, status);
    dw_cuda_leave(e->c);
    return status;
}

static dw_status finish(dw_cuda_encoder *e, dw_error *err)
{
    dw_status status = code_round(e, err);
    while (status == DW_OK && e->counters[DW_CUDA_BYTES] > e->room.n_bytes) {
        status = dw_cuda_encoder_room_for_bytes(e, e->counters[DW_CUDA_BYTES], err);
        if (status == DW_OK)
            status = code_round(e, err);
    }
    const uint64_t n_bytes = status == DW_OK ? bytes_of_round(e) : 0;
    if (status == DW_OK)
        status = dw_cuda_pinned_out(e, n_bytes, err);
    if (status == DW_OK)
        status = dw_cuda_down(e->c, e->out, e->room.out, n_bytes, err);
    if (status == DW_OK)
        status = dw_cuda_wait(e->c, err);
    if (status == DW_OK)
        take_round(e, e->out);
    return status;
}

dw_status dw_cuda_encoder_finish(dw_cuda_encoder *e, dw_error *err)
{
    dw_status status = dw_cuda_enter(e->c, err);
    if (status != DW_OK)
        return status;
    status = finish(e, err);
    dw_cuda_drain(e->c, status);
    dw_cuda_leave(e->c);
    return status;
}

void dw_cuda_encoder_end(dw_cuda_encoder *e)
{
    const uint64_t most = e->n_elems / MIN_ELEMS_A_CHANGE;
    uint64_t n = e->n_wanted + e->n_wanted / 4;
    n = n < most ? n : most;
    dw_cuda_encoder_forget(e);
    if (!e->grows || n <= e->room.n_entries || dw_cuda_enter(e->c, NULL) != DW_OK)
        return;
    /* if there is no memory, it goes on as before */
    (void)dw_cuda_encoder_take_room(e, n, NULL);
    dw_cuda_leave(e->c);
}

/* ---- results ---- */

/* Takes the smallest form of a dense block, as dw_block_encode does. */
static dw_status choose_form(dw_cuda_encoder *e, dw_encode_item *it,
                             const dw_cuda_block *b, const dw_cuda_outcome *o,
                             const uint8_t **bytes, dw_element element, dw_error *err)
{
    const uint32_t n_plain = b->n * b->width;
    if (!e->packed)
        e->packed = dw_packed_scratch_new();
    if (!e->packed)
        return dw_fail_memory(err, e->c->where);
    const uint8_t *packed, *elems = o->elems ? o->elems : e->elems;
    dw_status status = o->elems ? DW_OK : rebuild(e, e->elems, o->place, b, err);
    if (status != DW_OK)
        return status;
    e->report.n_dense++;
    const size_t n_packed = dw_packed_encode(&packed, e->packed, elems, b->n, element);
    if (n_packed == 0)
        return dw_fail_memory(err, e->c->where);
    if (n_packed < it->n_bytes) {
        it->mode = DW_BLOCK_PACKED;
        it->n_bytes = (uint32_t)n_packed;
        *bytes = packed;
    }
    if (n_plain < it->n_bytes) {
        it->mode = DW_BLOCK_STORED;
        it->n_bytes = n_plain;
        *bytes = elems;
    }
    return DW_OK;
}

static dw_status fetch_item(dw_cuda_encoder *e, dw_encode_item *it, size_t pair,
                            dw_error *err)
{
    const size_t i = e->first_block[pair] + (size_t)it->block;
    const dw_cuda_outcome *o = &e->outcomes[i];
    const dw_cuda_block b = dw_cuda_encoder_block(e, i);
    if (!o->is_done)
        return dw_fail(err, DW_INVALID, e->c->where, "a block was not encoded");
    it->n_changed = o->code.n_changes;
    it->n_bytes = o->code.n_bytes;
    it->mode = DW_BLOCK_SAME;
    if (it->n_changed == 0)
        return DW_OK;
    it->mode = DW_BLOCK_CLASS;
    const uint64_t sum = dw_digest_reduce(((unsigned __int128)o->code.digest[1] << 32) +
                                          o->code.digest[0]);
    it->move_share =
        dw_digest_times(dw_digest_power(b.first_byte / DW_DIGEST_CHUNK), sum);
    const uint8_t *bytes = o->bytes;
    dw_status status = is_dense(&o->code, &b)
                           ? choose_form(e, it, &b, o, &bytes,
                                         dw_dtype_element(e->pairs[pair].base.dtype), err)
                           : DW_OK;
    if (status != DW_OK)
        return status;
    it->bytes = dw_alloc(it->n_bytes);
    if (!it->bytes)
        return dw_fail_memory(err, e->c->where);
    memcpy(it->bytes, bytes, it->n_bytes);
    return DW_OK;
}

dw_status dw_cuda_encoder_fetch(dw_cuda_encoder *e, size_t first_pair, dw_class_map *maps,
                                size_t n_pairs, dw_encode_item *items, size_t n_items,
                                dw_error *err)
{
    dw_status status = dw_cuda_enter(e->c, err);
    if (status != DW_OK)
        return status;
    for (size_t p = 0; p < n_pairs; p++)
        maps[p] = e->chosen[first_pair + p].map;
    for (size_t i = 0; status == DW_OK && i < n_items; i++)
        status = fetch_item(e, &items[i], first_pair + items[i].pair, err);
    dw_cuda_drain(e->c, status);
    dw_cuda_leave(e->c);
    return status;
}

dw_cuda_encode_report dw_cuda_encoder_report(const dw_cuda_encoder *e)
{
    dw_cuda_encode_report report = e->report;
    report.n_device_bytes = e->tables.n_bytes + e->room.n_device_bytes;
    if (e->base_on_host)
        report.n_device_bytes += dw_cuda_windows_bytes(&e->windows, e->n_blocks);
    return report;
}

/* ---- all of it at once ---- */

/* The digests of the old weights: each as the share of its tensor's first block. */
static dw_status digest_bases(dw_cuda *c, const dw_encode_job *job, dw_encode_item *items,
                              size_t n_items, dw_error *err)
{
    const size_t n = job->n_pairs;
    dw_tensor *bases = dw_alloc_array(n, sizeof *bases);
    dw_digest *digests = dw_alloc_array(n, sizeof *digests);
    dw_status status = bases && digests ? DW_OK : dw_fail_memory(err, c->where);
    for (size_t p = 0; status == DW_OK && p < n; p++)
        bases[p] = job->pairs[p].base;
    if (status == DW_OK)
        status = dw_cuda_digest_tensors(digests, c, bases, n, err);
    for (size_t i = 0; status == DW_OK && i < n_items; i++)
        if (items[i].block == 0)
            items[i].base_share = digests[items[i].pair];
    dw_free(bases);
    dw_free(digests);
    return status;
}

dw_status dw_cuda_encode(void *call, const dw_encode_job *job, dw_class_map *maps,
                         dw_encode_item *items, size_t n_items, dw_error *err)
{
    dw_cuda_encode_call *k = call;
    dw_cuda_encoder *e = NULL;
    dw_status status = DW_OK;
    if (!job->digests_known)
        status = digest_bases(k->cuda, job, items, n_items, err);
    if (status == DW_OK)
        status = dw_cuda_encoder_open(&e, k->cuda, job->pairs, job->n_pairs, k->n_entries,
                                      k->base_on_host, err);
    if (status == DW_OK)
        status = dw_cuda_encoder_begin(e, NULL, err);
    if (status == DW_OK)
        status = dw_cuda_encoder_wait(e, err);
    if (status == DW_OK)
        status = dw_cuda_encoder_finish(e, err);
    if (status == DW_OK)
        status = dw_cuda_encoder_fetch(e, 0, maps, job->n_pairs, items, n_items, err);
    if (e)
        k->report = dw_cuda_encoder_report(e);
    dw_cuda_encoder_close(e);
    return status;
}
