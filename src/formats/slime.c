/* slime's directories: shards, and then the index, which completes the version.
 *
 *     {"metadata": {"version": "000007", "base_version": "000006",
 *                   "delta_encoding": "xor", "compression_format": "zstd",
 *                   "checksum_format": "xxh3-128"},
 *      "weight_map": {TENSOR: FILE}}
 *
 * Without delta_encoding it is the index of a whole checkpoint. A delta has only the
 * changed tensors, each as a frame (frame.h); a file's metadata has the checksums. A
 * version without changes has no shards and an empty map.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "formats/formats_inside.h"
#include "formats/frame.h"
#include "store/store.h"
#include "tensor/checkpoint.h"
#include "tensor/tensor_list.h"

#define DIR         "weight_v"
#define INDEX       "/" DW_SHARD_INDEX_NAME
#define CHECKSUM    "xxh3-128" /* of what is written */
#define SHARD_BYTES (1ull << 30)

static bool parse(const char *key, dw_foreign_version *out)
{
    out->is_anchor = false;
    return dw_format_parse(key, DIR, INDEX, &out->version);
}

/* The key of a file beside the index. */
static void write_key(char out[DW_KEY_TEXT], uint64_t version, const char *name)
{
    char after[DW_KEY_TEXT - 32];
    snprintf(after, sizeof after, "/%s", name);
    dw_format_key(out, DIR, version, after);
}

/* ---- the index ---- */

static const char *text_of(const dw_json *object, const char *key)
{
    return dw_json_string(dw_json_get(object, key));
}

static dw_status read_delta(dw_slime_index *x, const dw_json *meta, const char *where,
                            dw_error *err)
{
    char unread[DW_CHECKSUM_TEXT];
    const char *base = text_of(meta, "base_version");
    const char *encoding = text_of(meta, "delta_encoding");
    const char *compression = text_of(meta, "compression_format");
    if (!encoding || !base || strlen(base) > 15 || !dw_parse_number(base, 10, &x->base))
        return dw_fail(err, DW_CORRUPT, where,
                       "a delta must name its encoding and the version it starts from");
    x->overwrite = strcmp(encoding, "overwrite") == 0;
    if (!x->overwrite && strcmp(encoding, "xor") != 0)
        return dw_fail(err, DW_UNSUPPORTED, where,
                       "its delta_encoding '%.40s' is not supported; 'xor' and "
                       "'overwrite' are",
                       encoding);
    if (!compression || strcmp(compression, "zstd") != 0)
        return dw_fail(err, DW_UNSUPPORTED, where,
                       "its compression_format '%.40s' is not supported; 'zstd' is",
                       compression ? compression : "");
    x->checksum = text_of(meta, "checksum_format");
    if (!x->checksum && dw_json_get(meta, "checksum_format"))
        return dw_fail(err, DW_CORRUPT, where, "its checksum_format is no text");
    if (x->checksum && !dw_checksum_of(unread, x->checksum, NULL, 0))
        return dw_fail(err, DW_UNSUPPORTED, where,
                       "its checksums are %.40s, which is not supported; xxh3-128 and "
                       "adler32 are",
                       x->checksum);
    return DW_OK;
}

static dw_status read_metadata(dw_slime_index *x, uint64_t version, const dw_json *meta,
                               const char *where, dw_error *err)
{
    const char *named = text_of(meta, "version");
    uint64_t number;
    if (named && (!dw_parse_number(named, 10, &number) || number != version))
        return dw_fail(err, DW_CORRUPT, where,
                       "the directory is named version %" PRIu64 ", but its index says "
                       "that it is %.40s",
                       version, named);
    if (dw_json_get(meta, "delta_encoding"))
        return read_delta(x, meta, where, err);
    if (dw_json_get(meta, "base_version") || dw_json_get(meta, "checksum_format"))
        return dw_fail(err, DW_CORRUPT, where,
                       "the index names a base or checksums, as a delta's, but no "
                       "delta_encoding");
    x->is_whole = true;
    return x->map.n_entries > 0
               ? DW_OK
               : dw_fail(err, DW_CORRUPT, where, "a whole checkpoint of no tensors");
}

