/* Upkeep: folds and anchors, which let followers catch up quickly. A thread makes them
 * after the commit, from the weights that held_version.h holds. If it fails, no version
 * is harmed. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "publish/publisher.h"
#include "store/store.h"

int dw_upkeep_cancelled(void *publisher, uint64_t n_done, uint64_t n_total)
{
    dw_publisher *p = publisher;
    (void)n_done;
    (void)n_total;
    pthread_mutex_lock(&p->lock);
    const bool stop = p->closing || p->fenced || p->upkeep.give_up_copy;
    pthread_mutex_unlock(&p->lock);
    return stop;
}

void dw_upkeep_note(dw_publisher *p, dw_status status, const dw_error *error)
{
    if (status == DW_OK)
        return;
    pthread_mutex_lock(&p->lock);
    p->upkeep.status = status;
    p->upkeep.error = *error;
    pthread_mutex_unlock(&p->lock);
}

dw_status dw_upkeep_take_fault(dw_publisher *p, dw_error *err)
{
    pthread_mutex_lock(&p->lock);
    const dw_status status = p->upkeep.status;
    if (status != DW_OK && err)
        *err = p->upkeep.error;
    p->upkeep.status = DW_OK;
    pthread_mutex_unlock(&p->lock);
    return status;
}

/* If the record already exists, it is as good, and stays. */
dw_status dw_upkeep_add(dw_publisher *p, const dw_position *from,
                        const dw_objects *objects, dw_error *err)
{
    const dw_position *to = &p->upkeep.at;
    dw_status status =
        dw_shortcut_create(p->stream, from, to, objects, p->options.sign_key, err);
    if (status != DW_OK && status != DW_CONFLICT)
        return status;
    const dw_edge edge = {from ? from->version : DW_NO_VERSION, to->version,
                          dw_objects_bytes(objects), objects->n};
    return dw_hint_add(&p->hint, edge, err);
}

/* ---- anchors ---- */

static bool anchor_due(dw_publisher *p)
{
    const uint64_t version = p->upkeep.at.version, anchor = dw_hint_anchor(&p->hint);
    const uint64_t start = anchor == DW_NO_VERSION ? 0 : anchor;
    uint64_t n_bytes;
    if (anchor != DW_NO_VERSION && anchor >= version)
        return false;
    if (p->options.anchor_every > 0 && version - start >= p->options.anchor_every)
        return true;
    if (!(p->options.anchor_factor > 0))
        return false;
    return !dw_hint_cost(&p->hint, start, version, &n_bytes) ||
           (double)n_bytes > p->options.anchor_factor * (double)p->model_bytes;
}

/* A fork with an anchor of its own no longer needs its source, which may then collect the
 * version. If this process may not write the source, the operator removes the entry. */
static void unpin_source(dw_publisher *p)
{
    char id[65], key[DW_KEY_TEXT];
    if (p->options.first != DW_FIRST_FORK || !p->options.fork_store)
        return;
    dw_fork_follower_id(id, p);
    dw_key_follower(key, id);
    (void)dw_store_remove(p->options.fork_store, key, NULL);
}

/* An anchor was made. Counts the anchors that `anchor_every` asked for since anchor
 * BEFORE and that were not made. */
static void count_dropped(dw_publisher *p, uint64_t before)
{
    const unsigned every = p->options.anchor_every;
    const uint64_t version = p->upkeep.at.version;
    uint64_t start = before == DW_NO_VERSION ? 0 : before;
    start = start > p->upkeep.opened ? start : p->upkeep.opened;
    if (every == 0 || start >= version)
        return;
    pthread_mutex_lock(&p->lock);
    p->upkeep.n_dropped += (version - start - 1) / every;
    pthread_mutex_unlock(&p->lock);
}

static dw_status make_anchor(dw_publisher *p, dw_error *err)
{
    char write_id[DW_ID_TEXT];
    dw_objects objects = {0};
    const dw_pieces *pieces = &p->pieces;
    const dw_position *at = &p->upkeep.at;
    const uint64_t before = dw_hint_anchor(&p->hint);
    const dw_progress stop = {dw_upkeep_cancelled, p};
    const dw_anchor_spec spec = {
        .store = p->store,
        .table = pieces->table,
        .n_table = pieces->n_table,
        .slices = &pieces->owned,
        .held = &p->upkeep.held,
        .share = dw_whole_share(pieces->table, pieces->n_table, at->state),
        .version = at->version,
        .is_shortcut = true,
        .write_id = write_id,
        .max_object_bytes = p->options.max_anchor_bytes,
        .progress = &stop,
    };
    dw_status status = dw_random_id(write_id, err);
    if (status == DW_OK)
        status = dw_anchor_upload(&objects, &spec, err);
    if (status == DW_OK)
        status = dw_upkeep_add(p, NULL, &objects, err);
    if (status == DW_OK) {
        unpin_source(p);
        count_dropped(p, before);
    }
    dw_objects_release(&objects);
    return status;
}

