#include "codec/encode.h"

#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* a hash state on the stack */
#include <xxhash.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "codec/digest.h"
#include "codec/trl_delta.h"
#include "tensor/device.h"

typedef dw_encode_item item;

typedef struct encoder {
    dw_encode_job *job;
    const dw_diff_options *options;
    dw_class_map *maps; /* [pairs] */
    item *items;
    size_t n_items;
    unsigned n_workers;
    dw_block_scratch *scratch; /* [workers] */
    dw_patch *collected;       /* for TRL's layouts */
} encoder;

static dw_element element_of(const dw_encode_pair *pair)
{
    return dw_dtype_element(pair->base.dtype);
}

/* Whether the new elements are F32 and are published as BF16. */
static bool is_rounded(const dw_encode_pair *pair)
{
    return pair->next.data && pair->next.dtype != pair->base.dtype;
}

/* Whether the caller gave the same memory twice: then nothing changed. */
static bool is_same(const encoder *e, const dw_encode_pair *pair)
{
    return e->job->digests_known && pair->next.data && pair->next.data == pair->base.data;
}

/* If a pair was captured, its old version may be on the host. */
static bool is_on_device(const dw_encode_pair *pair)
{
    return pair->base.device || pair->next.device;
}

/* Whether its blocks are not encoded here. */
static bool is_elsewhere(const encoder *e, const dw_encode_pair *pair)
{
    return e->job->device || is_on_device(pair);
}

/* ---- the loop over blocks ---- */

static uint64_t bytes_of_item(const void *context, size_t i)
{
    const encoder *e = context;
    const dw_encode_pair *pair = &e->job->pairs[e->items[i].pair];
    unsigned width = element_of(pair).width;
    return (uint64_t)dw_block_span(dw_tensor_units(&pair->base), width, e->items[i].block)
               .n *
           width;
}

/* The new elements of a block: in place, or a copy of the old ones with the stores of a
 * segment. */
static dw_status find_new(const uint8_t **out, const encoder *e, const item *it,
                          const dw_span *span, const uint8_t *old,
                          dw_block_scratch *scratch, dw_error *err)
{
    const dw_encode_pair *pair = &e->job->pairs[it->pair];
    const unsigned width = element_of(pair).width;
    if (!e->job->patch) {
        const size_t n_bytes = is_rounded(pair) ? sizeof(float) : width;
        const void *elems;
        dw_status read =
            dw_map_read(&elems, &scratch->new_elems,
                        (const uint8_t *)pair->next.data + span->first * n_bytes,
                        span->n * n_bytes, err);
        *out = elems;
        return read;
    }
    dw_status status = dw_block_scratch_reserve(scratch, err);
    if (status != DW_OK)
        return status;
    memcpy(scratch->elems, old, (size_t)span->n * width);
    dw_kernels_get()->scatter[dw_width_index(width)](
        scratch->elems, it->segment->positions, it->segment->values, it->segment->n);
    *out = scratch->elems;
    return DW_OK;
}

/* The old elements of a block, in place or copied. */
static dw_status find_old(uint8_t **out, const encoder *e, const item *it,
                          const dw_span *span, dw_block_scratch *scratch, dw_error *err)
{
    const dw_tensor *base = &e->job->pairs[it->pair].base;
    const unsigned width = dw_dtype_element(base->dtype).width;
    const void *elems;
    dw_status status = dw_map_read(&elems, &scratch->old_elems,
                                   (const uint8_t *)base->data + span->first * width,
                                   (size_t)span->n * width, err);
    *out = (uint8_t *)(uintptr_t)elems;
    if (status == DW_OK && e->options->update_base && elems == scratch->old_elems.bytes)
        return dw_fail_tensor(err, DW_INVALID, NULL, base->name,
                              "its file was opened for reading, so the new values cannot "
                              "be stored there");
    return status;
}

