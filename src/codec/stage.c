#include "codec/stage.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "codec/digest.h"
#include "codec/trl_delta.h"
#include "kernel/kernel.h"
#include "tensor/tensor_list.h"

#define NO_ENTRY SIZE_MAX

/* One block of one tensor, or, for TRL's layouts, all changes of a tensor. */
typedef struct item {
    size_t tensor;
    uint64_t block;
    enum { SWEEP_ONLY, DECODE_BLOCK, DECODE_TENSOR } kind;
    bool sweep; /* read the block for the base digest */
} item;

struct dw_stage {
    const dw_delta *delta;
    const dw_tensor *tensors;
    size_t n_tensors;
    size_t *entry_of; /* [tensors] the delta's entry, or NO_ENTRY */

    item *items;
    size_t n_items;
    unsigned n_workers;
    dw_block_scratch *scratch; /* [workers] */

    dw_digest *base_shares; /* [items] */
    dw_digest *move_shares; /* [items] */
    uint64_t *n_changed;    /* [items] */

    dw_stage_sink sink; /* of the current run */
    void *sink_context;
    const dw_stage_device *device; /* or NULL */
    dw_kept *kept;                 /* by the devices of the tensors */
    size_t n_kept;
};

void dw_stage_set_device(dw_stage *s, const dw_stage_device *device)
{
    s->device = device;
}

static void drop_kept(dw_stage *s)
{
    dw_kept_drop(s->kept, s->n_kept);
    dw_free(s->kept);
    s->kept = NULL;
    s->n_kept = 0;
}

size_t dw_stage_take_kept(dw_stage *s, dw_kept **out)
{
    const size_t n = s->n_kept;
    *out = s->kept;
    s->kept = NULL;
    s->n_kept = 0;
    return n;
}

/* ---- opening ---- */

static dw_status match_entries(dw_stage *s, dw_error *err)
{
    const dw_delta *delta = s->delta;
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, s->tensors, s->n_tensors, err);
    if (status != DW_OK)
        return status;
    for (size_t t = 0; t < s->n_tensors; t++)
        s->entry_of[t] = NO_ENTRY;
    for (size_t e = 0; status == DW_OK && e < delta->info.n_tensors; e++) {
        const dw_delta_entry *entry = &delta->entries[e];
        size_t t = dw_name_index_find(&names, entry->shape.name);
        if (t == SIZE_MAX)
            status = dw_fail_tensor(err, DW_MISMATCH, delta->label, entry->shape.name,
                                    "the weights have no tensor of that name");
        else if (entry->has_shape)
            status =
                dw_tensor_same_shape(&entry->shape, &s->tensors[t], delta->label, err);
        else if (entry->shape.dtype != s->tensors[t].dtype)
            status = dw_fail_tensor(err, DW_MISMATCH, delta->label, entry->shape.name,
                                    "it is %s here, but %s in the weights",
                                    dw_dtype_name(entry->shape.dtype),
                                    dw_dtype_name(s->tensors[t].dtype));
        if (status == DW_OK)
            s->entry_of[t] = e;
    }
    dw_name_index_release(&names);
    uint64_t n_elems = 0;
    for (size_t t = 0; t < s->n_tensors; t++)
        n_elems += dw_tensor_units(&s->tensors[t]);
    if (status == DW_OK && delta->info.has_digests &&
        (delta->info.n_model_tensors != s->n_tensors ||
         delta->info.n_model_elems != n_elems))
        status = dw_fail(err, DW_MISMATCH, delta->label,
                         "the delta is for a model of %" PRIu64 " tensors and %" PRIu64
                         " elements, but these weights have %zu and %" PRIu64,
                         delta->info.n_model_tensors, delta->info.n_model_elems,
                         s->n_tensors, n_elems);
    return status;
}

static uint64_t blocks_of(const dw_tensor *t)
{
    return dw_block_count(dw_tensor_units(t), dw_dtype_element(t->dtype).width);
}

