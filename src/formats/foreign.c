#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "formats/formats_inside.h"
#include "store/store.h"
#include "tensor/tensor_list.h"

static const dw_format *const formats[] = {&dw_format_trl, &dw_format_slime};
#define N_FORMATS (sizeof formats / sizeof *formats)

const dw_format *dw_format_named(const char *name)
{
    for (size_t i = 0; i < N_FORMATS; i++)
        if (strcmp(name, formats[i]->name) == 0)
            return formats[i];
    return NULL;
}

const char *dw_format_name(const dw_format *format)
{
    return format->name;
}

/* ---- keys ---- */

void dw_format_key(char out[DW_KEY_TEXT], const char *before, uint64_t version,
                   const char *after)
{
    snprintf(out, DW_KEY_TEXT, "%s%0*" PRIu64 "%s", before, DW_FORMAT_DIGITS, version,
             after);
}

bool dw_format_parse(const char *key, const char *before, const char *after,
                     uint64_t *version)
{
    const size_t n_before = strlen(before);
    if (strncmp(key, before, n_before) != 0)
        return false;
    const char *digits = key + n_before;
    const size_t n = strspn(digits, "0123456789");
    if (n < DW_FORMAT_DIGITS || n > 15 || (n > DW_FORMAT_DIGITS && *digits == '0') ||
        strcmp(digits + n, after) != 0)
        return false;
    *version = 0;
    for (size_t i = 0; i < n; i++)
        *version = *version * 10 + (uint64_t)(digits[i] - '0');
    return true;
}

/* ---- the format of a store ---- */

typedef struct search {
    const dw_format *format;
    bool found;
} search;

static dw_status look_at(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)err;
    search *s = context;
    dw_foreign_version version;
    s->found = s->format->parse(entry->key, &version);
    return s->found ? DW_CANCELLED : DW_OK; /* stop the listing at the first one */
}

static dw_status search_format(search *s, dw_store *store, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < 2 && s->format->prefixes[i]; i++)
        status = dw_store_list(store, s->format->prefixes[i], NULL, look_at, s, err);
    return s->found ? DW_OK : status;
}

dw_status dw_format_detect(const dw_format **out, dw_store *store, dw_error *err)
{
    dw_error fault = {0};
    *out = NULL;
    dw_status status = dw_store_stat(store, DW_KEY_STREAM, NULL, NULL, &fault);
    if (status == DW_OK)
        return dw_fail(err, DW_NOT_FOUND, dw_store_url(store),
                       "this is a stream of deltawire's own");
    if (status != DW_NOT_FOUND) {
        if (err)
            *err = fault;
        return status;
    }
    status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < N_FORMATS; i++) {
        search s = {formats[i], false};
        status = search_format(&s, store, err);
        if (s.found) {
            *out = s.format;
            return DW_OK;
        }
    }
    return status != DW_OK
               ? status
               : dw_fail(err, DW_NOT_FOUND, dw_store_url(store),
                         "there is no stream of deltawire, and nothing of TRL or slime");
}

/* ---- opening ---- */

/* Nothing but versions of FORMAT may be there. */
static dw_status check_store(dw_store *store, const dw_format *format, dw_error *err)
{
    const dw_format *found = NULL;
    dw_stream *stream = NULL;
    dw_status status = dw_format_detect(&found, store, err);
    if (status == DW_OK && found && found != format)
        return dw_fail(err, DW_CONFLICT, dw_store_url(store),
                       "versions of %s are here, not of %s: name another place",
                       found->name, format->name);
    if (status != DW_NOT_FOUND)
        return status;
    status = dw_stream_open(&stream, store, NULL, err);
    dw_stream_close(stream);
    if (status == DW_OK)
        return dw_fail(err, DW_CONFLICT, dw_store_url(store),
                       "a deltawire stream is here: name another place");
    return status == DW_NOT_FOUND ? DW_OK : status;
}

dw_status dw_foreign_open(dw_foreign **out, dw_store *store, const dw_format *format,
                          const dw_foreign_options *options, dw_error *err)
{
    *out = NULL;
    dw_status status = check_store(store, format, err);
    if (status != DW_OK)
        return status;
    dw_foreign *f = dw_alloc_zeroed(1, sizeof *f);
    if (!f)
        return dw_fail_memory(err, dw_store_url(store));
    f->store = store;
    f->format = format;
    f->options = *options;
    f->at = f->marked = DW_NO_VERSION;
    *out = f;
    return DW_OK;
}