static dw_status encode_item(void *context, size_t i, unsigned worker, dw_error *err)
{
    encoder *e = context;
    item *it = &e->items[i];
    const dw_encode_pair *pair = &e->job->pairs[it->pair];
    if (is_elsewhere(e, pair))
        return DW_OK; /* encode_on_devices */
    const dw_element element = element_of(pair);
    const dw_span span =
        dw_block_span(dw_tensor_units(&pair->base), element.width, it->block);
    const uint64_t first_byte = pair->base.first_byte + span.first * element.width;
    uint8_t *old;
    const uint8_t *new_;
    dw_status status = find_old(&old, e, it, &span, &e->scratch[worker], err);
    if (status == DW_OK)
        status = find_new(&new_, e, it, &span, old, &e->scratch[worker], err);
    if (status != DW_OK)
        return status;
    if (!e->job->digests_known)
        it->base_share =
            dw_digest_share(old, (uint64_t)span.n * element.width, first_byte);

    dw_block_code code;
    dw_note note = dw_note_at(first_byte);
    note.update_old = e->options->update_base;
    note.round_new = is_rounded(pair);
    status = dw_block_encode(&code, &e->scratch[worker], old, new_, span.n, element,
                             &e->maps[it->pair], &note, err);
    if (status != DW_OK)
        return status;
    it->mode = code.mode;
    it->n_bytes = (uint32_t)code.encoded.n_bytes;
    it->n_changed = code.encoded.n_changes;
    if (it->n_changed == 0)
        return DW_OK;
    it->bytes = dw_alloc(it->n_bytes);
    if (!it->bytes)
        return dw_fail_memory(err, pair->base.name);
    memcpy(it->bytes, code.encoded.bytes, it->n_bytes);
    it->move_share = dw_digest_moves_sum(&note.digest);
    return DW_OK;
}

/* For TRL's layouts: lists the changes. */
static dw_status collect_item(void *context, size_t i, unsigned worker, dw_error *err)
{
    encoder *e = context;
    item *it = &e->items[i];
    const dw_encode_pair *pair = &e->job->pairs[it->pair];
    const unsigned width = element_of(pair).width, w = dw_width_index(width);
    const dw_span span = dw_block_span(dw_tensor_units(&pair->base), width, it->block);
    const uint64_t first_byte = pair->base.first_byte + span.first * width;
    dw_block_scratch *s = &e->scratch[worker];
    uint8_t *old;
    const uint8_t *new_;
    dw_status status = dw_block_scratch_reserve(s, err);
    if (status == DW_OK)
        status = find_old(&old, e, it, &span, s, err);
    if (status == DW_OK)
        status = find_new(&new_, e, it, &span, old, s, err);
    if (status != DW_OK)
        return status;
    /* read the caller's elements only once: they may change meanwhile */
    if (is_rounded(pair))
        dw_kernels_get()->round_bf16(s->elems, new_, span.n);
    else if (new_ != s->elems)
        dw_read_once(s->elems, new_, (size_t)span.n * width);
    new_ = s->elems;
    if (!e->job->digests_known)
        it->base_share = dw_digest_share(old, (uint64_t)span.n * width, first_byte);
    it->n_changed = dw_kernels_get()->diff[w](s->positions, old, new_, span.n);
    dw_kernels_get()->gather[w](s->values, new_, s->positions, it->n_changed);
    dw_decoded d = {s->positions, s->values, it->n_changed};
    status = dw_patch_take(e->collected, it->pair, span.first, &d, err);
    if (status != DW_OK)
        return status;
    dw_note note = dw_note_at(first_byte);
    dw_note_list(&note, &d, old, width);
    it->move_share = dw_digest_moves_sum(&note.digest);
    if (e->options->update_base)
        dw_kernels_get()->scatter[w](old, s->positions, s->values, it->n_changed);
    return DW_OK;
}

/* ---- pairs on devices ---- */

/* Takes what was encoded before. */
static dw_status fetch_captured(encoder *e, dw_error *err)
{
    const dw_encode_capture *c = e->job->capture;
    dw_status status = DW_OK;
    for (size_t begin = 0, end; status == DW_OK && begin < e->n_items; begin = end) {
        const size_t p = e->items[begin].pair;
        for (end = begin; end < e->n_items && e->items[end].pair == p; end++)
            ;
        if (is_on_device(&e->job->pairs[p]))
            status = c->fetch(c->context, &e->job->pairs[p], &e->maps[p],
                              e->items + begin, end - begin, err);
    }
    return status;
}