dw_status dw_stage_open(dw_stage **out, const dw_delta *delta, const dw_tensor *tensors,
                        size_t n_tensors, unsigned n_threads, dw_error *err)
{
    *out = NULL;
    dw_status status = dw_tensors_check_placed(tensors, n_tensors, err);
    if (status != DW_OK)
        return status;
    dw_stage *s = dw_alloc_zeroed(1, sizeof *s);
    if (!s)
        return dw_fail_memory(err, delta->label);
    s->delta = delta;
    s->tensors = tensors;
    s->n_tensors = n_tensors;
    size_t n_blocks = 0;
    for (size_t t = 0; t < n_tensors; t++)
        n_blocks += (size_t)blocks_of(&tensors[t]);
    s->n_workers = dw_worker_count(n_threads, n_blocks);
    s->entry_of = dw_alloc_array(n_tensors, sizeof *s->entry_of);
    s->scratch = dw_alloc_zeroed(s->n_workers, sizeof *s->scratch);
    if (!s->entry_of || !s->scratch)
        status = dw_fail_memory(err, delta->label);
    for (unsigned w = 0; status == DW_OK && w < s->n_workers; w++)
        status = dw_block_scratch_init(&s->scratch[w], err);
    if (status == DW_OK)
        status = match_entries(s, err);
    if (status != DW_OK)
        dw_stage_close(s);
    else
        *out = s;
    return status;
}

static void release_items(dw_stage *s)
{
    dw_free(s->items);
    dw_free(s->base_shares);
    dw_free(s->move_shares);
    dw_free(s->n_changed);
    s->items = NULL;
    s->base_shares = s->move_shares = s->n_changed = NULL;
    s->n_items = 0;
}

void dw_stage_close(dw_stage *s)
{
    if (!s)
        return;
    release_items(s);
    drop_kept(s);
    for (unsigned w = 0; s->scratch && w < s->n_workers; w++)
        dw_block_scratch_release(&s->scratch[w]);
    dw_free(s->scratch);
    dw_free(s->entry_of);
    dw_free(s);
}

/* ---- items ---- */

/* Lists the work: with SWEEP every block of every tensor, else only changed blocks. */
static dw_status list_items(dw_stage *s, bool sweep, dw_error *err)
{
    release_items(s);
    size_t n_most = 0;
    for (size_t t = 0; t < s->n_tensors; t++)
        n_most += (size_t)blocks_of(&s->tensors[t]) + 1;
    s->items = dw_alloc_array(n_most, sizeof *s->items);
    s->base_shares = dw_alloc_zeroed(n_most, sizeof *s->base_shares);
    s->move_shares = dw_alloc_zeroed(n_most, sizeof *s->move_shares);
    s->n_changed = dw_alloc_zeroed(n_most, sizeof *s->n_changed);
    if (!s->items || !s->base_shares || !s->move_shares || !s->n_changed) {
        release_items(s);
        return dw_fail_memory(err, s->delta->label);
    }
    for (size_t t = 0; t < s->n_tensors; t++) {
        const dw_delta_entry *e =
            s->entry_of[t] == NO_ENTRY ? NULL : &s->delta->entries[s->entry_of[t]];
        bool whole = e && s->delta->info.codec != DW_CODEC_CLASS;
        if (whole)
            s->items[s->n_items++] = (item){t, 0, DECODE_TENSOR, false};
        for (uint64_t b = 0; b < blocks_of(&s->tensors[t]); b++) {
            bool decode = e && !whole && e->blocks[b].mode != DW_BLOCK_SAME;
            if (decode || sweep)
                s->items[s->n_items++] =
                    (item){t, b, decode ? DECODE_BLOCK : SWEEP_ONLY, sweep};
        }
    }
    return DW_OK;
}

