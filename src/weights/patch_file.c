/* A patch as a file, beside a checkpoint while it is updated.
 *
 *     "DWPATCH1"
 *     for each segment, at a multiple of 8: u32 positions | new elements | old elements,
 *             each padded with zeros to a multiple of 8
 *     table:  u8 1 if a digest is known, else 0 | u64 state digest | varint version
 *             varint n_tensors, for each: varint n | name | u8 dtype | varint n_dims |
 *                                         varint dims
 *             varint n_segments, for each: varint tensor | varint first | varint n |
 *                                          varint offset | u64 XXH64 of its bytes
 *     u64 offset of the table | u64 XXH64 of the table
 *
 * The file is written and synced under another name first, so one under its own name is
 * whole; the hashes guard against later damage. The old elements show whether the
 * checkpoint beside it is still the one that it was made for.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/mem.h"
#include "codec/patch.h"
#include "kernel/kernel.h"

#define MAGIC       "DWPATCH1"
#define MAGIC_BYTES 8
#define TAIL_BYTES  16

/* A segment in the file. */
typedef struct stored {
    size_t tensor;
    uint64_t first;
    uint32_t n;
    uint64_t offset;
    uint64_t hash;
} stored;

struct dw_patch_writer {
    dw_new_file file;
    const dw_tensor *tensors;
    size_t n_tensors;
    atomic_ullong n_reserved; /* bytes of the file given out so far */

    pthread_mutex_t lock; /* guards the fields below */
    stored *segments;
    size_t n_segments;
    size_t n_room;
};

static uint64_t round_up_8(uint64_t n)
{
    return (n + 7) & ~7ull;
}

/* The offsets of the new and the old elements in a segment, and its size. */
static uint64_t values_offset(uint32_t n)
{
    return round_up_8((uint64_t)n * sizeof(uint32_t));
}

static uint64_t old_values_offset(uint32_t n, unsigned width)
{
    return values_offset(n) + round_up_8((uint64_t)n * width);
}

static uint64_t segment_bytes(uint32_t n, unsigned width)
{
    return old_values_offset(n, width) + round_up_8((uint64_t)n * width);
}

dw_status dw_patch_writer_open(dw_patch_writer **out, const char *path,
                               const dw_tensor *tensors, size_t n_tensors, dw_error *err)
{
    *out = NULL;
    dw_patch_writer *w = dw_alloc_zeroed(1, sizeof *w);
    if (!w)
        return dw_fail_memory(err, path);
    w->file.fd = -1;
    pthread_mutex_init(&w->lock, NULL);
    w->tensors = tensors;
    w->n_tensors = n_tensors;
    dw_status status = dw_new_file_open(&w->file, path, err);
    if (status == DW_OK)
        status = dw_new_file_write(&w->file, MAGIC, MAGIC_BYTES, err);
    atomic_store(&w->n_reserved, MAGIC_BYTES);
    if (status != DW_OK)
        dw_patch_writer_abort(w);
    else
        *out = w;
    return status;
}

static dw_status add_stored(dw_patch_writer *w, stored segment, dw_error *err)
{
    pthread_mutex_lock(&w->lock);
    bool room = dw_grow_array((void **)&w->segments, &w->n_room, w->n_segments,
                              sizeof *w->segments);
    if (room)
        w->segments[w->n_segments++] = segment;
    pthread_mutex_unlock(&w->lock);
    return room ? DW_OK : dw_fail_memory(err, w->file.path);
}

