/* Writes one version: compares, writes, reads it back, compares again. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "formats/formats_inside.h"
#include "kernel/kernel.h"
#include "store/store.h"
#include "stream/anchor.h"
#include "tensor/dtype.h"
#include "tensor/tensor_list.h"

#define MAX_VERSION   999999999999999u /* the largest that dw_format_parse accepts */
#define CHUNK_ELEMS   (64u << 10)
#define COMPARE_BYTES (1u << 20)

/* ---- what differs ---- */

typedef struct comparison {
    const dw_tensor *base;
    const dw_tensor *next;
    uint64_t *n_changed; /* [n] elements that differ */
} comparison;

static dw_status count_pair(uint64_t *out, const dw_tensor *base, const dw_tensor *next,
                            dw_error *err)
{
    *out = 0;
    if (next->n_bytes == 0 || memcmp(base->data, next->data, (size_t)next->n_bytes) == 0)
        return DW_OK;
    uint32_t *found = dw_alloc_array(CHUNK_ELEMS + DW_LIST_SLACK, sizeof *found);
    if (!found)
        return dw_fail_memory(err, NULL);
    const unsigned width = dw_dtype_element(next->dtype).width;
    const uint64_t n_units = dw_tensor_units(next);
    for (uint64_t at = 0; at < n_units; at += CHUNK_ELEMS) {
        size_t n = n_units - at < CHUNK_ELEMS ? (size_t)(n_units - at) : CHUNK_ELEMS;
        *out += dw_kernels_get()->diff[dw_width_index(width)](
            found, (const uint8_t *)base->data + at * width,
            (const uint8_t *)next->data + at * width, n);
    }
    dw_free(found);
    return DW_OK;
}

static dw_status count_one(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const comparison *c = context;
    dw_loan loans[2] = {{0}};
    dw_tensor base, next;
    dw_status status = dw_tensor_read(&base, &loans[0], &c->base[i], err);
    if (status == DW_OK)
        status = dw_tensor_read(&next, &loans[1], &c->next[i], err);
    if (status == DW_OK)
        status = count_pair(&c->n_changed[i], &base, &next, err);
    dw_loan_release(&loans[0]);
    dw_loan_release(&loans[1]);
    return status;
}

static dw_status check_model(const dw_foreign *f, const dw_tensor *tensors, size_t n,
                             dw_error *err)
{
    const char *where = dw_store_url(f->store);
    for (size_t i = 0; i < n && i < f->n_tensors; i++) {
        const dw_tensor *there = &f->model.tensors[i];
        const int order = strcmp(there->name, tensors[i].name);
        if (order != 0)
            return dw_fail_tensor(err, DW_MISMATCH, where,
                                  order < 0 ? there->name : tensors[i].name,
                                  order < 0 ? "the versions there have it, the model "
                                              "that is written does not"
                                            : "the model that is written has it, the "
                                              "versions there do not");
        dw_status status = dw_tensor_same_shape(there, &tensors[i], where, err);
        if (status != DW_OK)
            return status;
    }
    return n == f->n_tensors
               ? DW_OK
               : dw_fail(err, DW_MISMATCH, where,
                         "the versions there have %zu tensors, the model that is written "
                         "has %zu",
                         f->n_tensors, n);
}

/* Free *N_CHANGED with dw_free. */
static dw_status count_changes(const dw_foreign *f, const dw_tensor *tensors, size_t n,
                               uint64_t **n_changed, dw_error *err)
{
    *n_changed = dw_alloc_zeroed(n, sizeof **n_changed);
    comparison c = {f->model.tensors, tensors, *n_changed};
    dw_status status = *n_changed ? check_model(f, tensors, n, err)
                                  : dw_fail_memory(err, dw_store_url(f->store));
    return status == DW_OK ? dw_parallel(dw_worker_count(f->options.n_threads, n), n,
                                         count_one, &c, NULL, err)
                           : status;
}

dw_status dw_foreign_compare(const dw_foreign *f, const dw_tensor *tensors, size_t n,
                             dw_error *err)
{
    uint64_t *n_changed;
    dw_status status = count_changes(f, tensors, n, &n_changed, err);
    for (size_t i = 0; status == DW_OK && i < n; i++)
        if (n_changed[i] > 0)
            status =
                dw_fail_tensor(err, DW_MISMATCH, dw_store_url(f->store), tensors[i].name,
                               "%" PRIu64 " of its elements differ", n_changed[i]);
    dw_free(n_changed);
    return status;
}

/* ---- one version ---- */

