#include "publish/upkeep.h"

#include "base/error.h"
#include "base/mem.h"
#include "publish/compact.h"
#include "publish/publisher.h"
#include "store/store.h"
#include "inner.h"

/* For dw_progress: not 0 if the work should stop. */
static int is_cancelled(void *publisher, uint64_t n_done, uint64_t n_total)
{
    dw_publisher *p = publisher;
    (void)n_done;
    (void)n_total;
    pthread_mutex_lock(&p->lock);
    const bool stop =
        p->closing || p->commits.claim == DW_CLAIM_FENCED || p->upkeep.give_up;
    pthread_mutex_unlock(&p->lock);
    return stop;
}

static dw_due_rule rule_of(const dw_publisher *p)
{
    /* without a directory, one copy of the model in TMPDIR is enough to ask for */
    return (dw_due_rule){p->options.spool_dir ? p->options.fold_every : 0,
                         p->options.anchor_every, p->options.anchor_factor,
                         p->model_bytes};
}

/* Its one thread leaves the others to the versions. */
static dw_status open_compactor(dw_compactor **out, dw_publisher *p, dw_error *err)
{
    const dw_due_rule rule = rule_of(p);
    dw_compact_options options;
    dw_compact_options_init(&options);
    options.work_dir = p->options.spool_dir;
    options.base = p->options.base;
    options.fold_every = rule.fold_every;
    options.anchor_every = rule.anchor_every;
    options.anchor_factor = rule.anchor_factor;
    options.max_object_bytes = p->options.max_object_bytes;
    options.max_anchor_bytes = p->options.max_anchor_bytes;
    options.sign_key = p->options.sign_key;
    options.trust = p->options.trust;
    options.n_threads = 1;
    options.n_keep = p->options.n_keep;
    options.keep_shortcuts = p->options.keep_shortcuts;
    return dw_compactor_open_with(out, p->store, &options, &p->hint,
                                  p->options.fork_store, err);
}

/* A fork with an anchor of its own no longer needs its source, which may then collect the
 * version. If this process may not write the source, the operator removes the entry. */
static void unpin_source(const dw_publisher *p)
{
    char id[65], key[DW_KEY_TEXT];
    if (p->options.first != DW_FIRST_FORK || !p->options.fork_store)
        return;
    dw_fork_follower_id(id, p);
    dw_key_follower(key, id);
    (void)dw_store_remove(p->options.fork_store, key, NULL);
}

/* That nothing may be removed is kept apart: a person may want it so. */
static void note_removal(dw_publisher *p, dw_compactor *c)
{
    dw_error error = {0};
    const dw_status status = dw_compactor_take_fault(c, &error);
    if (status != DW_DENIED) {
        dw_upkeep_note(p, status, &error);
        return;
    }
    pthread_mutex_lock(&p->lock);
    if (!p->upkeep.denied)
        p->upkeep.denial = error;
    p->upkeep.denied = true;
    pthread_mutex_unlock(&p->lock);
}

/* Makes what is due. */
static dw_status make_due(dw_publisher *p, dw_error *err)
{
    dw_compactor **c = &p->upkeep.compactor;
    const dw_due_rule rule = rule_of(p);
    const dw_progress stop = {is_cancelled, p};
    dw_status status = DW_OK;
    for (dw_edge due; status == DW_OK && dw_hint_due(&p->hint, &rule, &due);) {
        dw_edge made;
        if (is_cancelled(p, 0, 0) != 0)
            return DW_CANCELLED;
        if (!*c)
            status = open_compactor(c, p, err);
        if (status == DW_OK)
            status = dw_compactor_step(*c, &stop, &made, err);
        if (*c)
            note_removal(p, *c);
        if (status == DW_OK && made.from == DW_NO_VERSION)
            unpin_source(p);
    }
    return status;
}

/* The lock is held on entry and on return. */
static void do_work(dw_publisher *p)
{
    dw_upkeep *u = &p->upkeep;
    dw_error error = {0};
    u->wanted = false;
    u->busy = true;
    pthread_mutex_unlock(&p->lock);
    dw_status status = make_due(p, &error);
    pthread_mutex_lock(&p->lock);
    if (u->give_up) {
        dw_compactor_close(u->compactor);
        u->compactor = NULL;
        u->give_up = false;
    }
    if (status == DW_OK && !u->wanted)
        u->due_since = DW_NO_VERSION;
    if (status != DW_OK && status != DW_CANCELLED) {
        u->status = status;
        u->error = error;
    }
    u->busy = false;
    pthread_cond_broadcast(&p->changed);
}

