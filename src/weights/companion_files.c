#include "weights/companion_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "weights/companion_hash.h"
#include "weights/companion_list.h"
#include "weights/own_dir.h"

#define STAGED_NAME  "file-" /* and a number */
#define STAGED_BYTES (sizeof STAGED_NAME + 20)
#define T_SETTLED_S  2 /* after which a change of a file changes its times too */

/* What is there under a name. */
typedef enum presence {
    ABSENT,
    OURS,  /* as L has it, and not what the version has */
    SAME,  /* the bytes that the version has, whoever put them there */
    USERS, /* all else */
} presence;

/* A file that was hashed. As long as its status is the same, so are its bytes. */
typedef struct known_file {
    char *name;
    struct stat st;
    uint8_t sha256[DW_SHA256_BYTES];
} known_file;

struct dw_companion_dir {
    char *dir;
    dw_companion_list list; /* as it is on disk */
    dw_file_list goal;
    presence *found; /* [goal.n] */
    bool *staged;    /* [goal.n] */
    known_file *known;
    size_t n_known, n_known_room;
};

/* ---- opening ---- */

static void staged_name(char out[STAGED_BYTES], size_t i)
{
    snprintf(out, STAGED_BYTES, STAGED_NAME "%04zu", i);
}

/* Removes every T. */
static void remove_staged(const char *path)
{
    char *own = dw_join_path(path, DW_OWN_DIR);
    DIR *dir = own ? opendir(own) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        if (strncmp(e->d_name, STAGED_NAME, sizeof STAGED_NAME - 1) == 0)
            unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
    dw_free(own);
}

static void drop_plan(dw_companion_dir *d)
{
    bool any = false;
    for (size_t i = 0; d->staged && i < d->goal.n; i++)
        any = any || d->staged[i];
    if (any)
        remove_staged(d->dir);
    dw_companion_list_release(&d->list);
    dw_file_list_release(&d->goal);
    d->goal = (dw_file_list){0};
    dw_free(d->found);
    dw_free(d->staged);
    d->found = NULL;
    d->staged = NULL;
}

dw_status dw_companion_dir_open(dw_companion_dir **out, const char *dir, dw_error *err)
{
    *out = dw_alloc_zeroed(1, sizeof **out);
    char *copy = dw_copy_string(dir);
    dw_status status =
        *out && copy ? dw_own_dir_make(dir, err) : dw_fail_memory(err, dir);
    if (status == DW_OK) {
        (*out)->dir = copy;
        dw_companion_tidy(dir); /* after a process that was killed */
    } else {
        dw_free(copy);
        dw_free(*out);
        *out = NULL;
    }
    return status;
}

void dw_companion_tidy(const char *dir)
{
    dw_own_dir_tidy(dir);
    remove_staged(dir);
}

void dw_companion_dir_close(dw_companion_dir *d)
{
    if (!d)
        return;
    drop_plan(d);
    for (size_t i = 0; i < d->n_known; i++)
        dw_free(d->known[i].name);
    dw_free(d->known);
    dw_free(d->dir);
    dw_free(d);
}

/* ---- what is there ---- */

static known_file *find_known(const dw_companion_dir *d, const char *name)
{
    for (size_t i = 0; i < d->n_known; i++)
        if (strcmp(d->known[i].name, name) == 0)
            return &d->known[i];
    return NULL;
}

/* Remembers a hash, unless the file may change once more without a change of its times.
 */
static void remember(dw_companion_dir *d, const char *name, const struct stat *st,
                     const uint8_t sha256[DW_SHA256_BYTES])
{
    if (time(NULL) - st->st_ctim.tv_sec < T_SETTLED_S)
        return;
    known_file *known = find_known(d, name);
    if (!known) {
        if (!dw_grow_array((void **)&d->known, &d->n_known_room, d->n_known,
                           sizeof *d->known))
            return;
        char *copy = dw_copy_string(name);
        if (!copy)
            return;
        known = &d->known[d->n_known++];
        known->name = copy;
    }
    known->st = *st;
    memcpy(known->sha256, sha256, DW_SHA256_BYTES);
}

