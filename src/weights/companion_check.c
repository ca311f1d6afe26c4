/* A follower may be installing files meanwhile. It writes the list first and last, so a
 * fault counts only if the list is the same after it was found. While the list names
 * files that will be ours, those that are missing are not there yet, or were just
 * removed; the next install ends that. */
#include <errno.h>
#include <string.h>

#include <deltawire/files.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "weights/companion_hash.h"
#include "weights/companion_list.h"

#define N_TRIES 5

typedef enum finding { GOOD, MISSING, CHANGED } finding;

static bool is_entry(const dw_file_entry *entry, uint64_t n_bytes,
                     const uint8_t sha256[DW_SHA256_BYTES])
{
    return entry && entry->n_bytes == n_bytes &&
           memcmp(entry->sha256, sha256, DW_SHA256_BYTES) == 0;
}

static dw_status look_at(finding *out, const dw_companion_list *list,
                         const dw_file_entry *entry, const char *path, dw_error *err)
{
    uint8_t sha256[DW_SHA256_BYTES];
    struct stat st;
    bool is_file, is_still;
    if (lstat(path, &st) != 0) {
        *out = list->next.n > 0 ? GOOD : MISSING;
        return errno == ENOENT ? DW_OK : dw_fail_errno(err, path, "look at");
    }
    dw_status status = dw_companion_hash(sha256, &st, &is_file, &is_still, path, err);
    const dw_file_entry *next = dw_file_list_find(&list->next, entry->name);
    const uint64_t n_bytes = (uint64_t)st.st_size;
    *out = status == DW_OK && is_file &&
                   (is_entry(entry, n_bytes, sha256) || is_entry(next, n_bytes, sha256))
               ? GOOD
               : CHANGED;
    return status;
}

static dw_status look_at_all(finding *found, bool *any, const dw_companion_list *list,
                             const char *dir, dw_error *err)
{
    dw_status status = DW_OK;
    *any = false;
    for (size_t i = 0; status == DW_OK && i < list->files.n; i++) {
        const dw_file_entry *entry = &list->files.items[i];
        char *path = dw_join_path(dir, entry->name);
        status =
            path ? look_at(&found[i], list, entry, path, err) : dw_fail_memory(err, dir);
        *any = *any || found[i] != GOOD;
        dw_free(path);
    }
    return status;
}

static dw_status report(const finding *found, const dw_companion_list *list,
                        const char *dir, dw_fault_fn fn, void *context, dw_error *err)
{
    for (size_t i = 0; i < list->files.n; i++) {
        dw_error fault;
        if (found[i] == GOOD)
            continue;
        char *path = dw_join_path(dir, list->files.items[i].name);
        if (!path)
            return dw_fail_memory(err, dir);
        if (found[i] == MISSING)
            dw_fail(&fault, DW_NOT_FOUND, path,
                    "the companion file is missing: pull again to install it");
        else
            dw_fail(&fault, DW_CORRUPT, path,
                    "the companion file was changed after it was installed. Remove it "
                    "and pull again to get the version's; if you keep it, it is yours "
                    "from the next pull on");
        fn(context, &fault);
        dw_free(path);
    }
    return DW_OK;
}

/* Looks at all files of the list, and reports the faults unless the list is another one
 * afterwards. */
static dw_status check(bool *is_done, const dw_companion_list *list, const char *dir,
                       dw_fault_fn fn, void *context, dw_error *err)
{
    bool any = false;
    dw_companion_list now = {0};
    finding *found = dw_alloc_zeroed(list->files.n + 1, sizeof *found);
    dw_status status =
        found ? look_at_all(found, &any, list, dir, err) : dw_fail_memory(err, dir);
    if (status == DW_OK && any)
        status = dw_companion_list_read(&now, dir, err);
    *is_done =
        status == DW_OK && (!any || (dw_companion_list_same(&list->files, &now.files) &&
                                     dw_companion_list_same(&list->next, &now.next)));
    if (*is_done && any)
        status = report(found, list, dir, fn, context, err);
    dw_companion_list_release(&now);
    dw_free(found);
    return status;
}

dw_status dw_companions_check(const char *dir, dw_fault_fn fn, void *context,
                              size_t *n_files, dw_error *err)
{
    dw_status status = DW_OK;
    bool is_done = false;
    *n_files = 0;
    for (int i = 0; status == DW_OK && !is_done && i < N_TRIES; i++) {
        dw_companion_list list;
        status = dw_companion_list_read(&list, dir, err);
        if (status != DW_OK)
            break;
        *n_files = list.files.n;
        status = check(&is_done, &list, dir, fn, context, err);
        dw_companion_list_release(&list);
    }
    return status;
}