static void forget_model(dw_foreign *f)
{
    dw_scratch_model_release(&f->model);
    dw_patch_free(f->table);
    f->table = NULL;
    f->n_tensors = 0;
    f->at = f->marked = DW_NO_VERSION;
}

void dw_foreign_close(dw_foreign *f)
{
    if (!f)
        return;
    forget_model(f);
    dw_free(f->versions);
    dw_free(f);
}

/* ---- the versions ---- */

static dw_status add_version(void *context, const dw_store_entry *entry, dw_error *err)
{
    dw_foreign *f = context;
    dw_foreign_version found;
    if (!f->format->parse(entry->key, &found))
        return DW_OK;
    if (!dw_grow_array((void **)&f->versions, &f->n_room, f->n_versions,
                       sizeof *f->versions))
        return dw_fail_memory(err, entry->key);
    f->versions[f->n_versions++] = found;
    return DW_OK;
}

/* By number; an anchor comes before the delta of that number. */
static int compare_versions(const void *left, const void *right)
{
    const dw_foreign_version *a = left, *b = right;
    if (a->version != b->version)
        return a->version < b->version ? -1 : 1;
    return b->is_anchor - a->is_anchor;
}

dw_status dw_foreign_list(dw_foreign *f, const dw_foreign_version **versions,
                          size_t *n_versions, dw_error *err)
{
    dw_status status = DW_OK;
    f->n_versions = 0;
    for (size_t i = 0; status == DW_OK && i < 2 && f->format->prefixes[i]; i++)
        status =
            dw_store_list(f->store, f->format->prefixes[i], NULL, add_version, f, err);
    size_t n = 0;
    if (f->n_versions > 0)
        qsort(f->versions, f->n_versions, sizeof *f->versions, compare_versions);
    for (size_t i = 0; i < f->n_versions; i++)
        if (n == 0 || f->versions[n - 1].version != f->versions[i].version)
            f->versions[n++] = f->versions[i];
    f->n_versions = status == DW_OK ? n : 0;
    *versions = f->versions;
    *n_versions = f->n_versions;
    return status;
}

static const dw_foreign_version *find_version(const dw_foreign *f, uint64_t version)
{
    for (size_t i = f->n_versions; i-- > 0;) /* mostly one of the newest */
        if (f->versions[i].version <= version)
            return f->versions[i].version == version ? &f->versions[i] : NULL;
    return NULL;
}

dw_status dw_foreign_look(dw_foreign *f, uint64_t version, dw_foreign_facts *out,
                          dw_error *err)
{
    const dw_foreign_version *found = find_version(f, version);
    *out = (dw_foreign_facts){.base = DW_NO_VERSION};
    if (!found)
        return dw_fail(err, DW_NOT_FOUND, dw_store_url(f->store),
                       "version %" PRIu64 " is not there", version);
    dw_status status = f->format->look(f, found, out, err);
    if (status == DW_OK && !out->is_whole && out->base != DW_NO_VERSION &&
        out->base >= version)
        status = dw_fail(err, DW_CORRUPT, dw_store_url(f->store),
                         "version %" PRIu64 " says that it starts from version %" PRIu64
                         ", which does not come before it",
                         version, out->base);
    return status;
}

/* ---- the model ---- */

uint64_t dw_foreign_at(const dw_foreign *f)
{
    return f->at;
}

const uint8_t *dw_foreign_mark(const dw_foreign *f)
{
    return f->at != DW_NO_VERSION && f->marked == f->at ? f->mark : NULL;
}

static void keep_mark(dw_foreign *f, uint64_t version, const uint8_t *mark)
{
    f->marked = version;
    memcpy(f->mark, mark, sizeof f->mark);
}

const dw_tensor *dw_foreign_tensors(const dw_foreign *f, size_t *n_tensors)
{
    *n_tensors = f->n_tensors;
    return f->model.tensors;
}

static dw_status make_model(dw_foreign *f, const dw_tensor *sorted, size_t n,
                            dw_error *err)
{
    forget_model(f);
    dw_status status = dw_patch_new(&f->table, sorted, n, err);
    if (status == DW_OK)
        status = dw_scratch_model_make(&f->model, f->table->tensors, n,
                                       f->options.work_dir, err);
    if (status == DW_OK)
        f->n_tensors = n;
    else
        forget_model(f);
    return status;
}

