#include "publish/group_deltas.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/delta.h"

/* The file begins with this, then a range for each group, then the deltas. */
typedef struct header {
    char magic[8];
    uint64_t n_groups;
} header;

static const char magic[8] = "dwgroup1";

static uint64_t table_bytes(size_t n_groups)
{
    return sizeof(header) + n_groups * sizeof(dw_group_range);
}

/* ---- writing ---- */

typedef struct append {
    dw_new_file *file;
    uint64_t at;
} append;

static dw_status append_bytes(void *context, const void *bytes, size_t n_bytes,
                              dw_error *err)
{
    append *a = context;
    dw_status status = dw_new_file_write_at(a->file, a->at, bytes, n_bytes, err);
    a->at += n_bytes;
    return status;
}

static dw_status write_group(append *a, dw_group_range *range, const dw_group_diff *d,
                             const dw_piece_group *g, dw_error *err)
{
    dw_diff_options options;
    dw_delta_info info;
    dw_delta *delta;
    dw_diff_options_init(&options);
    options.n_threads = d->n_threads;
    options.base_version = d->from;
    options.new_version = d->to;
    options.base_digests = d->base_digests + g->first;
    options.new_digests = d->next_digests + g->first;
    if (d->stop)
        options.progress = *d->stop;
    dw_status status = d->load ? d->load(d->load_context, g, err) : DW_OK;
    if (status == DW_OK)
        status = dw_delta_diff(&delta, d->base + g->first, d->next + g->first, g->n,
                               &options, err);
    if (status != DW_OK)
        return status;
    dw_delta_get_info(delta, &info);
    *range = (dw_group_range){a->at, info.n_changed > 0 ? info.n_bytes : 0};
    if (range->n_bytes > 0)
        status = dw_delta_write(delta, append_bytes, a, err);
    dw_delta_close(delta);
    return status;
}

dw_status dw_group_deltas_write(dw_new_file *file, const dw_group_diff *d, dw_error *err)
{
    const size_t n = d->pieces->n_groups;
    append a = {file, table_bytes(n)};
    header head = {.n_groups = n};
    memcpy(head.magic, magic, sizeof head.magic);
    dw_group_range *ranges = dw_alloc_array(n, sizeof *ranges);
    dw_status status = ranges ? DW_OK : dw_fail_memory(err, file->path);
    for (size_t g = 0; status == DW_OK && g < n; g++)
        status = write_group(&a, &ranges[g], d, &d->pieces->groups[g], err);
    if (status == DW_OK)
        status = dw_new_file_write_at(file, 0, &head, sizeof head, err);
    if (status == DW_OK)
        status = dw_new_file_write_at(file, sizeof head, ranges, n * sizeof *ranges, err);
    dw_free(ranges);
    return status;
}

/* ---- reading ---- */

static dw_status read_at(int fd, void *into, uint64_t n_bytes, uint64_t offset,
                         const char *where, dw_error *err)
{
    uint8_t *at = into;
    while (n_bytes > 0) {
        const ssize_t n = pread(fd, at, n_bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dw_fail_errno(err, where, "read");
        if (n == 0)
            return dw_fail(err, DW_CORRUPT, where, "the file is too short");
        at += n;
        offset += (uint64_t)n;
        n_bytes -= (uint64_t)n;
    }
    return DW_OK;
}

static bool are_inside(const dw_group_range *ranges, size_t n, uint64_t n_file)
{
    for (size_t g = 0; g < n; g++)
        if (ranges[g].n_bytes > n_file || ranges[g].offset > n_file - ranges[g].n_bytes)
            return false;
    return true;
}

dw_status dw_group_deltas_open(dw_group_deltas *out, int fd, const dw_pieces *pieces,
                               const char *where, dw_error *err)
{
    struct stat st;
    header head;
    const size_t n = pieces->n_groups;
    *out = (dw_group_deltas){.fd = fd, .pieces = pieces};
    if (fstat(fd, &st) != 0)
        return dw_fail_errno(err, where, "look at");
    out->ranges = dw_alloc_array(n, sizeof *out->ranges);
    if (!out->ranges)
        return dw_fail_memory(err, where);
    dw_status status = read_at(fd, &head, sizeof head, 0, where, err);
    if (status == DW_OK &&
        (memcmp(head.magic, magic, sizeof magic) != 0 || head.n_groups != n))
        status = dw_fail(err, DW_CORRUPT, where,
                         "the deltas belong to another cut of the model");
    if (status == DW_OK)
        status =
            read_at(fd, out->ranges, n * sizeof *out->ranges, sizeof head, where, err);
    if (status == DW_OK && !are_inside(out->ranges, n, (uint64_t)st.st_size))
        status = dw_fail(err, DW_CORRUPT, where, "the table of the deltas is damaged");
    return status;
}

void dw_group_deltas_close(dw_group_deltas *deltas)
{
    dw_free(deltas->ranges);
    dw_free(deltas->bytes);
    *deltas = (dw_group_deltas){.fd = -1};
}

bool dw_group_deltas_has(const dw_group_deltas *deltas, size_t g)
{
    return deltas->ranges[g].n_bytes > 0;
}

dw_status dw_group_deltas_apply(dw_group_deltas *deltas, size_t g,
                                const dw_tensor *tensors, const dw_digest *before,
                                dw_digest *after, unsigned n_threads, dw_error *err)
{
    static const char where[] = "a delta for folds";
    const dw_group_range *range = &deltas->ranges[g];
    dw_delta *delta = NULL;
    dw_free(deltas->bytes);
    deltas->bytes = dw_alloc((size_t)range->n_bytes);
    dw_status status = deltas->bytes ? DW_OK : dw_fail_memory(err, where);
    if (status == DW_OK)
        status =
            read_at(deltas->fd, deltas->bytes, range->n_bytes, range->offset, where, err);
    if (status == DW_OK)
        status = dw_delta_open_bytes(&delta, deltas->bytes, (size_t)range->n_bytes, where,
                                     err);
    dw_apply_options options;
    dw_apply_options_init(&options);
    options.n_threads = n_threads;
    options.base_digests = before;
    options.new_digests = after;
    if (status == DW_OK)
        status = dw_delta_apply_proven(delta, tensors, deltas->pieces->groups[g].n,
                                       &options, err);
    dw_delta_close(delta);
    return status;
}
