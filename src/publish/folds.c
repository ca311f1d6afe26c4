/* Folds: one delta over a span of versions, so that a follower that is behind needs few
 * steps. fold_copy.h describes what is kept for them: one copy of the model for all
 * spans, and deltas for each span but the longest.
 *
 * A span folds when the version that upkeep works on is that many versions after its last
 * fold. If a longer span folds, the shorter ones fold too, because the copy then moves to
 * that version.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "publish/publisher.h"

/* ---- starting over ---- */

/* Makes the copy. All levels start from it. */
static dw_status start_over(dw_publisher *p, dw_error *err)
{
    dw_folds *f = &p->upkeep.folds;
    dw_error fault = {0};
    for (size_t i = 0; i < f->n; i++)
        dw_fold_level_drop(&f->levels[i], &f->copy);
    dw_status status =
        dw_fold_copy_make(&f->copy, &p->upkeep.at, &p->upkeep.held, &fault);
    for (size_t i = 0; i < f->n; i++)
        f->levels[i].at = f->copy.at;
    return status == DW_OK
               ? DW_OK
               : dw_fail(err, status, f->copy.dir,
                         "no folded deltas are made, because there is no copy "
                         "of the model to make them from: %s. Free some room, "
                         "or publish with `folds` none",
                         fault.text);
}

/* ---- folding ---- */

/* Both ends of a fold, group by group. */
typedef struct fold_ends {
    dw_fold_source *source; /* NULL: it starts from the copy */
    dw_held_group next;
} fold_ends;

static dw_status load_ends(void *context, const dw_piece_group *group, dw_error *err)
{
    fold_ends *ends = context;
    dw_status status =
        ends->source ? dw_fold_source_load(ends->source, group, err) : DW_OK;
    return status == DW_OK ? dw_held_group_load(&ends->next, group, err) : status;
}

/* Uploads the fold from the start of LEVEL to the held version. BASE and DIGESTS are the
 * weights it starts from; if there is a source, it loads them. */
static dw_status upload_ends(dw_publisher *p, const dw_fold_level *level,
                             const dw_tensor *base, const dw_digest *digests,
                             fold_ends *ends, dw_error *err)
{
    char write_id[DW_ID_TEXT];
    dw_uploaded uploaded;
    dw_fold_source *source = ends->source;
    const dw_position *to = &p->upkeep.at;
    const dw_progress stop = {dw_upkeep_cancelled, p};
    dw_status status = dw_random_id(write_id, err);
    if (status != DW_OK)
        return status;
    const dw_delta_spec version = {
        .pieces = &p->pieces,
        .base = base,
        .next = ends->next.views,
        .base_digests = digests,
        .load = load_ends,
        .load_context = ends,
        .from = level->at.version,
        .to = to->version,
        .store = p->store,
        .purpose = "fold",
        .write_id = write_id,
        .max_object_bytes = p->options.max_object_bytes,
        .spool_dir = p->options.spool_dir,
        .n_threads = p->options.n_threads,
        .stop = &stop,
    };
    status = dw_delta_upload(&uploaded, &version, err);
    if (status == DW_OK && source &&
        dw_pieces_state(&p->pieces, digests) != level->at.state) {
        source->is_bad = true;
        status = DW_CORRUPT;
    }
    if (status == DW_OK && dw_pieces_state(&p->pieces, uploaded.digests) != to->state)
        status = dw_fail(err, DW_CORRUPT, p->options.baseline_dir,
                         "no fold was made to version %" PRIu64
                         ": the baseline no longer holds it",
                         to->version);
    if (status == DW_OK)
        status = dw_upkeep_add(p, &level->at, &uploaded.objects, err);
    dw_uploaded_release(&uploaded);
    return status;
}

static dw_status upload_fold(dw_publisher *p, const dw_fold_level *level,
                             const dw_tensor *base, const dw_digest *digests,
                             dw_fold_source *source, dw_error *err)
{
    fold_ends ends = {.source = source};
    dw_status status = dw_held_group_open(&ends.next, &p->upkeep.held, err);
    if (status == DW_OK)
        status = upload_ends(p, level, base, digests, &ends, err);
    dw_held_group_close(&ends.next);
    return status;
}

/* Makes the fold from the start of LEVEL. *MADE: whether a shortcut was added. If the
 * deltas of the level are damaged, returns DW_OK; next time the level starts from the
 * copy. */
static dw_status fold(dw_publisher *p, dw_fold_level *level, bool *made, dw_error *err)
{
    const dw_fold_copy *copy = &p->upkeep.folds.copy;
    dw_status status;
    if (level->at.version == copy->at.version) {
        status = upload_fold(p, level, copy->views, copy->digests, NULL, err);
    } else {
        dw_fold_source source;
        status = dw_fold_source_open(&source, level, copy, err);
        if (status == DW_OK)
            status = upload_fold(p, level, source.views, source.digests, &source, err);
        const bool is_bad = source.is_bad;
        dw_fold_source_close(&source);
        if (is_bad) {
            dw_fold_level_drop(level, copy);
            return DW_OK;
        }
    }
    *made = status == DW_OK;
    return status;
}