static uint64_t bytes_of_item(const void *context, size_t i)
{
    const dw_stage *s = context;
    const item *it = &s->items[i];
    const dw_tensor *t = &s->tensors[it->tensor];
    unsigned width = dw_dtype_element(t->dtype).width;
    return it->kind == DECODE_TENSOR
               ? 0
               : (uint64_t)dw_block_span(dw_tensor_units(t), width, it->block).n * width;
}

/* Counts the changes of a block and passes them to the sink. */
static dw_status take_changes(dw_stage *s, size_t i, uint64_t first, const dw_decoded *d,
                              const dw_note *note, dw_error *err)
{
    s->n_changed[i] += d->n_changes;
    s->move_shares[i] =
        dw_digest_plus(s->move_shares[i], dw_digest_moves_sum(&note->digest));
    return s->sink ? s->sink(s->sink_context, s->items[i].tensor, first, d, err) : DW_OK;
}

typedef struct tensor_walk {
    dw_stage *stage;
    size_t item;
    dw_loan *old_elems;
} tensor_walk;

static dw_status take_trl_block(void *context, uint64_t first, const dw_decoded *d,
                                dw_error *err)
{
    tensor_walk *walk = context;
    const dw_tensor *t = &walk->stage->tensors[walk->stage->items[walk->item].tensor];
    const unsigned width = dw_dtype_element(t->dtype).width;
    dw_note note = dw_note_at(t->first_byte + first * width);
    const uint8_t *old;
    dw_status status = dw_map_read_positions(&old, walk->old_elems,
                                             (const uint8_t *)t->data + first * width,
                                             d->positions, d->n_changes, width, err);
    if (status != DW_OK)
        return status;
    dw_note_list(&note, d, old, width);
    return take_changes(walk->stage, walk->item, first, d, &note, err);
}

static dw_status run_item(void *context, size_t i, unsigned worker, dw_error *err)
{
    dw_stage *s = context;
    const item *it = &s->items[i];
    const dw_tensor *t = &s->tensors[it->tensor];
    if (t->device)
        return DW_OK; /* run_on_devices */
    const dw_element element = dw_dtype_element(t->dtype);
    const dw_delta_entry *e =
        it->kind == SWEEP_ONLY ? NULL : &s->delta->entries[s->entry_of[it->tensor]];
    if (it->kind == DECODE_TENSOR) {
        tensor_walk walk = {s, i, &s->scratch[worker].old_elems};
        dw_status status = dw_block_scratch_reserve(&s->scratch[worker], err);
        return status == DW_OK
                   ? dw_trl_walk(s->delta, e, dw_tensor_units(t),
                                 s->scratch[worker].positions, take_trl_block, &walk, err)
                   : status;
    }
    const dw_span span = dw_block_span(dw_tensor_units(t), element.width, it->block);
    const uint64_t first_byte = t->first_byte + span.first * element.width;
    const void *data;
    dw_status status = dw_map_read(&data, &s->scratch[worker].old_elems,
                                   (const uint8_t *)t->data + span.first * element.width,
                                   (size_t)span.n * element.width, err);
    if (status != DW_OK)
        return status;
    if (it->sweep)
        s->base_shares[i] =
            dw_digest_share(data, (uint64_t)span.n * element.width, first_byte);
    if (it->kind == SWEEP_ONLY)
        return DW_OK;
    const dw_delta_block *block = &e->blocks[it->block];
    dw_decoded d;
    dw_note note = dw_note_at(first_byte);
    status = dw_block_decode(&d, &s->scratch[worker], block->mode, block->bytes,
                             block->n_bytes, data, span.n, element, &e->map, &note, err);
    if (status == DW_CORRUPT)
        return dw_fail_tensor(err, DW_CORRUPT, s->delta->label, e->shape.name,
                              "block %" PRIu64 " does not decode", it->block);
    return status == DW_OK ? take_changes(s, i, span.first, &d, &note, err) : status;
}

/* ---- weights that are elsewhere ---- */