dw_status dw_foreign_learn(dw_foreign *f, const dw_tensor *tensors, size_t n,
                           const char *where, dw_error *err)
{
    if (f->table)
        return DW_OK;
    if (n == 0)
        return dw_fail(err, DW_CORRUPT, where, "it holds no tensors");
    dw_tensor *sorted = dw_alloc_array(n, sizeof *sorted);
    if (!sorted)
        return dw_fail_memory(err, where);
    memcpy(sorted, tensors, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, dw_tensor_compare_names);
    dw_status status = DW_OK;
    for (size_t i = 1; status == DW_OK && i < n; i++)
        if (strcmp(sorted[i - 1].name, sorted[i].name) == 0)
            status = dw_fail_tensor(err, DW_CORRUPT, where, sorted[i].name,
                                    "two files hold it");
    if (status == DW_OK)
        status = make_model(f, sorted, n, err);
    dw_free(sorted);
    return status;
}

dw_status dw_foreign_fill(dw_foreign *f, const dw_tensor *table, size_t n,
                          uint64_t version, dw_foreign_fill_fn fill, void *context,
                          dw_error *err)
{
    dw_foreign_facts facts;
    dw_status status = make_model(f, table, n, err);
    if (status == DW_OK && find_version(f, version)) {
        status = dw_foreign_look(f, version, &facts, err);
        keep_mark(f, status == DW_OK ? version : DW_NO_VERSION, facts.mark);
        status = status == DW_NOT_FOUND ? DW_OK : status;
    }
    if (status == DW_OK)
        status = fill ? fill(context, f->model.tensors, n, err)
                      : dw_fill_from_tensors((void *)(uintptr_t)table, f->model.tensors,
                                             n, err);
    if (status == DW_OK)
        f->at = version;
    else
        forget_model(f);
    return status;
}

void dw_foreign_change(dw_foreign *f)
{
    f->at = DW_NO_VERSION;
}

dw_status dw_foreign_find(const dw_foreign *f, const char *name, const dw_tensor **out,
                          const char *where, dw_error *err)
{
    const dw_tensor key = {.name = name};
    *out = f->n_tensors > 0 ? bsearch(&key, f->model.tensors, f->n_tensors, sizeof key,
                                      dw_tensor_compare_names)
                            : NULL;
    return *out ? DW_OK
                : dw_fail_tensor(err, DW_MISMATCH, where, name,
                                 "the version has it, but the weights here do not");
}

dw_status dw_foreign_check(const dw_foreign *f, const dw_safetensors *file,
                           const char *where, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < file->n_tensors; i++) {
        const dw_tensor *here;
        status = dw_foreign_find(f, file->tensors[i].name, &here, where, err);
        if (status == DW_OK)
            status = dw_tensor_same_shape(here, &file->tensors[i], where, err);
    }
    return status;
}

dw_status dw_foreign_store(dw_foreign *f, const dw_safetensors *file, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < file->n_tensors; i++) {
        const dw_tensor *here;
        status = dw_foreign_find(f, file->tensors[i].name, &here, NULL, err);
        if (status == DW_OK && here && here->n_bytes > 0)
            memcpy(here->data, file->tensors[i].data, (size_t)here->n_bytes);
    }
    return status;
}

/* ---- from version to version ---- */

/* The chain ends at BASE, which is not listed. */
static dw_status fail_unchained(const dw_foreign *f, uint64_t version, uint64_t base,
                                dw_error *err)
{
    if (f->format == &dw_format_trl)
        return dw_fail(err, DW_NOT_FOUND, dw_store_url(f->store),
                       "version %" PRIu64 " has no whole anchor before it: nothing here "
                       "is the whole model. Name the checkpoint that it starts from "
                       "with --base",
                       version);
    const bool is_first = base < f->versions[0].version;
    return dw_fail(err, DW_NOT_FOUND, dw_store_url(f->store),
                   "version %" PRIu64 " starts from version %" PRIu64 ", which is %s",
                   version, base,
                   is_first ? "the engine's own model and not here: name that checkpoint "
                              "with --base"
                            : "not there: the chain is broken");
}

/* A version on the way to another. */
typedef struct stop {
    uint64_t version;
    dw_foreign_facts facts;
} stop;

