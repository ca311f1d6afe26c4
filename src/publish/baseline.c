#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "publish/publisher.h"

#define SWEEP_BYTES (64u << 20) /* at a time: a call that waits need not wait longer */

static dw_target *weights_of(const dw_publisher *p)
{
    return p->baseline.follower->weights;
}

dw_status dw_baseline_open(dw_publisher *p, dw_error *err)
{
    dw_baseline *b = &p->baseline;
    b->data = dw_alloc_zeroed(p->pieces.owned.n, sizeof *b->data);
    b->views = dw_alloc_array(p->pieces.cut.n, sizeof *b->views);
    b->digests = dw_alloc_zeroed(p->pieces.cut.n, sizeof *b->digests);
    b->devices = dw_alloc_zeroed(p->pieces.owned.n, sizeof *b->devices);
    b->is_pinned = p->options.baseline_memory == DW_BASELINE_HOST;
    for (size_t k = 0; b->devices && !b->is_pinned && k < p->pieces.owned.n; k++)
        b->devices[k] = p->live.devices[k];
    return b->data && b->views && b->digests && b->devices ? DW_OK
                                                           : dw_fail_memory(err, NULL);
}

void dw_baseline_close(dw_baseline *b)
{
    dw_follower_close(b->follower);
    dw_free(b->memory);
    for (size_t i = 0; i < b->n_devices; i++) {
        const dw_place *at = &b->on_devices[i];
        (b->is_pinned ? at->device->ops->unpin : at->device->ops->free)(at->device,
                                                                        at->data);
    }
    dw_free(b->on_devices);
    dw_free(b->devices);
    dw_free(b->data);
    dw_free(b->views);
    dw_free(b->digests);
    dw_free(b->proven);
}

/* The room for the owned slices of DEVICE; NULL: of the host. Puts them one after the
 * other at START, if that is not NULL. */
static uint64_t lay_out(dw_publisher *p, const dw_device *device, uint8_t *start)
{
    uint64_t n = 0;
    for (size_t k = 0; k < p->pieces.owned.n; k++) {
        if (p->live.devices[k] != device)
            continue;
        if (start)
            p->baseline.data[k] = start + n;
        n += dw_padded(dw_slice_bytes(p->pieces.table, &p->pieces.owned.items[k]));
    }
    return n;
}

/* There is no memory for the baseline: what else to do. */
static dw_status explain_memory(bool is_pinned, dw_status status, dw_error *err)
{
    if (status != DW_NO_MEMORY || !err)
        return status;
    const dw_error fault = *err;
    return dw_fail(err, status, fault.where, "%.400s. %s", fault.text,
                   is_pinned
                       ? "Free memory of the host or raise its limit, or keep the "
                         "baseline on the device (DW_BASELINE_DEVICE)"
                       : "Free memory of the device, or keep the baseline in memory "
                         "of the host (DW_BASELINE_HOST)");
}

/* Allocates memory for the owned slices of DEVICE, unless it has been done. */
static dw_status allocate_for(dw_publisher *p, dw_device *device, dw_error *err)
{
    dw_baseline *b = &p->baseline;
    for (size_t i = 0; i < b->n_devices; i++)
        if (b->on_devices[i].device == device)
            return DW_OK;
    dw_place *grown =
        dw_realloc_array(b->on_devices, b->n_devices + 1, sizeof *b->on_devices);
    if (!grown)
        return dw_fail_memory(err, NULL);
    b->on_devices = grown;
    void *memory;
    dw_status status = (b->is_pinned ? device->ops->pin : device->ops->alloc)(
        &memory, device, lay_out(p, device, NULL) + 1, "the baseline", err);
    if (status != DW_OK)
        return explain_memory(b->is_pinned, status, err);
    b->on_devices[b->n_devices++] = (dw_place){device, memory};
    (void)lay_out(p, device, memory);
    return DW_OK;
}