dw_status dw_patch_writer_take(void *context, size_t t, uint64_t first,
                               const dw_decoded *changes, dw_error *err)
{
    dw_patch_writer *w = context;
    const uint32_t n = (uint32_t)changes->n_changes;
    const unsigned width = dw_dtype_element(w->tensors[t].dtype).width;
    if (n == 0)
        return DW_OK;
    /* one buffer, one hash, one write; the padding is zeros */
    const uint64_t n_bytes = segment_bytes(n, width);
    uint8_t *bytes = dw_alloc_zeroed((size_t)n_bytes, 1);
    if (!bytes)
        return dw_fail_memory(err, w->file.path);
    memcpy(bytes, changes->positions, n * sizeof(uint32_t));
    memcpy(bytes + values_offset(n), changes->values, (size_t)n * width);
    dw_loan loan = {0};
    const uint8_t *old;
    dw_status status = dw_map_read_positions(
        &old, &loan, (const uint8_t *)w->tensors[t].data + first * width,
        changes->positions, n, width, err);
    if (status == DW_OK)
        dw_kernels_get()->gather[dw_width_index(width)](
            bytes + old_values_offset(n, width), old, changes->positions, n);
    dw_loan_release(&loan);
    uint64_t offset = atomic_fetch_add(&w->n_reserved, n_bytes);
    if (status == DW_OK)
        status = dw_new_file_write_at(&w->file, offset, bytes, (size_t)n_bytes, err);
    stored segment = {t, first, n, offset, XXH64(bytes, (size_t)n_bytes, 0)};
    dw_free(bytes);
    return status == DW_OK ? add_stored(w, segment, err) : status;
}

static void write_table(dw_writer *table, const dw_patch_writer *w,
                        const dw_patch_goal *goal)
{
    dw_write_u8(table, goal->has_digest);
    dw_write_u64(table, goal->state);
    dw_write_varint(table, goal->version);
    dw_write_varint(table, w->n_tensors);
    for (size_t i = 0; i < w->n_tensors; i++) {
        const dw_tensor *t = &w->tensors[i];
        dw_write_varint(table, strlen(t->name));
        dw_write_text(table, t->name);
        dw_write_u8(table, (uint8_t)t->dtype);
        dw_write_varint(table, t->n_dims);
        for (uint32_t d = 0; d < t->n_dims; d++)
            dw_write_varint(table, t->dims[d]);
    }
    dw_write_varint(table, w->n_segments);
    for (size_t i = 0; i < w->n_segments; i++) {
        const stored *s = &w->segments[i];
        dw_write_varint(table, s->tensor);
        dw_write_varint(table, s->first);
        dw_write_varint(table, s->n);
        dw_write_varint(table, s->offset);
        dw_write_u64(table, s->hash);
    }
}

dw_status dw_patch_writer_commit(dw_patch_writer *w, const dw_patch_goal *goal,
                                 dw_error *err)
{
    dw_writer table = {0};
    write_table(&table, w, goal);
    uint64_t hash = table.failed ? 0 : XXH64(table.bytes, table.n_bytes, 0);
    dw_write_u64(&table, atomic_load(&w->n_reserved));
    dw_write_u64(&table, hash);
    dw_status status = table.failed
                           ? dw_fail_memory(err, w->file.path)
                           : dw_new_file_write_at(&w->file, atomic_load(&w->n_reserved),
                                                  table.bytes, table.n_bytes, err);
    dw_writer_release(&table);
    if (status == DW_OK)
        status = dw_new_file_commit(&w->file, err);
    dw_patch_writer_abort(w); /* frees the rest */
    return status;
}

void dw_patch_writer_abort(dw_patch_writer *w)
{
    if (!w)
        return;
    dw_new_file_abort(&w->file);
    pthread_mutex_destroy(&w->lock);
    dw_free(w->segments);
    dw_free(w);
}

/* ---- reading ---- */

static dw_status fail_table(dw_error *err, const char *path)
{
    return dw_fail(
        err, DW_CORRUPT, path,
        "not a patch file of deltawire, or a damaged one: put a whole checkpoint "
        "in place, then remove this file");
}