/* Lets DEVICE encode its pairs: they become a job of their own. */
static dw_status encode_on(encoder *e, dw_device *device, dw_error *err)
{
    const size_t n = e->job->n_pairs;
    dw_encode_pair *pairs = dw_alloc_zeroed(n, sizeof *pairs);
    size_t *here = dw_alloc_array(n, sizeof *here); /* the number there of each pair */
    dw_class_map *maps = dw_alloc_zeroed(n, sizeof *maps);
    item *items = dw_alloc_zeroed(e->n_items, sizeof *items);
    size_t n_pairs = 0, n_items = 0;
    dw_status status =
        pairs && here && maps && items ? DW_OK : dw_fail_memory(err, device->name);
    for (size_t p = 0; status == DW_OK && p < n; p++)
        if (e->job->pairs[p].base.device == device && !is_same(e, &e->job->pairs[p])) {
            here[p] = n_pairs;
            pairs[n_pairs++] = e->job->pairs[p];
        }
    for (size_t i = 0; status == DW_OK && i < e->n_items; i++)
        if (e->job->pairs[e->items[i].pair].base.device == device) {
            items[n_items] = e->items[i];
            items[n_items++].pair = here[e->items[i].pair];
        }
    if (status == DW_OK && n_items > 0) {
        const dw_encode_job job = {
            .pairs = pairs, .n_pairs = n_pairs, .digests_known = e->job->digests_known};
        status = device->ops->encode(device, &job, maps, items, n_items, err);
    }
    /* also after a failure: some items may have bytes */
    for (size_t i = 0, k = 0; items && k < n_items && i < e->n_items; i++) {
        const size_t p = e->items[i].pair;
        if (e->job->pairs[p].base.device != device)
            continue;
        e->items[i] = items[k++];
        e->items[i].pair = p;
        e->maps[p] = maps[here[p]];
    }
    dw_free(pairs);
    dw_free(here);
    dw_free(maps);
    dw_free(items);
    return status;
}

static dw_status encode_on_devices(encoder *e, dw_error *err)
{
    if (e->job->device)
        return e->job->device->run(e->job->device->context, e->job, e->maps, e->items,
                                   e->n_items, err);
    dw_status status = DW_OK;
    bool some = false;
    for (size_t p = 0; p < e->job->n_pairs; p++)
        some = some || is_on_device(&e->job->pairs[p]);
    if (!some)
        return DW_OK;
    if (e->options->codec != DW_CODEC_CLASS || e->options->update_base || e->job->patch)
        return dw_fail(err, DW_UNSUPPORTED, NULL,
                       "devices encode with the codec `class` only");
    if (e->job->capture)
        return fetch_captured(e, err);
    dw_device *done = NULL;
    for (size_t p = 0; status == DW_OK && p < e->job->n_pairs; p++) {
        dw_device *device = e->job->pairs[p].base.device;
        bool is_first = device && device != done;
        for (size_t q = 0; is_first && q < p; q++)
            is_first = e->job->pairs[q].base.device != device;
        if (is_first)
            status = encode_on(e, device, err);
        done = is_first ? device : done;
    }
    return status;
}

/* ---- preparing ---- */

static dw_status choose_map(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    (void)err;
    encoder *e = context;
    const dw_encode_pair *pair = &e->job->pairs[i];
    if (!is_same(e, pair) && !is_elsewhere(e, pair))
        e->maps[i] = dw_class_map_choose(pair->base.data, dw_tensor_units(&pair->base),
                                         element_of(pair));
    return DW_OK;
}

/* Lists the blocks to compare; with a patch, those that it changes. */
static dw_status list_items(encoder *e, dw_error *err)
{
    size_t n_most = 0;
    for (size_t p = 0; p < e->job->n_pairs; p++)
        n_most += (size_t)dw_block_count(dw_tensor_units(&e->job->pairs[p].base),
                                         element_of(&e->job->pairs[p]).width);
    e->items = dw_alloc_zeroed(n_most, sizeof *e->items);
    if (!e->items)
        return dw_fail_memory(err, NULL);
    for (size_t p = 0; p < e->job->n_pairs; p++) {
        const dw_encode_pair *pair = &e->job->pairs[p];
        const unsigned width = element_of(pair).width;
        if (e->job->patch) {
            for (size_t s = pair->first_segment; s < pair->end_segment; s++) {
                const dw_segment *segment = &e->job->patch->segments[s];
                e->items[e->n_items++] =
                    (item){.pair = p,
                           .block = segment->first / dw_block_elems(width),
                           .segment = segment};
            }
            continue;
        }
        if (is_same(e, pair))
            continue;
        uint64_t n_blocks = dw_block_count(dw_tensor_units(&pair->base), width);
        for (uint64_t b = 0; b < n_blocks; b++)
            e->items[e->n_items++] = (item){.pair = p, .block = b};
    }
    return DW_OK;
}