/* Who works on which tensors: those on DEVICE, or all if it is NULL. */
typedef struct elsewhere {
    dw_device *device;
    const dw_stage_device *how;
} elsewhere;

static bool is_theirs(const dw_stage *s, const elsewhere *e, size_t t)
{
    return !e->device || s->tensors[t].device == e->device;
}

/* Lists the blocks that they decode. *SWEEP: they read all of their weights too. */
static dw_status list_blocks(const dw_stage *s, const elsewhere *e,
                             dw_stage_block *blocks, size_t *n_blocks, bool *sweep,
                             dw_error *err)
{
    for (size_t i = 0; i < s->n_items; i++) {
        const item *it = &s->items[i];
        const dw_tensor *t = &s->tensors[it->tensor];
        if (!is_theirs(s, e, it->tensor))
            continue;
        *sweep |= it->sweep;
        if (it->kind == DECODE_TENSOR)
            return dw_fail_tensor(err, DW_UNSUPPORTED, s->delta->label, t->name,
                                  "devices do not read TRL's layouts");
        if (it->kind != DECODE_BLOCK)
            continue;
        const dw_delta_entry *entry = &s->delta->entries[s->entry_of[it->tensor]];
        blocks[(*n_blocks)++] = (dw_stage_block){
            .tensor = it->tensor,
            .span = dw_block_span(dw_tensor_units(t), entry->element.width, it->block),
            .entry = entry,
            .block = &entry->blocks[it->block]};
    }
    return DW_OK;
}

/* Runs all their items at once. */
static dw_status run_elsewhere(dw_stage *s, const elsewhere *e, dw_error *err)
{
    dw_stage_block *blocks = dw_alloc_zeroed(s->n_items, sizeof *blocks);
    dw_digest *digests = dw_alloc_array(s->n_tensors, sizeof *digests);
    dw_status status = blocks && digests ? DW_OK : dw_fail_memory(err, s->delta->label);
    size_t n = 0;
    bool sweep = false;
    if (status == DW_OK)
        status = list_blocks(s, e, blocks, &n, &sweep, err);
    if (status == DW_OK && n > 0)
        status = e->how->decode(e->how->context, s->tensors, blocks, n, err);
    if (status == DW_OK && sweep)
        status = e->how->digest(e->how->context, digests, s->tensors, s->n_tensors, err);
    n = 0;
    for (size_t i = 0; status == DW_OK && i < s->n_items; i++) {
        const item *it = &s->items[i];
        if (!is_theirs(s, e, it->tensor))
            continue;
        if (it->sweep && it->block == 0)
            s->base_shares[i] = digests[it->tensor];
        if (it->kind != DECODE_BLOCK)
            continue;
        s->move_shares[i] = blocks[n].move_share;
        s->n_changed[i] = blocks[n++].n_changed;
    }
    dw_free(blocks);
    dw_free(digests);
    return status;
}

static dw_status decode_on(void *context, const dw_tensor *tensors,
                           dw_stage_block *blocks, size_t n_blocks, dw_error *err)
{
    dw_kept *kept = context;
    const dw_device_ops *ops = kept->device->ops;
    dw_status status = ops->stage_new(&kept->changes, kept->device, tensors, err);
    return status == DW_OK ? ops->stage_decode(kept->changes, blocks, n_blocks, err)
                           : status;
}

static dw_status digest_on(void *context, dw_digest *out, const dw_tensor *tensors,
                           size_t n_tensors, dw_error *err)
{
    const dw_kept *kept = context;
    dw_tensor *theirs = dw_alloc_array(n_tensors, sizeof *theirs);
    dw_digest *found = dw_alloc_array(n_tensors, sizeof *found);
    dw_status status = theirs && found ? DW_OK : dw_fail_memory(err, NULL);
    size_t n = 0;
    for (size_t t = 0; status == DW_OK && t < n_tensors; t++)
        if (tensors[t].device == kept->device)
            theirs[n++] = tensors[t];
    if (status == DW_OK)
        status = kept->device->ops->digest(kept->device, found, theirs, n, err);
    n = 0;
    for (size_t t = 0; status == DW_OK && t < n_tensors; t++)
        if (tensors[t].device == kept->device)
            out[t] = found[n++];
    dw_free(theirs);
    dw_free(found);
    return status;
}