/* Allocates memory for the owned slices. */
static dw_status allocate_memory(dw_publisher *p, dw_error *err)
{
    const uint64_t total = lay_out(p, NULL, NULL);
    p->baseline.in_memory = true;
    p->baseline.memory = total <= SIZE_MAX ? dw_alloc((size_t)total) : NULL;
    if (!p->baseline.memory)
        return dw_fail_memory(err, NULL);
    (void)lay_out(p, NULL, p->baseline.memory);
    dw_status status = DW_OK;
    for (size_t k = 0; status == DW_OK && k < p->pieces.owned.n; k++)
        if (p->live.devices[k])
            status = allocate_for(p, p->live.devices[k], err);
    return status;
}

dw_status dw_baseline_copy_live(dw_publisher *p, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t k = 0; status == DW_OK && k < p->pieces.owned.n; k++)
        status = dw_live_read(
            p, k, (dw_place){p->baseline.devices[k], p->baseline.data[k]}, err);
    return status;
}

dw_follow_options dw_publisher_follow_options(const dw_publisher *p)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.base = p->options.base;
    options.spool_dir = p->options.spool_dir;
    options.trust = p->options.trust;
    options.n_threads = p->options.n_threads;
    options.no_files = true;
    return options;
}

dw_status dw_baseline_allocate(dw_publisher *p, dw_error *err)
{
    dw_status status = DW_OK;
    if (!p->options.baseline_dir || p->sharded)
        status = allocate_memory(p, err);
    if (status != DW_OK || p->sharded)
        return status;
    if (!p->options.baseline_dir)
        status = dw_baseline_copy_live(p, err);
    if (status != DW_OK)
        return status;
    dw_follow_options options = dw_publisher_follow_options(p);
    dw_tensor *memory = NULL;
    bool is_own = false;
    uint64_t proven = DW_NO_VERSION;
    if (p->options.baseline_dir) {
        options.into = p->options.baseline_dir;
        is_own = dw_mark_read(options.into, p->stream->record.stream, &proven);
        if (is_own && p->options.trust.stream) /* the caller named the stream */
            status = dw_mark_set_aside(options.into, p->stream->record.stream, err);
        if (status != DW_OK)
            return status;
    } else {
        memory = dw_alloc_array(p->pieces.n_table, sizeof *memory);
        if (!memory)
            return dw_fail_memory(err, NULL);
        for (size_t t = 0; t < p->pieces.n_table; t++) {
            memory[t] = p->pieces.table[t];
            memory[t].data = p->baseline.data[t];
            memory[t].device = p->baseline.devices[t];
        }
        options.tensors = memory;
        options.n_tensors = p->pieces.n_table;
    }
    status = dw_follower_open_as(&p->baseline.follower, p->store, &options, is_own, err);
    if (status == DW_OK) {
        p->baseline.follower->fork_store = p->options.fork_store;
        if (memory) /* nobody else reads it */
            dw_target_allow_fill(weights_of(p));
        /* the weights may have been damaged already when the last versions were made */
        if (dw_target_was_damaged(weights_of(p)) && proven != DW_NO_VERSION)
            p->baseline.suspect_from = proven + 1;
    }
    /* first the mark: if the process is killed, no weights without a mark remain */
    if (status == DW_OK && options.into && !is_own && dw_target_is_empty(weights_of(p)))
        status =
            dw_mark_write(options.into, p->stream->record.stream, DW_NO_VERSION, err);
    dw_free(memory);
    return status;
}