/* Hashes the regular file NAME. *IS_FILE is false if it is none, or cannot be read. */
static dw_status look_at(uint8_t sha256[DW_SHA256_BYTES], bool *is_file,
                         dw_companion_dir *d, const char *name, const char *path,
                         dw_error *err)
{
    struct stat st;
    bool is_still;
    dw_status status = dw_companion_hash(sha256, &st, is_file, &is_still, path, err);
    if (status == DW_OK && *is_file && is_still)
        remember(d, name, &st, sha256);
    return status;
}

static bool has_bytes(const dw_file_entry *entry, uint64_t n_bytes,
                      const uint8_t sha256[DW_SHA256_BYTES])
{
    return entry && entry->n_bytes == n_bytes &&
           memcmp(entry->sha256, sha256, DW_SHA256_BYTES) == 0;
}

/* Finds out what is there under NAME. WANTED is what the version has, or NULL. *OWNER is
 * the entry of L that makes it ours, or NULL; it may be NULL itself. */
static dw_status judge(presence *out, const dw_file_entry **owner, dw_companion_dir *d,
                       const char *name, const dw_file_entry *wanted, dw_error *err)
{
    const dw_file_entry *ours[] = {dw_file_list_find(&d->list.files, name),
                                   dw_file_list_find(&d->list.next, name)};
    uint8_t sha256[DW_SHA256_BYTES];
    struct stat st;
    char *path = dw_join_path(d->dir, name);
    if (owner)
        *owner = NULL;
    *out = USERS;
    if (!path)
        return dw_fail_memory(err, d->dir);
    dw_status status = DW_OK;
    bool is_file = false;
    const bool is_absent = lstat(path, &st) != 0;
    if (is_absent && errno != ENOENT)
        status = dw_fail_errno(err, path, "look at");
    else if (is_absent)
        *out = ABSENT;
    const uint64_t n_bytes = is_absent ? 0 : (uint64_t)st.st_size;
    bool may_match = wanted && wanted->n_bytes == n_bytes;
    for (int i = 0; i < 2; i++)
        may_match = may_match || (ours[i] && ours[i]->n_bytes == n_bytes);
    if (status == DW_OK && !is_absent && S_ISREG(st.st_mode) && may_match) {
        const known_file *known = find_known(d, name);
        is_file = known && dw_companion_same_status(&known->st, &st);
        if (is_file)
            memcpy(sha256, known->sha256, sizeof sha256);
        else
            status = look_at(sha256, &is_file, d, name, path, err);
    }
    dw_free(path);
    for (int i = 0; status == DW_OK && is_file && i < 2; i++)
        if (has_bytes(ours[i], n_bytes, sha256)) {
            *out = OURS;
            if (owner)
                *owner = ours[i];
        }
    if (status == DW_OK && is_file && has_bytes(wanted, n_bytes, sha256))
        *out = SAME;
    return status;
}

/* ---- plan ---- */

/* Readers of the records have checked this. It is checked again here, where a wrong name
 * would do harm. */
static dw_status check_goal(const dw_file_list *goal, const char *dir, dw_error *err)
{
    const char *why;
    for (size_t i = 0; i < goal->n; i++)
        if (!dw_file_name_valid(goal->items[i].name, &why))
            return dw_fail(err, DW_INVALID, dir,
                           "'%.255s' is no name for a companion file: it %s",
                           goal->items[i].name, why);
    if (goal->n > DW_MAX_FILES || dw_file_list_bytes(goal) > DW_MAX_FILES_BYTES)
        return dw_fail(err, DW_INVALID, dir,
                       "%zu companion files are too many, or too large together",
                       goal->n);
    return DW_OK;
}