/* Finds the levels that fold now. False if there are none. */
static bool find_due(const dw_publisher *p, bool due[DW_MAX_FOLDS])
{
    const dw_folds *f = &p->upkeep.folds;
    const uint64_t to = p->upkeep.at.version;
    bool any = false;
    for (size_t i = f->n; i-- > 0;) {
        const dw_fold_level *level = &f->levels[i];
        any = any || to >= level->at.version + level->span;
        due[i] = any && level->at.version < to;
    }
    return any;
}

/* Whether level I and the next longer one start at the same version: one fold serves
 * both. */
static bool shares_fold(const dw_folds *f, const bool due[DW_MAX_FOLDS], size_t i)
{
    return i + 1 < f->n && due[i + 1] &&
           f->levels[i].at.version == f->levels[i + 1].at.version;
}

/* Folds each level that is due. Sets MOVES for the levels that then start at the held
 * version. */
static dw_status fold_due(dw_publisher *p, const bool due[DW_MAX_FOLDS],
                          bool moves[DW_MAX_FOLDS], bool *made, dw_error *err)
{
    dw_folds *f = &p->upkeep.folds;
    dw_status first = DW_OK;
    const size_t n = f->n;
    bool shares[DW_MAX_FOLDS]; /* a fold may move its level */
    for (size_t i = 0; i < n; i++)
        shares[i] = due[i] && shares_fold(f, due, i);
    for (size_t i = 0; i < n; i++) {
        moves[i] = false;
        dw_status status = DW_OK;
        if (due[i] && !shares[i])
            status = fold(p, &f->levels[i], &moves[i], first == DW_OK ? err : NULL);
        *made = *made || moves[i];
        first = first == DW_OK ? status : first;
    }
    for (size_t i = n; i-- > 0;)
        if (shares[i])
            moves[i] = moves[i + 1];
    return first;
}

bool dw_folds_are_due(const dw_publisher *p)
{
    const dw_folds *f = &p->upkeep.folds;
    bool due[DW_MAX_FOLDS];
    return f->n > 0 && (f->copy.at.version == DW_NO_VERSION || find_due(p, due));
}

/* The shortest span folded. Counts the folds of it that were due before and not made. */
static void count_dropped(dw_publisher *p)
{
    const dw_fold_level *level = &p->upkeep.folds.levels[0];
    const uint64_t opened = p->upkeep.opened, to = p->upkeep.at.version;
    const uint64_t start = level->at.version > opened ? level->at.version : opened;
    if (start >= to)
        return;
    pthread_mutex_lock(&p->lock);
    p->upkeep.n_dropped += (to - start - 1) / level->span;
    pthread_mutex_unlock(&p->lock);
}

/* Makes the levels that folded start at the held version. */
static dw_status move_on(dw_publisher *p, const bool moves[DW_MAX_FOLDS], dw_error *err)
{
    dw_folds *f = &p->upkeep.folds;
    dw_fold_level *moved[DW_MAX_FOLDS];
    size_t n = 0;
    const dw_progress stop = {dw_upkeep_cancelled, p};
    if (moves[0])
        count_dropped(p);
    if (moves[f->n - 1]) {
        dw_fold_copy_close(&f->copy);
        return start_over(p, err);
    }
    for (size_t i = 0; i + 1 < f->n; i++)
        if (moves[i])
            moved[n++] = &f->levels[i];
    return dw_fold_levels_move(moved, n, &f->copy, &p->upkeep.at, &p->upkeep.held, &stop,
                               err);
}

dw_status dw_folds_make(dw_publisher *p, bool *made, dw_error *err)
{
    dw_folds *f = &p->upkeep.folds;
    bool due[DW_MAX_FOLDS], moves[DW_MAX_FOLDS] = {false};
    if (f->n == 0)
        return DW_OK;
    if (f->copy.at.version == DW_NO_VERSION)
        return start_over(p, err);
    if (!find_due(p, due))
        return DW_OK;
    dw_status status = dw_fold_copy_open(&f->copy, err);
    if (status == DW_NO_MEMORY)
        return status;
    if (status != DW_OK) /* damaged: a new copy is made for the next folds */
        return start_over(p, err);
    status = fold_due(p, due, moves, made, err);
    if (status != DW_CORRUPT) { /* otherwise the baseline is repaired first */
        dw_status moved = move_on(p, moves, status == DW_OK ? err : NULL);
        status = status == DW_OK ? moved : status;
    }
    dw_fold_copy_close(&f->copy);
    return status;
}

/* ---- opening and closing ---- */

/* Whether DIR records a version of this stream. *AT takes it. */
static bool read_position(dw_position *at, const dw_publisher *p, const char *dir)
{
    dw_position next;
    dw_record_kind kind;
    dw_commit_record c;
    if (dw_position_read(at, &next, &kind, dir, NULL) != DW_OK ||
        at->version == DW_NO_VERSION || at->version > p->commits.head.version ||
        dw_stream_read_commit(p->stream, at->version, &c, NULL) != DW_OK)
        return false;
    const dw_position there = dw_position_of(&c);
    dw_commit_record_release(&c);
    return dw_position_same(at, &there);
}