/* ---- the thread ---- */

/* Makes the folds and the anchor that are due. */
static dw_status make_due(dw_publisher *p, dw_error *err)
{
    bool made = false;
    dw_status status = dw_folds_make(p, &made, err);
    if (status != DW_CORRUPT && dw_upkeep_cancelled(p, 0, 0) == 0 && anchor_due(p)) {
        dw_error fault = {0};
        dw_status anchored = make_anchor(p, &fault);
        made = made || anchored == DW_OK;
        if (status == DW_OK || anchored == DW_CORRUPT) {
            status = anchored;
            *err = fault;
        }
    }
    if (made && dw_upkeep_cancelled(p, 0, 0) == 0) {
        dw_status put = dw_hint_put(p, status == DW_OK ? err : NULL);
        status = status == DW_OK ? put : status;
    }
    return status;
}

/* Whether the hint knows the version. If not, its publish asks again once it does. */
static bool hint_knows(dw_publisher *p)
{
    return dw_hint_head(&p->hint) >= p->upkeep.at.version;
}

/* Works on the newest version, if something is due. The lock is held on entry and on
 * return. */
static void do_work(dw_publisher *p)
{
    dw_upkeep *u = &p->upkeep;
    dw_error error = {0};
    dw_status status = DW_OK;
    u->wanted = false;
    u->busy = true;
    u->at.version = p->version;
    pthread_mutex_unlock(&p->lock);
    /* if the baseline is moving or lost, a later version asks again */
    if (hint_knows(p) && (dw_folds_are_due(p) || anchor_due(p)) &&
        dw_held_take(&u->held, &u->at)) {
        pthread_mutex_lock(&p->lock);
        u->version = u->at.version;
        pthread_mutex_unlock(&p->lock);
        if (hint_knows(p))
            status = make_due(p, &error);
        dw_held_release(&u->held);
    }
    pthread_mutex_lock(&p->lock);
    if (status == DW_CORRUPT) {
        u->doubt = status;
        u->doubt_error = error;
    } else if (status != DW_OK && status != DW_CANCELLED) {
        u->status = status;
        u->error = error;
    }
    while (u->give_up_copy) {
        u->give_up_copy = false;
        pthread_mutex_unlock(&p->lock);
        dw_folds_remove_copy(p);
        pthread_mutex_lock(&p->lock);
    }
    u->version = DW_NO_VERSION;
    u->busy = false;
}

static void *run(void *publisher)
{
    dw_publisher *p = publisher;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while ((!p->upkeep.wanted || p->upkeep.busy) && !p->closing)
            pthread_cond_wait(&p->changed, &p->lock);
        if (p->closing)
            break;
        do_work(p);
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- for the other threads ---- */

void dw_upkeep_init(dw_upkeep *u)
{
    *u = (dw_upkeep){.at = dw_nowhere, .version = DW_NO_VERSION};
    dw_held_init(&u->held);
}

dw_status dw_upkeep_open(dw_publisher *p, dw_error *err)
{
    dw_upkeep *u = &p->upkeep;
    u->opened = p->commits.head.version;
    if (p->sharded)
        return DW_OK;
    dw_status status = dw_held_open(&u->held, &p->pieces, p->options.spool_dir, err);
    if (status != DW_OK)
        return status;
    if (!p->baseline.is_lost)
        dw_baseline_show(p);
    u->status = dw_folds_open(p, &u->error);
    return DW_OK;
}

dw_status dw_upkeep_start(dw_publisher *p, dw_error *err)
{
    dw_upkeep *u = &p->upkeep;
    if (p->sharded || (u->folds.n == 0 && p->options.anchor_every == 0 &&
                       !(p->options.anchor_factor > 0)))
        return DW_OK;
    u->has_thread = pthread_create(&u->thread, NULL, run, p) == 0;
    return u->has_thread ? DW_OK
                         : dw_fail(err, DW_NO_MEMORY, NULL, "cannot start a thread");
}

void dw_upkeep_stop(dw_publisher *p)
{
    if (p->upkeep.has_thread)
        pthread_join(p->upkeep.thread, NULL);
}

void dw_upkeep_close(dw_publisher *p)
{
    dw_folds_close(p);
    dw_held_close(&p->upkeep.held);
}

void dw_upkeep_ask(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    p->upkeep.wanted = p->upkeep.has_thread;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

uint64_t dw_upkeep_dropped(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    const uint64_t n = p->upkeep.n_dropped;
    pthread_mutex_unlock(&p->lock);
    return n;
}

bool dw_upkeep_is_idle(const dw_publisher *p)
{
    const dw_upkeep *u = &p->upkeep;
    return !u->busy && !u->wanted && u->doubt == DW_OK;
}