/* Reads the version into the model, which must then be what was written. */
static dw_status prove(dw_foreign *f, const dw_foreign_job *job, dw_error *err)
{
    dw_error fault = {0};
    const dw_foreign_version version = {job->version, job->is_whole};
    dw_status status = f->format->read(f, &version, NULL, &fault);
    if (status == DW_OK)
        status = dw_foreign_compare(f, job->next, job->n, &fault);
    if (status == DW_OK) {
        f->at = job->version;
        return DW_OK;
    }
    f->at = DW_NO_VERSION;
    if (status == DW_MISMATCH || status == DW_CORRUPT || status == DW_UNSUPPORTED)
        return dw_fail(err, DW_CORRUPT, dw_store_url(f->store),
                       "version %" PRIu64 " was written, and is damaged when it is read "
                       "back: %.600s. Start again; if this stays, remove its objects",
                       job->version, fault.text);
    if (err)
        *err = fault;
    return status;
}

dw_status dw_foreign_write(dw_foreign *f, uint64_t version, const dw_tensor *tensors,
                           size_t n, const dw_progress *progress,
                           dw_foreign_report *report, dw_error *err)
{
    const bool has_base = f->at != DW_NO_VERSION;
    uint64_t *n_changed = NULL;
    *report = (dw_foreign_report){.is_whole = !has_base || version != f->at + 1 ||
                                              f->format->is_due(&f->options, version)};
    if (version > MAX_VERSION)
        return dw_fail(err, DW_INVALID, dw_store_url(f->store),
                       "version %" PRIu64
                       " has more than 15 digits: no reader here would "
                       "take it for one",
                       version);
    dw_status status = dw_tensors_check(tensors, n, err);
    if (status == DW_OK && has_base)
        status = count_changes(f, tensors, n, &n_changed, err);
    for (size_t i = 0; status == DW_OK && n_changed && i < n; i++)
        report->n_changed += n_changed[i];
    const dw_foreign_job job = {.version = version,
                                .base_version = f->at,
                                .base = has_base ? f->model.tensors : NULL,
                                .next = tensors,
                                .n_changed = n_changed,
                                .n = n,
                                .is_whole = report->is_whole,
                                .progress = progress};
    if (status == DW_OK)
        status = f->format->write(f, &job, report, err);
    if (status == DW_OK)
        status = prove(f, &job, err);
    dw_free(n_changed);
    return status;
}

/* ---- objects ---- */

/* Whether the object under KEY has the bytes of SOURCE. */
static dw_status is_same(bool *same, dw_store *store, const char *key,
                         const dw_source *source, dw_error *err)
{
    uint64_t n_bytes;
    *same = false;
    dw_status status = dw_store_stat(store, key, &n_bytes, NULL, err);
    if (status != DW_OK || n_bytes != source->n_bytes)
        return status;
    uint8_t *theirs = dw_alloc(2 * COMPARE_BYTES), *ours = theirs + COMPARE_BYTES;
    if (!theirs)
        return dw_fail_memory(err, key);
    *same = true;
    for (uint64_t at = 0; status == DW_OK && *same && at < n_bytes;) {
        size_t n = n_bytes - at < COMPARE_BYTES ? (size_t)(n_bytes - at) : COMPARE_BYTES;
        size_t n_read = 0;
        status = dw_store_get(store, key, at, theirs, n, &n_read, NULL, err);
        if (status == DW_OK)
            status = dw_source_read(source, at, ours, n, err);
        *same = status == DW_OK && n_read == n && memcmp(theirs, ours, n) == 0;
        at += n;
    }
    dw_free(theirs);
    return status;
}

dw_status dw_foreign_put(dw_foreign *f, const char *key, const dw_source *source,
                         const dw_foreign_job *job, dw_foreign_report *report,
                         dw_error *err)
{
    dw_status status =
        dw_store_put(f->store, key, source, DW_PUT_CREATE, job->progress, err);
    if (status == DW_CONFLICT) {
        bool same;
        status = is_same(&same, f->store, key, source, err);
        if (status == DW_OK && !same) {
            char where[DW_STORE_WHERE];
            status = dw_fail(err, DW_CONFLICT,
                             dw_store_where(f->store, key, where, sizeof where),
                             "somebody else wrote this object meanwhile: one process "
                             "writes at a time; stop one of the two");
        }
    }
    if (status == DW_OK) {
        report->n_objects++;
        report->n_bytes += source->n_bytes;
    }
    return status;
}

dw_status dw_foreign_put_file(dw_foreign *f, const char *key, const dw_tensor *tensors,
                              size_t n_tensors, const dw_pair *metadata,
                              size_t n_metadata, const dw_foreign_job *job,
                              dw_foreign_report *report, dw_error *err)
{
    dw_anchor file;
    dw_status status =
        dw_anchor_open_file(&file, tensors, n_tensors, metadata, n_metadata, key, err);
    if (status != DW_OK)
        return status;
    const dw_source source = dw_anchor_source(&file);
    status = dw_foreign_put(f, key, &source, job, report, err);
    dw_anchor_release(&file);
    return status;
}