/* The items of tensors on devices, which keep the changes. */
static dw_status run_on_devices(dw_stage *s, dw_error *err)
{
    dw_device_list list;
    drop_kept(s);
    dw_status status = dw_devices_of(&list, s->tensors, s->n_tensors, err);
    if (status == DW_OK && list.n > 0 &&
        !(s->kept = dw_alloc_zeroed(list.n, sizeof *s->kept)))
        status = dw_fail_memory(err, s->delta->label);
    for (size_t i = 0; status == DW_OK && i < list.n; i++) {
        dw_kept *kept = &s->kept[s->n_kept];
        *kept = (dw_kept){.device = list.items[i]};
        const dw_stage_device how = {decode_on, digest_on, kept};
        status = run_elsewhere(s, &(elsewhere){list.items[i], &how}, err);
        s->n_kept += kept->changes != NULL;
        for (size_t k = 0; status == DW_OK && k < s->n_items; k++)
            if (s->tensors[s->items[k].tensor].device == list.items[i])
                kept->n_changed += s->n_changed[k];
    }
    dw_device_list_release(&list);
    return status;
}

static dw_status run(dw_stage *s, dw_stage_sink sink, void *context,
                     const dw_progress *progress, dw_error *err)
{
    if (s->device)
        return run_elsewhere(s, &(elsewhere){NULL, s->device}, err);
    dw_status status = run_on_devices(s, err);
    if (status != DW_OK)
        return status;
    s->sink = sink;
    s->sink_context = context;
    dw_parallel_progress bar = {.bytes_of = bytes_of_item};
    if (progress) {
        bar.report = *progress;
        for (size_t i = 0; i < s->n_items; i++)
            bar.bytes_total += bytes_of_item(s, i);
    }
    return dw_parallel(s->n_workers, s->n_items, run_item, s, &bar, err);
}

/* ---- verifying ---- */

/* The error if the weights are not the version that the delta starts from; names the
 * difference. */
static dw_status fail_stale(const dw_stage *s, const char *tensor, bool at_new,
                            dw_error *err)
{
    const dw_delta_info *info = &s->delta->info;
    if (at_new)
        return dw_fail(err, DW_STALE, s->delta->label,
                       "the weights are at version %" PRIu64 " already",
                       info->new_version);
    return dw_fail(err, DW_STALE, s->delta->label,
                   "the weights are not version %" PRIu64
                   ", which this delta starts from: %s%s%s differs",
                   info->base_version, tensor ? "tensor '" : "a tensor it does not touch",
                   tensor ? tensor : "", tensor ? "'" : "");
}

/* If a block does not decode, the base may be wrong. Reads all weights to find out. STATE
 * takes their state. */
static dw_status diagnose(const dw_stage *s, dw_digest *state, dw_error *err)
{
    if (!s->delta->info.has_digests)
        return DW_CORRUPT;
    dw_digest *digests = dw_alloc_array(s->n_tensors, sizeof *digests);
    if (!digests)
        return DW_CORRUPT;
    dw_status status = s->device
                           ? s->device->digest(s->device->context, digests, s->tensors,
                                               s->n_tensors, NULL)
                           : dw_digest_tensors(digests, NULL, s->tensors, s->n_tensors,
                                               s->n_workers, NULL, NULL);
    if (status == DW_OK)
        *state = dw_digest_state(s->tensors, digests, s->n_tensors);
    const char *different = NULL;
    for (size_t t = 0; status == DW_OK && !different && t < s->n_tensors; t++)
        if (s->entry_of[t] != NO_ENTRY &&
            digests[t] != s->delta->entries[s->entry_of[t]].base_digest)
            different = s->tensors[t].name;
    dw_free(digests);
    if (status == DW_OK && *state != s->delta->info.base_state)
        return fail_stale(s, different, *state == s->delta->info.new_state, err);
    return DW_CORRUPT;
}