static dw_status read_tensors(dw_patch **out, dw_reader *r, const char *path,
                              dw_error *err)
{
    uint64_t n = dw_read_varint(r);
    if (r->failed || n > dw_reader_left(r)) /* each takes a byte at least */
        return fail_table(err, path);
    dw_tensor *tensors = dw_alloc_zeroed((size_t)n, sizeof *tensors);
    char *names = dw_alloc(dw_reader_left(r) + (size_t)n); /* each with a NUL */
    uint64_t *dims = dw_alloc_array(dw_reader_left(r), sizeof *dims);
    char *name = names;
    uint64_t *dim = dims;
    dw_status status = tensors && names && dims ? DW_OK : dw_fail_memory(err, path);
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        dw_tensor *t = &tensors[i];
        uint64_t n_name = dw_read_varint(r);
        const uint8_t *text = dw_read_bytes(r, n_name);
        uint8_t dtype = dw_read_u8(r);
        uint64_t n_dims = dw_read_varint(r);
        if (!text || r->failed || memchr(text, 0, (size_t)n_name) ||
            dtype >= DW_DTYPE_COUNT || n_dims > DW_MAX_DIMS ||
            n_dims > dw_reader_left(r)) { /* a byte each at least: DIMS has the room */
            status = fail_table(err, path);
            break;
        }
        t->name = memcpy(name, text, (size_t)n_name);
        name[n_name] = '\0';
        name += n_name + 1;
        t->dtype = (dw_dtype)dtype;
        t->n_dims = (uint32_t)n_dims;
        t->dims = dim;
        for (uint64_t d = 0; d < n_dims; d++)
            *dim++ = dw_read_varint(r);
        if (r->failed || !dw_shape_size(t->dtype, t->n_dims, t->dims, NULL, &t->n_bytes))
            status = fail_table(err, path);
    }
    if (status == DW_OK)
        status = dw_patch_new(out, tensors, (size_t)n, err);
    dw_free(tensors);
    dw_free(names);
    dw_free(dims);
    return status;
}

/* Positions must ascend and stay inside the tensor: they will be stored to. */
static bool positions_fit(const uint32_t *positions, uint32_t n, uint64_t first,
                          uint64_t n_units)
{
    for (uint32_t i = 1; i < n; i++)
        if (positions[i] <= positions[i - 1])
            return false;
    return n > 0 && first <= n_units && positions[n - 1] < n_units - first;
}

static dw_status read_segments(dw_patch *patch, dw_reader *r, const uint8_t *bytes,
                               uint64_t table_offset, dw_loan *loan, const char *path,
                               dw_error *err)
{
    uint64_t n = dw_read_varint(r);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t tensor = dw_read_varint(r), first = dw_read_varint(r);
        uint64_t n_stores = dw_read_varint(r), offset = dw_read_varint(r);
        uint64_t hash = dw_read_u64(r);
        if (r->failed || tensor >= patch->n_tensors || n_stores > UINT32_MAX ||
            offset % 8 != 0 || offset > table_offset)
            return fail_table(err, path);
        const dw_tensor *t = &patch->tensors[tensor];
        unsigned width = dw_dtype_element(t->dtype).width;
        uint64_t n_bytes = segment_bytes((uint32_t)n_stores, width);
        if (n_bytes > table_offset - offset)
            return fail_table(err, path);
        dw_segment s = {(size_t)tensor,
                        first,
                        (uint32_t)n_stores,
                        (const uint32_t *)(const void *)(bytes + offset),
                        bytes + offset + values_offset((uint32_t)n_stores),
                        bytes + offset + old_values_offset((uint32_t)n_stores, width),
                        n_bytes,
                        hash};
        const void *stores;
        dw_status status =
            dw_map_read(&stores, loan, bytes + offset, (size_t)n_bytes, err);
        if (status != DW_OK)
            return status;
        if (XXH64(stores, (size_t)n_bytes, 0) != hash ||
            !positions_fit(stores, s.n, first, dw_tensor_units(t)))
            return dw_patch_fail_altered(&s, t->name, path, err);
        status = dw_patch_add(patch, &s, err);
        if (status != DW_OK)
            return status;
    }
    return dw_reader_left(r) == 0 ? DW_OK : fail_table(err, path);
}