dw_status dw_slime_index_parse(dw_slime_index *out, uint64_t version, const void *text,
                               size_t n_bytes, const char *where, dw_error *err)
{
    *out = (dw_slime_index){.base = DW_NO_VERSION};
    dw_status status = dw_shard_index_parse(&out->map, text, n_bytes, where, err);
    if (status == DW_OK)
        status = read_metadata(out, version, dw_json_get(out->map.root, "metadata"),
                               where, err);
    for (size_t i = 0; status == DW_OK && i < out->map.n_files; i++) {
        const char *name = out->map.files[i];
        if (strlen(name) >= 100 || name[0] == '.' || !dw_store_key_valid(name) ||
            !dw_name_ends(name, ".safetensors"))
            status = dw_fail(err, DW_CORRUPT, where,
                             "'%.120s' is no plain name of a safetensors file", name);
    }
    if (status != DW_OK)
        dw_slime_index_release(out);
    return status;
}

void dw_slime_index_release(dw_slime_index *index)
{
    dw_shard_index_release(&index->map);
}

/* Reads the index. TEXT takes its bytes, unless it is NULL. */
static dw_status open_index(dw_slime_index *out, const dw_foreign *f,
                            const dw_foreign_version *v, dw_writer *text, dw_error *err)
{
    char key[DW_KEY_TEXT], where[DW_STORE_WHERE];
    dw_writer own = {0}, *bytes = text ? text : &own;
    dw_format_key(key, DIR, v->version, INDEX);
    dw_store_where(f->store, key, where, sizeof where);
    dw_status status =
        dw_store_get_all(f->store, key, DW_SHARD_INDEX_MAX_SIZE, bytes, err);
    if (status == DW_OK)
        status = dw_slime_index_parse(out, v->version, bytes->bytes, bytes->n_bytes,
                                      where, err);
    dw_writer_release(&own);
    return status;
}

/* The mark is of the index and of the beginning of the first file, which has its
 * checksums, or the first weights of a whole version. */
static dw_status look(dw_foreign *f, const dw_foreign_version *v, dw_foreign_facts *out,
                      dw_error *err)
{
    dw_slime_index index;
    dw_writer text = {0};
    dw_status status = open_index(&index, f, v, &text, err);
    if (status != DW_OK) {
        dw_writer_release(&text);
        return status;
    }
    out->is_whole = index.is_whole;
    out->base = index.base;
    out->n_tensors = index.map.n_entries;
    if (index.map.n_files > 0) {
        char key[DW_KEY_TEXT];
        write_key(key, v->version, index.map.files[0]);
        status = dw_foreign_fetch_head(&text, f, key, DW_FORMAT_HEAD_BYTES, err);
    }
    if (status == DW_OK)
        status = dw_sha256_of(out->mark, text.bytes, text.n_bytes, err);
    dw_writer_release(&text);
    dw_slime_index_release(&index);
    return status;
}

/* ---- reading ---- */

static dw_status fetch(dw_foreign_file *out, const dw_foreign *f,
                       const dw_foreign_version *v, const dw_slime_index *index, size_t i,
                       const dw_progress *progress, dw_error *err)
{
    char key[DW_KEY_TEXT];
    write_key(key, v->version, index->map.files[i]);
    dw_status status = dw_foreign_fetch(out, f, key, progress, err);
    return status == DW_OK
               ? dw_shard_index_check_file(&index->map, index->map.files[i],
                                           out->file.tensors, out->file.n_tensors,
                                           out->where, err)
               : status;
}

/* Every tensor of the index was in its file; checked files hold no others. */
static dw_status check_count(const dw_foreign *f, const dw_foreign_version *v,
                             const dw_slime_index *index, size_t n, dw_error *err)
{
    return n == index->map.n_entries
               ? DW_OK
               : dw_fail(err, DW_CORRUPT, dw_store_url(f->store),
                         "the index of version %" PRIu64 " names %zu tensors, its files "
                         "hold %zu of them",
                         v->version, index->map.n_entries, n);
}