/* Fills *WAY with the versions from VERSION back to the first to read. */
static dw_status walk_back(dw_foreign *f, uint64_t version, stop **way, size_t *n,
                           dw_error *err)
{
    dw_foreign_facts facts;
    size_t n_room = 0;
    for (uint64_t at = version; at != f->at; at = facts.base) {
        dw_status status = dw_foreign_look(f, at, &facts, err);
        if (status == DW_OK && !dw_grow_array((void **)way, &n_room, *n, sizeof **way))
            status = dw_fail_memory(err, NULL);
        if (status != DW_OK)
            return status;
        (*way)[(*n)++] = (stop){at, facts};
        if (facts.is_whole)
            return DW_OK;
        if (facts.base == DW_NO_VERSION ||
            (facts.base != f->at && !find_version(f, facts.base)))
            return fail_unchained(f, at, facts.base, err);
    }
    return DW_OK;
}

/* After a delta was read: whether BASE, which the model was at, is still the same. A run
 * that is started again replaces versions in their order, so a delta of the new run is
 * never read before its base has another mark. */
static dw_status check_base(dw_foreign *f, uint64_t base, dw_error *err)
{
    dw_foreign_facts facts;
    dw_error fault = {0};
    if (base == DW_NO_VERSION || f->marked != base || !find_version(f, base))
        return DW_OK;
    dw_status status = dw_foreign_look(f, base, &facts, &fault);
    if (status == DW_NOT_FOUND)
        return DW_OK; /* removed since it was listed */
    if (status == DW_OK && memcmp(facts.mark, f->mark, sizeof f->mark) != 0)
        status = dw_fail(&fault, DW_STALE, dw_store_url(f->store),
                         "version %" PRIu64 " is another one than before: a run was "
                         "started again. Name another place, or remove what the new run "
                         "wrote",
                         base);
    if (status != DW_OK) {
        dw_foreign_change(f);
        if (err)
            *err = fault;
    }
    return status;
}

dw_status dw_foreign_go(dw_foreign *f, uint64_t version, const dw_progress *progress,
                        dw_error *err)
{
    stop *way = NULL;
    size_t n = 0;
    dw_status status = walk_back(f, version, &way, &n, err);
    while (status == DW_OK && n > 0) {
        const stop *next = &way[--n];
        const uint64_t base = f->at;
        status = f->format->read(f, find_version(f, next->version), progress, err);
        if (status == DW_OK && !next->facts.is_whole)
            status = check_base(f, base, err);
        if (status == DW_OK) {
            f->at = next->version;
            keep_mark(f, f->at, next->facts.mark);
        }
    }
    dw_free(way);
    return status;
}

/* ---- files ---- */

dw_status dw_foreign_fetch(dw_foreign_file *out, const dw_foreign *f, const char *key,
                           const dw_progress *progress, dw_error *err)
{
    uint64_t n_bytes;
    size_t n_read = 0;
    *out = (dw_foreign_file){0};
    dw_store_where(f->store, key, out->where, sizeof out->where);
    dw_status status = dw_store_stat(f->store, key, &n_bytes, NULL, err);
    if (status == DW_NOT_FOUND)
        return dw_fail(err, DW_NOT_FOUND, out->where,
                       "the version names this file, but it is not there: it is still "
                       "being written, or lost");
    if (status == DW_OK)
        status = dw_blob_make(&out->blob, n_bytes, f->options.work_dir, err);
    if (status == DW_OK)
        status = dw_store_get(f->store, key, 0, out->blob.bytes, out->blob.n_bytes,
                              &n_read, progress, err);
    if (status == DW_OK && n_read != out->blob.n_bytes)
        status = dw_fail(err, DW_CORRUPT, out->where,
                         "it ends after %zu bytes of the %zu that it should have", n_read,
                         out->blob.n_bytes);
    if (status == DW_OK)
        status = dw_safetensors_parse(&out->file, out->blob.bytes, out->blob.n_bytes,
                                      out->where, err);
    return status;
}

void dw_foreign_file_release(dw_foreign_file *file)
{
    dw_safetensors_release(&file->file);
    dw_blob_release(&file->blob);
}

dw_status dw_foreign_fetch_head(dw_writer *out, const dw_foreign *f, const char *key,
                                size_t n_bytes, dw_error *err)
{
    size_t n_read = 0;
    uint8_t *bytes = dw_alloc(n_bytes);
    dw_status status =
        bytes ? dw_store_get(f->store, key, 0, bytes, n_bytes, &n_read, NULL, err)
              : dw_fail_memory(err, key);
    if (status == DW_OK)
        dw_write_bytes(out, bytes, n_read);
    dw_free(bytes);
    return status == DW_OK && out->failed ? dw_fail_memory(err, key) : status;
}