static dw_status check_outcome(const dw_stage *s, const dw_digest *base,
                               const dw_digest *next, const uint64_t *n_changed,
                               const dw_stage_result *result, dw_error *err)
{
    const dw_delta_info *info = &s->delta->info;
    for (size_t t = 0; t < s->n_tensors; t++) {
        if (s->entry_of[t] == NO_ENTRY)
            continue;
        const dw_delta_entry *e = &s->delta->entries[s->entry_of[t]];
        if (base[t] != e->base_digest)
            return fail_stale(s, e->shape.name, result->base_state == info->new_state,
                              err);
        if (next[t] != e->new_digest || n_changed[t] != e->n_changed)
            return dw_fail_tensor(err, DW_CORRUPT, s->delta->label, e->shape.name,
                                  "decodes to other weights than the delta names");
    }
    if (result->base_state != info->base_state)
        return fail_stale(s, NULL, result->base_state == info->new_state, err);
    if (result->new_state != info->new_state)
        return dw_fail(err, DW_CORRUPT, s->delta->label,
                       "decodes to another model state than it names");
    return DW_OK;
}

dw_status dw_stage_verify(dw_stage_result *out, dw_stage *s,
                          const dw_apply_options *options, dw_stage_sink sink,
                          void *context, dw_error *err)
{
    const bool sweep = options->base_digests == NULL;
    *out = (dw_stage_result){0};
    dw_status status = list_items(s, sweep, err);
    if (status == DW_OK)
        status = run(s, sink, context, &options->progress, err);
    if (status == DW_CORRUPT)
        status = diagnose(s, &out->base_state, err);
    if (status != DW_OK)
        return status;

    dw_digest *base = dw_alloc_zeroed(s->n_tensors, sizeof *base);
    dw_digest *next = dw_alloc_zeroed(s->n_tensors, sizeof *next);
    uint64_t *n_changed = dw_alloc_zeroed(s->n_tensors, sizeof *n_changed);
    if (!base || !next || !n_changed) {
        status = dw_fail_memory(err, s->delta->label);
        goto out;
    }
    if (!sweep)
        memcpy(base, options->base_digests, s->n_tensors * sizeof *base);
    for (size_t i = 0; i < s->n_items; i++) {
        size_t t = s->items[i].tensor;
        base[t] = dw_digest_plus(base[t], s->base_shares[i]);
        next[t] = dw_digest_plus(next[t], s->move_shares[i]);
        n_changed[t] += s->n_changed[i];
        out->n_changed += s->n_changed[i];
    }
    for (size_t t = 0; t < s->n_tensors; t++)
        next[t] = dw_digest_plus(next[t], base[t]);
    out->base_state = dw_digest_state(s->tensors, base, s->n_tensors);
    out->new_state = dw_digest_state(s->tensors, next, s->n_tensors);
    if (s->delta->info.has_digests)
        status = check_outcome(s, base, next, n_changed, out, err);
    if (status == DW_OK && options->new_digests)
        memcpy(options->new_digests, next, s->n_tensors * sizeof *next);
out:
    dw_free(base);
    dw_free(next);
    dw_free(n_changed);
    return status;
}

dw_status dw_stage_repeat(dw_stage *s, dw_stage_sink sink, void *context, dw_error *err)
{
    dw_status status = list_items(s, false, err);
    for (unsigned w = 0; status == DW_OK && w < s->n_workers; w++)
        status = dw_block_scratch_reserve(&s->scratch[w], err);
    return status == DW_OK ? run(s, sink, context, NULL, err) : status;
}