dw_status dw_companion_plan(dw_companion_dir *d, const dw_file_list *goal, dw_error *err)
{
    drop_plan(d);
    dw_status status = check_goal(goal, d->dir, err);
    if (status == DW_OK)
        status = dw_companion_list_read(&d->list, d->dir, err);
    if (status == DW_OK)
        status = dw_file_list_copy(&d->goal, goal, err);
    if (status != DW_OK)
        return status;
    d->found = dw_alloc_zeroed(goal->n, sizeof *d->found);
    d->staged = dw_alloc_zeroed(goal->n, sizeof *d->staged);
    if (!d->found || !d->staged)
        status = dw_fail_memory(err, d->dir);
    for (size_t i = 0; status == DW_OK && i < goal->n; i++) {
        const dw_file_entry *entry = &d->goal.items[i];
        status = judge(&d->found[i], NULL, d, entry->name, entry, err);
    }
    if (status != DW_OK)
        drop_plan(d);
    return status;
}

bool dw_companion_needs(const dw_companion_dir *d, size_t i)
{
    return !d->staged[i] && (d->found[i] == ABSENT || d->found[i] == OURS);
}

bool dw_companion_kept(const dw_companion_dir *d, size_t i)
{
    return i < d->goal.n && d->found[i] == USERS;
}

dw_status dw_companion_stage(dw_companion_dir *d, size_t i, const void *bytes,
                             dw_error *err)
{
    char name[STAGED_BYTES];
    staged_name(name, i);
    char *path = dw_own_path(d->dir, name);
    if (!path)
        return dw_fail_memory(err, d->dir);
    d->staged[i] = true; /* also if it fails: something may have to be removed */
    dw_status status = dw_write_file(path, bytes, (size_t)d->goal.items[i].n_bytes, err);
    dw_free(path);
    return status;
}

/* ---- install ---- */

/* Gives FROM its name TO, unless there is a file of that name. */
static dw_status name_new(const char *from, const char *to, bool *is_taken, dw_error *err)
{
    if (link(from, to) == 0)
        return unlink(from) == 0 ? DW_OK : dw_fail_errno(err, from, "remove");
    *is_taken = errno == EEXIST;
    if (*is_taken)
        return DW_OK;
    if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK)
        return dw_rename_file(from, to, err); /* there are no hard links here */
    return dw_fail_errno(err, to, "link into place");
}

static dw_status install_one(dw_companion_dir *d, size_t i, dw_companion_counts *counts,
                             dw_error *err)
{
    const dw_file_entry *entry = &d->goal.items[i];
    char name[STAGED_BYTES];
    staged_name(name, i);
    char *from = dw_own_path(d->dir, name), *to = dw_join_path(d->dir, entry->name);
    bool is_taken = false, is_placed = false;
    dw_status status = from && to ? DW_OK : dw_fail_memory(err, d->dir);
    /* the user may have done something since the plan */
    if (status == DW_OK)
        status = judge(&d->found[i], NULL, d, entry->name, entry, err);
    if (status == DW_OK && (d->found[i] == ABSENT || d->found[i] == OURS)) {
        status = d->found[i] == ABSENT ? name_new(from, to, &is_taken, err)
                                       : dw_rename_file(from, to, err);
        is_placed = status == DW_OK && !is_taken;
    }
    if (is_placed) {
        counts->n_installed++;
        d->found[i] = SAME;
    }
    if (is_taken)
        d->found[i] = USERS;
    dw_free(from);
    dw_free(to);
    return status;
}

/* Calls FN for each name in L, once. */
typedef dw_status (*owned_fn)(dw_companion_dir *d, const char *name, void *context,
                              dw_error *err);

static dw_status each_owned(dw_companion_dir *d, owned_fn fn, void *context,
                            dw_error *err)
{
    const dw_file_list *a = &d->list.files, *b = &d->list.next;
    dw_status status = DW_OK;
    for (size_t i = 0, k = 0; status == DW_OK && (i < a->n || k < b->n);) {
        const int order = i == a->n   ? 1
                          : k == b->n ? -1
                                      : strcmp(a->items[i].name, b->items[k].name);
        const char *name = order <= 0 ? a->items[i].name : b->items[k].name;
        i += order <= 0;
        k += order >= 0;
        status = fn(d, name, context, err);
    }
    return status;
}