static dw_status store_whole(dw_foreign *f, const dw_foreign_version *v,
                             const dw_slime_index *index, const dw_foreign_file *files,
                             dw_error *err)
{
    size_t n = 0;
    const size_t n_most = index->map.n_entries;
    dw_tensor *all = dw_alloc_array(n_most, sizeof *all);
    dw_status status = all ? DW_OK : dw_fail_memory(err, NULL);
    for (size_t i = 0; status == DW_OK && i < index->map.n_files; i++) {
        const dw_safetensors *file = &files[i].file;
        for (size_t t = 0; t < file->n_tensors && n < n_most; t++)
            all[n++] = file->tensors[t];
    }
    if (status == DW_OK)
        status = check_count(f, v, index, n, err);
    if (status == DW_OK)
        status = dw_foreign_learn(f, all, n, dw_store_url(f->store), err);
    dw_free(all);
    for (size_t i = 0; status == DW_OK && i < index->map.n_files; i++)
        status = dw_foreign_check(f, &files[i].file, files[i].where, err);
    if (status == DW_OK && n < f->n_tensors)
        status = dw_fail(err, DW_MISMATCH, dw_store_url(f->store),
                         "version %" PRIu64 " is whole and has %zu tensors, but the "
                         "weights here have %zu: it is another model, or not all of it",
                         v->version, n, f->n_tensors);
    if (status == DW_OK)
        dw_foreign_change(f);
    for (size_t i = 0; status == DW_OK && i < index->map.n_files; i++)
        status = dw_foreign_store(f, &files[i].file, err);
    return status;
}

static dw_status read_whole(dw_foreign *f, const dw_foreign_version *v,
                            const dw_slime_index *index, const dw_progress *progress,
                            dw_error *err)
{
    const size_t n = index->map.n_files;
    dw_foreign_file *files = dw_alloc_zeroed(n, sizeof *files);
    dw_status status = files ? DW_OK : dw_fail_memory(err, NULL);
    for (size_t i = 0; status == DW_OK && i < n; i++)
        status = fetch(&files[i], f, v, index, i, progress, err);
    if (status == DW_OK)
        status = store_whole(f, v, index, files, err);
    for (size_t i = 0; files && i < n; i++)
        dw_foreign_file_release(&files[i]);
    dw_free(files);
    return status;
}

typedef struct unpacking {
    const dw_foreign *foreign;
    const dw_slime_index *index;
    const dw_foreign_file *file;
} unpacking;

static dw_status unpack_one(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const unpacking *u = context;
    const dw_tensor *there = &u->file->file.tensors[i], *here;
    const char *where = u->file->where;
    dw_status status = dw_foreign_find(u->foreign, there->name, &here, where, err);
    if (status != DW_OK)
        return status;
    if (there->dtype != DW_U8 || there->n_dims != 1)
        return dw_fail_tensor(err, DW_CORRUPT, where, there->name,
                              "it is %s with %u dimensions, not packed bytes",
                              dw_dtype_name(there->dtype), there->n_dims);
    const dw_frame frame = {
        .packed = there->data,
        .n_packed = (size_t)there->n_bytes,
        .overwrite = u->index->overwrite,
        .checksum = u->index->checksum,
        .checksum_text = dw_safetensors_metadata(&u->file->file, there->name),
        .where = where,
        .spool_dir = u->foreign->options.work_dir,
    };
    return dw_frame_apply(here, &frame, err);
}

static dw_status read_changes(dw_foreign *f, const dw_foreign_version *v,
                              const dw_slime_index *index, const dw_progress *progress,
                              dw_error *err)
{
    dw_status status = DW_OK;
    size_t n = 0;
    for (size_t i = 0; status == DW_OK && i < index->map.n_files; i++) {
        dw_foreign_file file;
        status = fetch(&file, f, v, index, i, progress, err);
        unpacking u = {f, index, &file};
        const size_t n_here = file.file.n_tensors;
        if (status == DW_OK) {
            dw_foreign_change(f);
            status = dw_parallel(dw_worker_count(f->options.n_threads, n_here), n_here,
                                 unpack_one, &u, NULL, err);
        }
        n += n_here;
        dw_foreign_file_release(&file);
    }
    return status == DW_OK ? check_count(f, v, index, n, err) : status;
}

static dw_status read_version(dw_foreign *f, const dw_foreign_version *v,
                              const dw_progress *progress, dw_error *err)
{
    dw_slime_index index;
    dw_status status = open_index(&index, f, v, NULL, err);
    if (status != DW_OK)
        return status;
    status = index.is_whole ? read_whole(f, v, &index, progress, err)
                            : read_changes(f, v, &index, progress, err);
    dw_slime_index_release(&index);
    return status;
}

/* ---- writing ---- */