dw_status dw_baseline_connect(dw_publisher *p, dw_error *err)
{
    const dw_target *w = p->sharded ? NULL : weights_of(p);
    size_t n = 0;
    const dw_tensor *tensors = w ? dw_target_tensors(w, &n) : NULL;
    for (size_t t = 0; t < n; t++)
        p->baseline.data[t] = tensors[t].data;
    dw_pieces_view(&p->pieces, p->baseline.views, p->baseline.data);
    if (p->baseline.in_memory)
        dw_pieces_place(&p->pieces, p->baseline.views, p->baseline.devices);
    /* the digests of whole tensors are known: only tensors in several pieces are read */
    return w ? dw_slices_digest(p->baseline.digests, &p->pieces.cut, tensors, n,
                                dw_target_digests(w), p->options.n_threads, err)
             : dw_digest_tensors(p->baseline.digests, NULL, p->baseline.views,
                                 p->pieces.cut.n, p->options.n_threads, NULL, err);
}

/* The stream could not be followed to its head. If one of its objects is the cause, the
 * error names the version and the next step. */
static dw_status explain_broken(dw_follower *f, dw_status status, dw_error *err)
{
    const uint64_t at = dw_follower_version(f), head = f->stream->head;
    const char *url = dw_store_url(f->stream->store);
    if ((status != DW_CORRUPT && status != DW_NOT_FOUND) || head == DW_NO_VERSION || !err)
        return status;
    const dw_error fault = *err;
    if (at == DW_NO_VERSION &&
        (strcmp(fault.where, url) == 0 || strncmp(fault.where, url, strlen(url)) != 0))
        return status; /* the base, or the source of a fork, is missing */
    return dw_fail(err, status, url,
                   "version %" PRIu64 " cannot be rebuilt: %.200s: %.300s. If `deltawire "
                   "verify %s` says so too, go on from a checkpoint with: deltawire "
                   "repair %s CHECKPOINT",
                   at == DW_NO_VERSION ? head : at + 1, fault.where, fault.text, url,
                   url);
}

/* A rank reads the whole model, and keeps the slices that it owns. */
static dw_status fetch_shards(dw_publisher *p, dw_error *err)
{
    dw_scratch_model model;
    dw_follower *f = NULL;
    dw_status status = dw_scratch_model_make(&model, p->pieces.table, p->pieces.n_table,
                                             p->options.spool_dir, err);
    if (status != DW_OK)
        return status;
    dw_follow_options options = dw_publisher_follow_options(p);
    options.tensors = model.tensors;
    options.n_tensors = p->pieces.n_table;
    options.tensors_empty = true;
    status = dw_follower_open(&f, p->store, &options, err);
    if (status == DW_OK) {
        f->fork_store = p->options.fork_store;
        status = dw_follower_sync(f, DW_NEWEST, &p->options.progress, NULL, err);
        status = explain_broken(f, status, err);
    }
    if (status == DW_OK) {
        for (size_t k = 0; status == DW_OK && k < p->pieces.owned.n; k++) {
            const dw_slice *s = &p->pieces.owned.items[k];
            const dw_slice before = {s->tensor, 0, s->first};
            uint64_t n = dw_slice_bytes(p->pieces.table, s);
            uint8_t *from = model.tensors[s->tensor].data;
            status = dw_place_copy(
                (dw_place){p->baseline.devices[k], p->baseline.data[k]},
                (dw_place){NULL, from + dw_slice_bytes(p->pieces.table, &before)}, n,
                err);
        }
        if (status == DW_OK)
            dw_commit_move_head(p, dw_target_at(f->weights));
    }
    dw_follower_close(f);
    dw_scratch_model_release(&model);
    return status;
}

bool dw_baseline_is_whole(const dw_publisher *p)
{
    if (p->sharded || !p->options.baseline_dir)
        return true;
    return p->baseline.follower && dw_target_check_size(weights_of(p), NULL) == DW_OK;
}

/* Opens the directory again if its files shrank, were replaced, or became links. Damaged
 * files are made again from the stream, and files that others share are copied. */
static dw_status reopen(dw_publisher *p, dw_error *err)
{
    if (p->baseline.follower && dw_target_check_files(weights_of(p), NULL) == DW_OK)
        return DW_OK;
    dw_follower_close(p->baseline.follower);
    p->baseline.follower = NULL;
    return dw_baseline_allocate(p, err);
}