static dw_status prepare(encoder *e, dw_error *err)
{
    dw_status status = list_items(e, err);
    if (status != DW_OK)
        return status;
    size_t n_here = 0; /* for the others, threads would have nothing to do */
    for (size_t i = 0; i < e->n_items; i++)
        n_here += !is_elsewhere(e, &e->job->pairs[e->items[i].pair]);
    e->maps = dw_alloc_zeroed(e->job->n_pairs, sizeof *e->maps);
    e->n_workers = dw_worker_count(e->options->n_threads, n_here);
    e->scratch = dw_alloc_zeroed(e->n_workers, sizeof *e->scratch);
    if (!e->maps || !e->scratch)
        return dw_fail_memory(err, NULL);
    for (unsigned w = 0; status == DW_OK && w < e->n_workers; w++)
        status = dw_block_scratch_init(&e->scratch[w], err);
    if (status == DW_OK && e->options->codec == DW_CODEC_CLASS)
        status = dw_parallel(e->n_workers, e->job->n_pairs, choose_map, e, NULL, err);
    return status;
}

static void release(encoder *e)
{
    for (size_t i = 0; e->items && i < e->n_items; i++)
        dw_free(e->items[i].bytes);
    dw_free(e->items);
    dw_free(e->maps);
    for (unsigned w = 0; e->scratch && w < e->n_workers; w++)
        dw_block_scratch_release(&e->scratch[w]);
    dw_free(e->scratch);
    dw_patch_free(e->collected);
}

/* ---- the outcome ---- */

static void sum_digests(encoder *e, dw_delta_info *info)
{
    dw_encode_job *job = e->job;
    for (size_t p = 0; p < job->n_pairs; p++) {
        if (!job->digests_known)
            job->pairs[p].base_digest = 0;
        job->pairs[p].new_digest = 0;
    }
    for (size_t i = 0; i < e->n_items; i++) {
        dw_encode_pair *pair = &job->pairs[e->items[i].pair];
        pair->base_digest = dw_digest_plus(pair->base_digest, e->items[i].base_share);
        pair->new_digest = dw_digest_plus(pair->new_digest, e->items[i].move_share);
        info->n_changed += e->items[i].n_changed;
    }
    for (size_t p = 0; p < job->n_pairs; p++) {
        dw_encode_pair *pair = &job->pairs[p];
        pair->new_digest = dw_digest_plus(pair->new_digest, pair->base_digest);
        uint64_t weight = dw_digest_weight(&pair->base);
        info->base_state =
            dw_digest_plus(info->base_state, dw_digest_term(weight, pair->base_digest));
        info->new_state =
            dw_digest_plus(info->new_state, dw_digest_term(weight, pair->new_digest));
        info->n_model_elems += dw_tensor_units(&pair->base);
    }
    info->n_model_tensors = job->n_pairs;
}

/* The entry of a pair whose items are [begin, end), some of them changed. */
static dw_status fill_entry(dw_delta *delta, dw_delta_entry *entry, encoder *e,
                            size_t begin, size_t end, dw_error *err)
{
    const dw_encode_pair *pair = &e->job->pairs[e->items[begin].pair];
    const dw_tensor *t = &pair->base;
    char *name = dw_delta_alloc(delta, strlen(t->name) + 1, 1, err);
    uint64_t *dims = name ? dw_delta_alloc(delta, t->n_dims, sizeof *dims, err) : NULL;
    if (!dims)
        return DW_NO_MEMORY;
    if (t->n_dims > 0)
        memcpy(dims, t->dims, t->n_dims * sizeof *dims);
    entry->shape = *t;
    entry->shape.name = strcpy(name, t->name);
    entry->shape.dims = dims;
    entry->shape.data = NULL;
    entry->shape.device = NULL;
    entry->shape.first_byte = 0; /* as in an entry that was read from a file */
    entry->has_shape = true;
    entry->element = element_of(pair);
    entry->base_digest = pair->base_digest;
    entry->new_digest = pair->new_digest;
    entry->map = e->maps[e->items[begin].pair];
    entry->n_blocks = dw_block_count(dw_tensor_units(t), entry->element.width);
    entry->blocks =
        dw_delta_alloc(delta, (size_t)entry->n_blocks, sizeof *entry->blocks, err);
    if (!entry->blocks)
        return DW_NO_MEMORY;
    XXH64_state_t hash;
    XXH64_reset(&hash, 0);
    dw_status status = DW_OK;
    for (size_t i = begin; status == DW_OK && i < end; i++) {
        item *it = &e->items[i];
        entry->blocks[it->block] = (dw_delta_block){it->bytes, it->n_bytes, it->mode};
        entry->n_changed += it->n_changed;
        if (it->n_bytes == 0)
            continue;
        XXH64_update(&hash, it->bytes, it->n_bytes);
        status = dw_delta_own(delta, it->bytes, err);
        it->bytes = NULL; /* the delta owns it now, or it was freed */
    }
    entry->checksum = XXH64_digest(&hash);
    return status;
}