static bool is_due(const dw_foreign_options *o, uint64_t version)
{
    return o->whole_every > 0 && version % o->whole_every == 0;
}

typedef struct directory {
    dw_foreign *foreign;
    const dw_foreign_job *job;
    dw_foreign_report *report;
    uint64_t max_shard_bytes;
    size_t n_shards;
    dw_writer map; /* the members of weight_map */
} directory;

static dw_status put_shard(directory *d, size_t shard, const dw_tensor *tensors, size_t n,
                           const dw_pair *metadata, size_t n_metadata, dw_error *err)
{
    char name[80], key[DW_KEY_TEXT];
    snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard, d->n_shards);
    write_key(key, d->job->version, name);
    for (size_t i = 0; i < n; i++) {
        dw_write_text(&d->map, d->map.n_bytes ? ",\n    " : "\n    ");
        dw_write_json_string(&d->map, tensors[i].name);
        dw_write_format(&d->map, ": \"%s\"", name);
    }
    return dw_foreign_put_file(d->foreign, key, tensors, n, metadata, n_metadata, d->job,
                               d->report, err);
}

static dw_status put_whole(directory *d, dw_error *err)
{
    static const dw_pair format = {"format", "pt"}; /* some loaders need it */
    const dw_foreign_job *job = d->job;
    d->n_shards = dw_shard_count(job->next, job->n, d->max_shard_bytes);
    dw_status status = DW_OK;
    for (size_t at = 0, shard = 0; status == DW_OK && at < job->n; shard++) {
        size_t n = dw_shard_fill(job->next + at, job->n - at, d->max_shard_bytes);
        status = put_shard(d, shard, job->next + at, n, &format, 1, err);
        at += n;
    }
    return status;
}

/* The changed tensors: all of them, or those of one shard, packed. */
typedef struct changes {
    dw_tensor *base;
    dw_tensor *next;
    size_t n;

    bool overwrite;
    dw_tensor *frames; /* U8, under the tensors' own names */
    dw_writer *bytes;  /* the memory of the frames */
    uint64_t *sizes;   /* ... their dims */
    char (*checksums)[DW_CHECKSUM_TEXT];
    dw_pair *metadata;
    size_t first; /* of the shard */
} changes;

static dw_status find_changes(changes *out, const dw_foreign_job *job, dw_error *err)
{
    *out = (changes){
        .base = dw_alloc_array(job->n, sizeof *out->base),
        .next = dw_alloc_array(job->n, sizeof *out->next),
        .frames = dw_alloc_zeroed(job->n, sizeof *out->frames),
        .bytes = dw_alloc_zeroed(job->n, sizeof *out->bytes),
        .sizes = dw_alloc_zeroed(job->n, sizeof *out->sizes),
        .checksums = dw_alloc_zeroed(job->n, sizeof *out->checksums),
        .metadata = dw_alloc_zeroed(job->n, sizeof *out->metadata),
    };
    if (!out->base || !out->next || !out->frames || !out->bytes || !out->sizes ||
        !out->checksums || !out->metadata)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < job->n; i++)
        if (job->n_changed[i] > 0) {
            out->base[out->n] = job->base[i];
            out->next[out->n++] = job->next[i];
        }
    return DW_OK;
}

static void release_changes(changes *c)
{
    dw_free(c->base);
    dw_free(c->next);
    dw_free(c->frames);
    dw_free(c->bytes);
    dw_free(c->sizes);
    dw_free(c->checksums);
    dw_free(c->metadata);
}

static dw_status pack_one(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const changes *c = context;
    i += c->first;
    dw_loan loan = {0};
    dw_tensor next;
    dw_writer *out = &c->bytes[i];
    dw_status status = dw_tensor_read(&next, &loan, &c->next[i], err);
    if (status == DW_OK)
        status = dw_frame_make(out, &c->base[i], &next, c->overwrite, err);
    if (status == DW_OK) {
        dw_checksum_of(c->checksums[i], CHECKSUM, next.data, next.n_bytes);
        c->metadata[i] = (dw_pair){next.name, c->checksums[i]};
        c->sizes[i] = out->n_bytes;
        c->frames[i] = (dw_tensor){.name = next.name,
                                   .dtype = DW_U8,
                                   .n_dims = 1,
                                   .dims = &c->sizes[i],
                                   .n_bytes = out->n_bytes,
                                   .data = out->bytes};
    }
    dw_loan_release(&loan);
    return status;
}