/* Follows the stream to its head. If the baseline is not the version that it should be,
 * reads it back. */
static dw_status follow(dw_publisher *p, dw_error *err)
{
    dw_follower *f = p->baseline.follower;
    f->undecodable = 0;
    dw_status status = dw_follower_sync(f, DW_NEWEST, &p->options.progress, NULL, err);
    if (status != DW_STALE || !p->baseline.proven)
        return status;
    dw_sweep_suspect_all(p);
    dw_baseline_lose(p);
    return dw_follower_sync(f, DW_NEWEST, &p->options.progress, NULL, err);
}

/* The stream could not be followed. Returns the first version that nobody can rebuild:
 * one that does not decode or, if it is the head, a restart without its anchor. These
 * never become good; a damaged or missing object may. 0: the fault is something else. */
static uint64_t find_broken(dw_follower *f, dw_status status)
{
    const uint64_t at = dw_follower_version(f), head = f->stream->head;
    if (!dw_follower_may_detour(status) || head == DW_NO_VERSION)
        return 0;
    if (f->undecodable > 0 && (at == DW_NO_VERSION || at < f->undecodable))
        return f->undecodable;
    dw_commit_record c;
    if (dw_stream_read_commit(f->stream, head, &c, NULL) != DW_OK)
        return 0;
    const uint64_t from = c.suspect_from > 0 ? c.suspect_from : head;
    const bool is_restart = c.restart;
    dw_commit_record_release(&c);
    return is_restart ? from : 0;
}

/* Nobody can rebuild version FROM, nor the head. The next version still follows on the
 * head. */
static dw_status give_up_head(dw_publisher *p, uint64_t from, dw_error *err)
{
    dw_live_mark(p, false);
    dw_sweep_suspect(p, from);
    dw_status status = dw_commit_find_head(p, err);
    if (status == DW_OK)
        p->baseline.state = DW_BASE_BROKEN;
    return status;
}

dw_status dw_baseline_catch_up(dw_publisher *p, dw_error *err)
{
    dw_status status;
    p->baseline.state = DW_BASE_BEHIND;
    p->baseline.n_moves++;
    if (p->sharded) {
        status = fetch_shards(p, err);
    } else {
        status = reopen(p, err);
        if (status == DW_OK) {
            status = follow(p, err);
            const uint64_t broken = find_broken(p->baseline.follower, status);
            if (broken > 0)
                return give_up_head(p, broken, err);
            status = explain_broken(p->baseline.follower, status, err);
        }
        if (status == DW_OK)
            dw_commit_move_head(p, dw_target_at(weights_of(p)));
    }
    dw_live_mark(p, false);
    if (status == DW_OK)
        status = dw_epoch_check_head(p, err);
    if (status == DW_OK)
        status = dw_baseline_connect(p, err);
    if (status == DW_OK && p->baseline.proven)
        status = dw_sweep_begin(p, err);
    if (status == DW_OK)
        p->baseline.state = DW_BASE_READY;
    return status;
}

dw_status dw_baseline_take_live(dw_publisher *p, void *const *data,
                                const dw_position *position, dw_error *err)
{
    if (p->sharded)
        return DW_OK; /* dw_baseline_copy_live copied them */
    dw_target *w = weights_of(p);
    dw_tensor *live = dw_alloc_array(p->pieces.n_table, sizeof *live);
    if (!live)
        return dw_fail_memory(err, NULL);
    for (size_t t = 0; t < p->pieces.n_table; t++) {
        live[t] = p->pieces.table[t];
        live[t].data = data[t];
        live[t].device = p->baseline.in_memory ? p->baseline.devices[t] : NULL;
    }
    dw_status status = DW_OK;
    const char *dir = dw_target_dir(w);
    const bool is_same = dw_target_state(w) == position->state;
    if (dw_target_is_empty(w)) {
        status = dw_target_fill(w, position, dw_fill_from_tensors, live, err);
    } else if (!is_same && dir && dw_target_record(w) == DW_RECORD_NONE &&
               !p->baseline.follower->is_own) {
        status =
            dw_fail(err, DW_CONFLICT, dir,
                    "the directory holds other weights, and is not a baseline. Name an "
                    "empty directory with `baseline_dir`");
    } else if (!is_same) {
        status = dw_target_stage_copy(w, position, live, NULL, err);
        if (status == DW_OK)
            status = dw_target_apply(w, err);
        if (status == DW_OK)
            status = dw_target_finish(w, true, err);
    }
    dw_free(live);
    return status;
}

