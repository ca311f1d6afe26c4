/* slime's directories: shards, and then the index, which completes the version.
 *
 * A version without changes has no shards and an empty map. Readers take the names of
 * files from the map.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "compat/peer_publish_int.h"
#include "tensor/checkpoint.h"

#define NAME_SIZE 80

typedef struct directory {
    dw_peer_publisher *p;
    const dw_peer_job *job;
    dw_peer_publish_report *report;
    size_t n_shards;
    dw_writer map; /* the members of weight_map */
} directory;

static void write_key(char out[DW_PEER_KEY], const directory *d, const char *name)
{
    snprintf(out, DW_PEER_KEY, "weight_v%06" PRIu64 "/%s", d->job->version, name);
}

static dw_status put_shard(directory *d, size_t shard, const dw_tensor *tensors, size_t n,
                           const dw_pair *metadata, size_t n_metadata, dw_error *err)
{
    char name[NAME_SIZE], key[DW_PEER_KEY];
    snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard, d->n_shards);
    write_key(key, d, name);
    for (size_t i = 0; i < n; i++) {
        dw_write_text(&d->map, d->map.n_bytes ? ",\n    " : "\n    ");
        dw_write_json_string(&d->map, tensors[i].name);
        dw_write_format(&d->map, ": \"%s\"", name);
    }
    return dw_peer_put_file(d->p, key, tensors, n, metadata, n_metadata, d->report, err);
}

static dw_status put_whole(directory *d, dw_error *err)
{
    static const dw_pair format = {"format", "pt"}; /* some loaders need it */
    const dw_peer_job *job = d->job;
    const uint64_t max = d->p->options.max_shard_bytes;
    d->n_shards = dw_shard_count(job->next, job->n, max);
    dw_status status = DW_OK;
    for (size_t at = 0, shard = 0; status == DW_OK && at < job->n; shard++) {
        size_t n = dw_shard_fill(job->next + at, job->n - at, max);
        status = put_shard(d, shard, job->next + at, n, &format, 1, err);
        at += n;
    }
    return status;
}

/* The file's metadata: names and checksums. */
static dw_status put_packed(directory *d, size_t shard, const dw_peer_pack *pack,
                            dw_error *err)
{
    dw_pair *sums = dw_alloc_array(pack->n, sizeof *sums);
    if (!sums)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < pack->n; i++)
        sums[i] = (dw_pair){pack->frames[i].name, pack->checksums[i]};
    dw_status status = put_shard(d, shard, pack->frames, pack->n, sums, pack->n, err);
    dw_free(sums);
    return status;
}

static dw_status put_changes(directory *d, dw_error *err)
{
    const dw_peer_publish_options *o = &d->p->options;
    dw_peer_changes changes;
    dw_status status = dw_peer_changes_find(&changes, d->job, o->n_threads, err);
    if (status != DW_OK)
        return status;
    d->report->n_changed = changes.n_elems;
    d->n_shards = dw_shard_count(changes.next, changes.n, o->max_shard_bytes);
    for (size_t at = 0, shard = 0; status == DW_OK && at < changes.n; shard++) {
        size_t n = dw_shard_fill(changes.next + at, changes.n - at, o->max_shard_bytes);
        dw_peer_pack pack;
        status = dw_peer_pack_make(&pack, &changes, at, n, o, err);
        if (status == DW_OK)
            status = put_packed(d, shard, &pack, err);
        dw_peer_pack_release(&pack);
        at += n;
    }
    dw_peer_changes_release(&changes);
    return status;
}

static dw_status put_index(directory *d, const char *key, dw_error *err)
{
    const dw_peer_publish_options *o = &d->p->options;
    const dw_peer_job *job = d->job;
    dw_writer index = {0};
    dw_write_format(&index, "{\n  \"metadata\": {\"version\": \"%06" PRIu64 "\"",
                    job->version);
    if (job->whole) {
        uint64_t total = 0;
        for (size_t i = 0; i < job->n; i++)
            total += job->next[i].n_bytes;
        dw_write_format(&index, ", \"total_size\": %" PRIu64, total);
    } else {
        dw_write_format(&index,
                        ", \"base_version\": \"%06" PRIu64
                        "\", \"delta_encoding\": \"%s\", \"compression_format\": "
                        "\"zstd\", \"checksum_format\": \"%s\"",
                        job->base_version,
                        o->delta == DW_PEER_OVERWRITE ? "overwrite" : "xor",
                        o->checksum == DW_PEER_ADLER32 ? "adler32" : "xxh3-128");
    }
    dw_write_text(&index, "},\n  \"weight_map\": {");
    if (d->map.n_bytes > 0)
        dw_write_bytes(&index, d->map.bytes, d->map.n_bytes);
    dw_write_text(&index, "\n  }\n}\n");
    index.failed = index.failed || d->map.failed;
    dw_status status = dw_peer_put_text(d->p, key, &index, d->report, err);
    dw_writer_release(&index);
    return status;
}

dw_status dw_publish_slime(dw_peer_publisher *p, const dw_peer_job *job,
                           dw_peer_publish_report *report, dw_error *err)
{
    char prefix[DW_PEER_KEY], index[DW_PEER_RECORDS][DW_PEER_KEY];
    directory d = {.p = p, .job = job, .report = report};
    write_key(prefix, &d, "");
    dw_peer_record_keys(index, DW_PEER_SLIME, job->version);
    dw_status status = dw_peer_clear(p, prefix, index[0], err);
    if (status == DW_OK)
        status = job->whole ? put_whole(&d, err) : put_changes(&d, err);
    if (status == DW_OK)
        status = put_index(&d, index[0], err);
    dw_writer_release(&d.map);
    return status;
}