static void *run(void *publisher)
{
    dw_publisher *p = publisher;
    pthread_mutex_lock(&p->lock);
    while (!p->closing)
        if (p->upkeep.wanted || p->upkeep.give_up)
            do_work(p);
        else
            pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- for the other threads ---- */

/* Whether only the baseline has the weights of a version: the stream begins with a base
 * that is not here, and has no anchor yet. */
static bool needs_seed(const dw_publisher *p)
{
    dw_version_info first;
    if (p->sharded || p->options.base)
        return false;
    for (size_t i = 0; i < p->hint.graph.n; i++)
        if (p->hint.graph.edges[i].from == DW_NO_VERSION && p->hint.graph.edges[i].to > 0)
            return false;
    return dw_stream_version(p->stream, 0, &first, NULL) == DW_OK &&
           first.content == DW_CONTENT_BASE;
}

/* Copies the baseline, which is at the head and which nobody uses yet. Without it no
 * anchor can be made. */
static dw_status seed(dw_publisher *p, dw_error *err)
{
    const dw_slices *owned = &p->pieces.owned;
    dw_place *weights = dw_alloc_zeroed(p->pieces.n_table, sizeof *weights);
    dw_status status = weights ? open_compactor(&p->upkeep.compactor, p, err)
                               : dw_fail_memory(err, NULL);
    for (size_t k = 0; status == DW_OK && k < owned->n; k++)
        weights[owned->items[k].tensor] =
            (dw_place){p->baseline.devices[k], p->baseline.data[k]};
    if (status == DW_OK)
        status =
            dw_compactor_seed(p->upkeep.compactor, weights, p->commits.head.version, err);
    dw_free(weights);
    return status;
}

dw_status dw_upkeep_start(dw_publisher *p, dw_error *err)
{
    dw_upkeep *u = &p->upkeep;
    const dw_due_rule rule = rule_of(p);
    if (p->options.rank != 0 ||
        (rule.fold_every == 0 && rule.anchor_every == 0 && !(rule.anchor_factor > 0)))
        return DW_OK;
    if (needs_seed(p)) {
        dw_error error = {0};
        dw_upkeep_note(p, seed(p, &error), &error);
    }
    pthread_mutex_lock(&p->lock);
    u->has_thread = pthread_create(&u->thread, NULL, run, p) == 0;
    pthread_mutex_unlock(&p->lock);
    return u->has_thread ? DW_OK
                         : dw_fail(err, DW_NO_MEMORY, NULL, "cannot start a thread");
}

void dw_upkeep_stop(dw_publisher *p)
{
    if (p->upkeep.has_thread)
        pthread_join(p->upkeep.thread, NULL);
    dw_compactor_close(p->upkeep.compactor);
}

void dw_upkeep_ask(dw_publisher *p)
{
    const dw_due_rule rule = rule_of(p);
    dw_edge due;
    if (!p->upkeep.has_thread)
        return;
    const bool is_due = dw_hint_due(&p->hint, &rule, &due);
    pthread_mutex_lock(&p->lock);
    if (!is_due)
        p->upkeep.due_since = DW_NO_VERSION;
    else if (p->upkeep.due_since == DW_NO_VERSION)
        p->upkeep.due_since = p->commits.head.version;
    p->upkeep.wanted = is_due;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void dw_upkeep_give_up(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    p->upkeep.give_up = p->upkeep.has_thread;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
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

dw_status dw_publisher_check_removal(dw_publisher *p, dw_error *err)
{
    pthread_mutex_lock(&p->lock);
    const dw_status status = p->upkeep.denial.code;
    if (status != DW_OK && err)
        *err = p->upkeep.denial;
    p->upkeep.denial = (dw_error){0};
    pthread_mutex_unlock(&p->lock);
    return status;
}

bool dw_upkeep_is_idle(const dw_publisher *p)
{
    return !p->upkeep.busy && !p->upkeep.wanted && !p->upkeep.give_up;
}

uint64_t dw_upkeep_behind(const dw_publisher *p)
{
    return p->upkeep.due_since == DW_NO_VERSION
               ? 0
               : p->commits.head.version - p->upkeep.due_since;
}