/* ---- moving on ---- */

void dw_baseline_lose(dw_publisher *p)
{
    dw_baseline_fall_behind(p);
    if (!p->sharded && p->baseline.follower)
        dw_target_distrust(weights_of(p));
}

void dw_baseline_fall_behind(dw_publisher *p)
{
    p->baseline.state = DW_BASE_BEHIND;
}

static dw_status move(dw_publisher *p, const dw_position *position,
                      const dw_proven *proven)
{
    return p->sharded ? dw_proven_apply(proven, p->pieces.table, p->pieces.n_table,
                                        p->options.n_threads, NULL)
                      : dw_target_move(weights_of(p), position, proven, NULL);
}

void dw_baseline_advance(dw_publisher *p, const dw_position *position,
                         const dw_uploaded *uploaded)
{
    const dw_proven proven = {&p->pieces.cut,    p->baseline.views,  p->baseline.digests,
                              uploaded->digests, &uploaded->objects, uploaded->deltas};
    p->baseline.n_moves++;
    dw_status status = move(p, position, &proven);
    if (status == DW_IO && !p->baseline.in_memory)
        dw_upkeep_give_up(p); /* the next try may have room */
    if (status != DW_OK && p->baseline.in_memory)
        dw_baseline_lose(p);
    else if (status != DW_OK)
        dw_baseline_fall_behind(p);
    if (status != DW_OK)
        return;
    memcpy(p->baseline.digests, uploaded->digests, p->pieces.cut.n * sizeof(dw_digest));
    dw_live_mark(p, true);
}

/* ---- the sweep ----
 *
 * After each version a share of the baseline is compared with the committed digests, so
 * that all of it is compared within `sweep_every` versions.
 *
 * If a bit of the baseline flips, later deltas lead followers to other weights than the
 * trainer's, and only the publisher can see it. If a share differs, the baseline is read
 * back from the stream. Then it holds what followers hold, and the next delta brings them
 * to the trainer's weights. The commit of that version reports from which version on
 * followers may have been wrong.
 *
 * If the bit belongs to an exponent, followers cannot decode later deltas. They stop, and
 * the baseline cannot be read back. Then the next version is a restart. */

/* The oldest version at which a piece was last compared. */
static uint64_t oldest_proof(const dw_publisher *p)
{
    uint64_t oldest = p->commits.head.version;
    for (size_t i = 0; i < p->pieces.cut.n; i++)
        if (p->baseline.proven[i] < oldest)
            oldest = p->baseline.proven[i];
    return oldest;
}

static dw_status note_proven(dw_publisher *p, dw_error *err)
{
    return p->options.baseline_dir && !p->sharded
               ? dw_mark_write(p->options.baseline_dir, p->stream->record.stream,
                               oldest_proof(p), err)
               : DW_OK;
}

dw_status dw_sweep_begin(dw_publisher *p, dw_error *err)
{
    if (!p->baseline.proven)
        p->baseline.proven = dw_alloc_array(p->pieces.cut.n, sizeof *p->baseline.proven);
    if (!p->baseline.proven)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < p->pieces.cut.n; i++)
        p->baseline.proven[i] = p->commits.head.version;
    return note_proven(p, err);
}