/* Adds what is ours under NAME, as it is now, to a list. */
static dw_status add_owned(dw_companion_dir *d, const char *name, void *list,
                           dw_error *err)
{
    presence found;
    const dw_file_entry *owner;
    dw_status status = judge(&found, &owner, d, name, NULL, err);
    return status == DW_OK && owner ? dw_companion_list_add(list, owner, err) : status;
}

/* Removes what is ours under NAME if the version has no such file. */
static dw_status remove_dropped(dw_companion_dir *d, const char *name, void *counts_,
                                dw_error *err)
{
    dw_companion_counts *counts = counts_;
    presence found;
    if (dw_file_list_find(&d->goal, name))
        return DW_OK;
    dw_status status = judge(&found, NULL, d, name, NULL, err);
    if (status != DW_OK || found != OURS)
        return status;
    char *path = dw_join_path(d->dir, name);
    if (!path)
        return dw_fail_memory(err, d->dir);
    if (unlink(path) == 0)
        counts->n_removed++;
    else if (errno != ENOENT)
        status = dw_fail_errno(err, path, "remove");
    dw_free(path);
    return status;
}

/* Writes LIST, and takes it as the one that is on disk. */
static dw_status write_list(dw_companion_dir *d, dw_companion_list *list, dw_error *err)
{
    const bool is_same = dw_companion_list_same(&list->files, &d->list.files) &&
                         dw_companion_list_same(&list->next, &d->list.next);
    dw_status status = DW_OK;
    if (!is_same || (d->list.exists && list->files.n + list->next.n == 0))
        status = dw_companion_list_write(list, d->dir, err);
    if (status != DW_OK)
        return status;
    const dw_companion_list old = d->list;
    d->list = *list;
    d->list.exists = list->files.n + list->next.n > 0;
    *list = old;
    return DW_OK;
}

/* L with what is ours now, and what is staged. */
static dw_status write_intent(dw_companion_dir *d, dw_error *err)
{
    dw_companion_list list = {0};
    dw_status status = each_owned(d, add_owned, &list.files, err);
    for (size_t i = 0; status == DW_OK && i < d->goal.n; i++)
        if (d->staged[i])
            status = dw_companion_list_add(&list.next, &d->goal.items[i], err);
    if (status == DW_OK)
        status = write_list(d, &list, err);
    dw_companion_list_release(&list);
    return status;
}

/* L with what is ours at the end: of the version, and there. */
static dw_status write_result(dw_companion_dir *d, dw_error *err)
{
    dw_companion_list list = {0};
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < d->goal.n; i++) {
        const dw_file_entry *entry = &d->goal.items[i], *owner;
        presence found;
        status = judge(&found, &owner, d, entry->name, entry, err);
        if (status == DW_OK && found == SAME && owner)
            status = dw_companion_list_add(&list.files, entry, err);
    }
    if (status == DW_OK)
        status = write_list(d, &list, err);
    dw_companion_list_release(&list);
    return status;
}

static dw_status sync_names(const dw_companion_dir *d, dw_error *err)
{
    char *path = dw_join_path(d->dir, DW_OWN_DIR);
    dw_status status = path ? dw_sync_parent(path, err) : dw_fail_memory(err, d->dir);
    dw_free(path);
    return status;
}

dw_status dw_companion_install(dw_companion_dir *d, dw_companion_counts *counts,
                               dw_error *err)
{
    const dw_companion_counts before = *counts;
    dw_status status = write_intent(d, err);
    for (size_t i = 0; status == DW_OK && i < d->goal.n; i++)
        if (d->staged[i])
            status = install_one(d, i, counts, err);
    if (status == DW_OK)
        status = each_owned(d, remove_dropped, counts, err);
    if (status == DW_OK && (counts->n_installed != before.n_installed ||
                            counts->n_removed != before.n_removed))
        status = sync_names(d, err);
    return status == DW_OK ? write_result(d, err) : status;
}