static dw_status put_changes(directory *d, dw_error *err)
{
    changes c;
    const unsigned n_threads = d->foreign->options.n_threads;
    dw_status status = find_changes(&c, d->job, err);
    c.overwrite = d->foreign->options.overwrite;
    if (status == DW_OK)
        d->n_shards = dw_shard_count(c.next, c.n, d->max_shard_bytes);
    for (size_t shard = 0; status == DW_OK && c.first < c.n; shard++) {
        size_t n = dw_shard_fill(c.next + c.first, c.n - c.first, d->max_shard_bytes);
        status = dw_parallel(dw_worker_count(n_threads, n), n, pack_one, &c, NULL, err);
        if (status == DW_OK)
            status =
                put_shard(d, shard, c.frames + c.first, n, c.metadata + c.first, n, err);
        for (size_t i = 0; i < n; i++)
            dw_writer_release(&c.bytes[c.first + i]);
        c.first += n;
    }
    release_changes(&c);
    return status;
}

static dw_status put_index(directory *d, const char *key, dw_error *err)
{
    const dw_foreign_job *job = d->job;
    dw_writer index = {0};
    dw_write_format(&index, "{\n  \"metadata\": {\"version\": \"%06" PRIu64 "\"",
                    job->version);
    if (job->is_whole) {
        uint64_t total = 0;
        for (size_t i = 0; i < job->n; i++)
            total += job->next[i].n_bytes;
        dw_write_format(&index, ", \"total_size\": %" PRIu64, total);
    } else {
        dw_write_format(&index,
                        ", \"base_version\": \"%06" PRIu64
                        "\", \"delta_encoding\": \"%s\", \"compression_format\": "
                        "\"zstd\", \"checksum_format\": \"" CHECKSUM "\"",
                        job->base_version,
                        d->foreign->options.overwrite ? "overwrite" : "xor");
    }
    dw_write_text(&index, "},\n  \"weight_map\": {");
    if (d->map.n_bytes > 0)
        dw_write_bytes(&index, d->map.bytes, d->map.n_bytes);
    dw_write_text(&index, "\n  }\n}\n");
    const dw_source source = {.n_bytes = index.n_bytes, .bytes = index.bytes};
    dw_status status =
        index.failed || d->map.failed
            ? dw_fail_memory(err, key)
            : dw_foreign_put(d->foreign, key, &source, job, d->report, err);
    dw_writer_release(&index);
    return status;
}

static dw_status remove_one(void *context, const dw_store_entry *entry, dw_error *err)
{
    return dw_store_remove(context, entry->key, err);
}

/* Removes what a killed process left of the version, whose index does not exist. */
static dw_status clear(dw_store *store, const char *prefix, const char *index,
                       dw_error *err)
{
    char where[DW_STORE_WHERE];
    dw_status status = dw_store_stat(store, index, NULL, NULL, err);
    if (status == DW_OK)
        return dw_fail(err, DW_UNAVAILABLE,
                       dw_store_where(store, index, where, sizeof where),
                       "it is there, and was not listed: try again");
    return status == DW_NOT_FOUND
               ? dw_store_list(store, prefix, NULL, remove_one, store, err)
               : status;
}

static dw_status write_version(dw_foreign *f, const dw_foreign_job *job,
                               dw_foreign_report *report, dw_error *err)
{
    char prefix[DW_KEY_TEXT], index[DW_KEY_TEXT];
    const uint64_t max = f->options.max_shard_bytes;
    directory d = {.foreign = f,
                   .job = job,
                   .report = report,
                   .max_shard_bytes = max ? max : SHARD_BYTES};
    write_key(prefix, job->version, "");
    dw_format_key(index, DIR, job->version, INDEX);
    dw_status status = clear(f->store, prefix, index, err);
    if (status == DW_OK)
        status = job->is_whole ? put_whole(&d, err) : put_changes(&d, err);
    if (status == DW_OK)
        status = put_index(&d, index, err);
    dw_writer_release(&d.map);
    return status;
}

const dw_format dw_format_slime = {
    .name = "slime",
    .prefixes = {DIR, NULL},
    .parse = parse,
    .look = look,
    .read = read_version,
    .is_due = is_due,
    .write = write_version,
};