void dw_sweep_suspect(dw_publisher *p, uint64_t version)
{
    if (p->baseline.suspect_from == 0 || version < p->baseline.suspect_from)
        p->baseline.suspect_from = version;
}

void dw_sweep_suspect_all(dw_publisher *p)
{
    dw_sweep_suspect(p, oldest_proof(p) + 1);
}

void dw_sweep_forget_suspects(dw_publisher *p)
{
    p->baseline.suspect_from = 0;
}

uint64_t dw_sweep_suspect_from(const dw_publisher *p)
{
    return p->baseline.suspect_from < dw_commit_next_version(p) ? p->baseline.suspect_from
                                                                : 0;
}

/* Reads the baseline back. If that fails, the next publish tries again. */
static dw_status repair(dw_publisher *p, const char *tensor, dw_error *err)
{
    dw_error fault = {0};
    dw_baseline_lose(p);
    if (dw_publisher_is_closing(p))
        return DW_OK; /* the next publisher repairs it */
    dw_status status = dw_baseline_catch_up(p, &fault);
    if (status == DW_OK) {
        if (p->options.rank == 0)
            (void)dw_hint_load(&p->hint, p->stream, p->commits.head.version, NULL);
        return DW_OK;
    }
    return dw_fail_tensor(err, status, p->options.baseline_dir, tensor,
                          "the baseline is damaged, and could not be read back from the "
                          "stream: %s. Nothing is published until that succeeds",
                          fault.text);
}

/* Compares pieces [FIRST, FIRST + N) with their committed digests. */
static dw_status compare(dw_publisher *p, size_t first, size_t n, bool *damaged,
                         dw_error *err)
{
    dw_digest *digests = dw_alloc_array(n, sizeof *digests);
    dw_status status = digests
                           ? dw_digest_tensors(digests, NULL, p->baseline.views + first,
                                               n, p->options.n_threads, NULL, err)
                           : dw_fail_memory(err, NULL);
    const dw_slice *bad = NULL;
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        if (digests[i] == p->baseline.digests[first + i]) {
            p->baseline.proven[first + i] = p->commits.head.version;
        } else {
            bad = &p->pieces.cut.items[first + i];
            dw_sweep_suspect(p, p->baseline.proven[first + i] + 1);
        }
    }
    dw_free(digests);
    *damaged = bad != NULL;
    return bad ? repair(p, p->pieces.table[bad->tensor].name, err) : status;
}

dw_status dw_sweep_all(dw_publisher *p, bool *damaged, dw_error *err)
{
    return compare(p, 0, p->pieces.cut.n, damaged, err);
}

static bool is_wanted(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    const bool wanted = p->n_waiting > 0;
    pthread_mutex_unlock(&p->lock);
    return wanted;
}

dw_status dw_sweep_share(dw_publisher *p, dw_error *err)
{
    dw_baseline *b = &p->baseline;
    const unsigned n_versions = p->options.sweep_every;
    const size_t n = p->pieces.cut.n;
    if (n_versions == 0 || b->state != DW_BASE_READY)
        return DW_OK;
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += b->views[i].n_bytes;
    b->sweep_due += total / n_versions + 1;
    if (b->sweep_due > total)
        b->sweep_due = total;
    dw_status status = DW_OK;
    bool damaged = false;
    while (status == DW_OK && !damaged && b->sweep_due > 0 &&
           (b->sweep_due == total || !is_wanted(p))) {
        const size_t first = b->sweep_at;
        uint64_t done = 0;
        size_t k = 0;
        while (first + k < n && done < b->sweep_due && done < SWEEP_BYTES)
            done += b->views[first + k++].n_bytes;
        b->sweep_due -= done < b->sweep_due ? done : b->sweep_due;
        b->sweep_at = (first + k) % n;
        status = compare(p, first, k, &damaged, err);
        if (status == DW_OK && !damaged && b->sweep_at == 0)
            status = note_proven(p, err);
    }
    return status;
}