static dw_status read_goal(dw_patch_goal *goal, dw_reader *r, const char *path,
                           dw_error *err)
{
    uint8_t has_digest = dw_read_u8(r);
    goal->state = dw_read_u64(r);
    goal->version = dw_read_varint(r);
    goal->has_digest = has_digest == 1;
    return r->failed || has_digest > 1 ? fail_table(err, path) : DW_OK;
}

/* Sets R to the table, *OFFSET to its offset in the file, and *SEAL. */
static dw_status find_table(dw_reader *r, uint64_t *offset, dw_patch_seal *seal,
                            const dw_map *map, dw_loan *loan, const char *path,
                            dw_error *err)
{
    const uint64_t n_bytes = map->n_bytes;
    const void *magic, *tail, *table;
    if (n_bytes < MAGIC_BYTES + TAIL_BYTES)
        return fail_table(err, path);
    dw_status status = dw_map_read(&magic, loan, map->bytes, MAGIC_BYTES, err);
    if (status == DW_OK && memcmp(magic, MAGIC, MAGIC_BYTES) != 0)
        return fail_table(err, path);
    if (status == DW_OK)
        status =
            dw_map_read(&tail, loan, map->bytes + n_bytes - TAIL_BYTES, TAIL_BYTES, err);
    if (status != DW_OK)
        return status;
    const uint64_t hash = dw_load64((const uint8_t *)tail + 8);
    *offset = dw_load64(tail);
    *seal = (dw_patch_seal){n_bytes, hash};
    if (*offset > n_bytes - TAIL_BYTES)
        return fail_table(err, path);
    const size_t n_table = (size_t)(n_bytes - TAIL_BYTES - *offset);
    status = dw_map_read(&table, loan, map->bytes + *offset, n_table, err);
    if (status == DW_OK && XXH64(table, n_table, 0) != hash)
        status = fail_table(err, path);
    if (status == DW_OK)
        *r = dw_reader_of(table, n_table);
    return status;
}

dw_status dw_patch_open(dw_patch **out, dw_patch_goal *goal, const char *path,
                        dw_error *err)
{
    *out = NULL;
    dw_map map;
    dw_status status = dw_map_open(&map, path, false, err);
    if (status != DW_OK)
        return status;
    dw_patch *patch = NULL;
    dw_loan table_bytes = {0}, stores = {0};
    dw_reader r;
    uint64_t table_offset = 0;
    dw_patch_seal seal = {0};
    status = find_table(&r, &table_offset, &seal, &map, &table_bytes, path, err);
    if (status == DW_OK)
        status = read_goal(goal, &r, path, err);
    if (status == DW_OK)
        status = read_tensors(&patch, &r, path, err);
    if (status == DW_OK)
        status = read_segments(patch, &r, map.bytes, table_offset, &stores, path, err);
    dw_loan_release(&table_bytes);
    dw_loan_release(&stores);
    if (status != DW_OK) {
        dw_patch_free(patch);
        dw_map_close(&map);
        return status;
    }
    dw_patch_sort(patch);
    patch->map = map;
    patch->seal = seal;
    *out = patch;
    return DW_OK;
}

dw_status dw_patch_read_seal(dw_patch_seal *out, const char *path, dw_error *err)
{
    struct stat st;
    uint8_t tail[TAIL_BYTES];
    *out = (dw_patch_seal){0};
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ELOOP ? DW_OK
                                                 : dw_fail_errno(err, path, "open");
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > TAIL_BYTES &&
        pread(fd, tail, TAIL_BYTES, st.st_size - TAIL_BYTES) == TAIL_BYTES)
        *out = (dw_patch_seal){(uint64_t)st.st_size, dw_load64(tail + 8)};
    close(fd);
    return DW_OK;
}