/* Finds the start of LEVEL. Without good deltas it is the copy. */
static void find_level(dw_publisher *p, dw_fold_level *level)
{
    const dw_position copy = p->upkeep.folds.copy.at;
    if (!level->dir || !read_position(&level->at, p, level->dir) ||
        level->at.version <= copy.version)
        level->at = copy;
}

static bool is_number(const char *text)
{
    return *text && text[strspn(text, "0123456789")] == '\0';
}

/* Removes the directories of spans in PATH, except those of the levels. */
static void remove_dirs(const dw_folds *f, const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        if (!is_number(e->d_name))
            continue;
        char *found = dw_join_path(path, e->d_name);
        bool is_used = false;
        for (size_t i = 0; found && i < f->n; i++)
            is_used =
                is_used || (f->levels[i].dir && strcmp(f->levels[i].dir, found) == 0);
        if (found && !is_used)
            dw_fold_dir_remove(found);
        dw_free(found);
    }
    if (dir)
        closedir(dir);
}

static void remove_copy(const char *dir)
{
    const dw_folds none = {0};
    remove_dirs(&none, dir);
    dw_fold_dir_remove(dir);
}

/* Names the directories. Removes those that earlier runs with other spans left. */
static dw_status open_dirs(dw_publisher *p, dw_error *err)
{
    dw_folds *f = &p->upkeep.folds;
    const char *baseline = p->options.baseline_dir;
    if (!baseline)
        return DW_OK;
    f->copy.dir = dw_join_path(baseline, DW_FOLDS_NAME);
    if (!f->copy.dir)
        return dw_fail_memory(err, baseline);
    for (size_t i = 0; i + 1 < f->n; i++) {
        char name[24];
        snprintf(name, sizeof name, "%u", f->levels[i].span);
        f->levels[i].dir = dw_join_path(f->copy.dir, name);
        if (!f->levels[i].dir)
            return dw_fail_memory(err, baseline);
    }
    if (f->n == 0)
        remove_copy(f->copy.dir);
    else
        remove_dirs(f, f->copy.dir);
    return DW_OK;
}

bool dw_folds_give_up_copy(dw_publisher *p)
{
    dw_upkeep *u = &p->upkeep;
    pthread_mutex_lock(&p->lock);
    u->give_up_copy = u->busy;
    const bool is_free = !u->busy;
    u->busy = true;
    pthread_mutex_unlock(&p->lock);
    if (!is_free)
        return false;
    const bool is_removed = dw_folds_remove_copy(p);
    pthread_mutex_lock(&p->lock);
    u->busy = false;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return is_removed;
}

bool dw_folds_remove_copy(dw_publisher *p)
{
    dw_folds *f = &p->upkeep.folds;
    struct stat st;
    char *path = p->options.baseline_dir
                     ? dw_join_path(p->options.baseline_dir, DW_FOLDS_NAME)
                     : NULL;
    const bool is_there = path && lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
    if (is_there) {
        f->copy.at = dw_nowhere;
        for (size_t i = 0; i < f->n; i++)
            dw_fold_level_drop(&f->levels[i], &f->copy);
        remove_copy(path);
    }
    dw_free(path);
    return is_there;
}

dw_status dw_folds_open(dw_publisher *p, dw_error *err)
{
    dw_folds *f = &p->upkeep.folds;
    f->copy = (dw_fold_copy){.spool_dir = p->options.spool_dir,
                             .pieces = &p->pieces,
                             .n_threads = p->options.n_threads,
                             .at = dw_nowhere};
    if (p->sharded || (!p->options.spool_dir && !p->options.baseline_dir))
        return DW_OK;
    for (size_t i = 0; i < DW_MAX_FOLDS; i++)
        if (p->options.folds[i] > 0)
            f->levels[f->n++] =
                (dw_fold_level){.span = p->options.folds[i], .at = dw_nowhere, .fd = -1};
    dw_status status = open_dirs(p, err);
    if (status != DW_OK || f->n == 0)
        return status;
    if (!f->copy.dir || !read_position(&f->copy.at, p, f->copy.dir)) {
        f->copy.at = dw_nowhere;
        if (!dw_held_take(&p->upkeep.held, &p->upkeep.at))
            return DW_OK; /* the baseline is lost: a later version makes the copy */
        status = start_over(p, err);
        dw_held_release(&p->upkeep.held);
        return status;
    }
    for (size_t i = 0; i < f->n; i++)
        find_level(p, &f->levels[i]);
    return DW_OK;
}

void dw_folds_close(dw_publisher *p)
{
    dw_folds *f = &p->upkeep.folds;
    for (size_t i = 0; i < f->n; i++) {
        if (f->levels[i].fd >= 0)
            close(f->levels[i].fd);
        dw_free(f->levels[i].dir);
    }
    dw_fold_copy_release(&f->copy);
}