static dw_status finish_class(dw_delta *delta, encoder *e, dw_error *err)
{
    delta->entries = dw_delta_alloc(delta, e->job->n_pairs, sizeof *delta->entries, err);
    if (!delta->entries)
        return DW_NO_MEMORY;
    size_t n = 0;
    for (size_t begin = 0, end; begin < e->n_items; begin = end) {
        uint64_t n_changed = 0;
        for (end = begin; end < e->n_items && e->items[end].pair == e->items[begin].pair;
             end++)
            n_changed += e->items[end].n_changed;
        if (n_changed == 0)
            continue;
        dw_status status = fill_entry(delta, &delta->entries[n++], e, begin, end, err);
        if (status != DW_OK)
            return status;
    }
    delta->info.n_tensors = n;
    delta->info.has_digests = true;
    return dw_container_write(delta, err);
}

static dw_status finish_trl(dw_delta *delta, encoder *e, dw_error *err)
{
    const size_t n = e->job->n_pairs;
    dw_digest *base = dw_delta_alloc(delta, n, sizeof *base, err);
    dw_digest *next = base ? dw_delta_alloc(delta, n, sizeof *next, err) : NULL;
    if (!next)
        return DW_NO_MEMORY;
    for (size_t p = 0; p < n; p++) {
        base[p] = e->job->pairs[p].base_digest;
        next[p] = e->job->pairs[p].new_digest;
    }
    dw_patch_sort(e->collected);
    return dw_trl_write(delta, e->collected, (dw_trl_digests){base, next}, err);
}

/* A list of shapes, for the patch that collects TRL's changes. */
static dw_status open_collection(encoder *e, dw_error *err)
{
    dw_tensor *shapes = dw_alloc_array(e->job->n_pairs, sizeof *shapes);
    if (!shapes)
        return dw_fail_memory(err, NULL);
    for (size_t p = 0; p < e->job->n_pairs; p++)
        shapes[p] = e->job->pairs[p].base;
    dw_status status = dw_patch_new(&e->collected, shapes, e->job->n_pairs, err);
    if (status == DW_OK)
        e->collected->in_heap = true;
    dw_free(shapes);
    return status;
}

dw_status dw_encode(dw_delta **out, dw_encode_job *job, const dw_diff_options *options,
                    dw_error *err)
{
    *out = NULL;
    const bool trl = options->codec != DW_CODEC_CLASS;
    encoder e = {.job = job, .options = options};
    dw_delta *delta = dw_delta_new("delta");
    dw_status status = delta ? prepare(&e, err) : dw_fail_memory(err, NULL);
    if (status == DW_OK && trl)
        status = open_collection(&e, err);
    if (status == DW_OK)
        status = encode_on_devices(&e, err);
    if (status == DW_OK && !job->device) {
        dw_parallel_progress bar = {.report = options->progress,
                                    .bytes_of = bytes_of_item};
        for (size_t i = 0; i < e.n_items; i++)
            bar.bytes_total += bytes_of_item(&e, i);
        status = dw_parallel(e.n_workers, e.n_items, trl ? collect_item : encode_item, &e,
                             &bar, err);
    }
    if (status == DW_OK) {
        delta->info.codec = options->codec;
        delta->info.trl_layout = trl ? options->trl_layout : 0;
        delta->info.base_version = options->base_version;
        delta->info.new_version = options->new_version;
        sum_digests(&e, &delta->info);
        status = trl ? finish_trl(delta, &e, err) : finish_class(delta, &e, err);
    }
    release(&e);
    if (status != DW_OK)
        dw_delta_close(delta);
    else
        *out = delta;
    return status;
}
