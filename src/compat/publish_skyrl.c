/* SkyRL's directories: payloads, and then the manifest, which completes the version.
 * SkyRL's reader accepts no other members in the manifest.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "base/json.h"
#include "compat/peer_publish.h"
#include "tensor/checkpoint.h"

#define NAME_SIZE 80

/* PyTorch's names of types; NULL if it has no such type. */
static const char *torch_name(dw_dtype dtype)
{
    static const char *const names[DW_DTYPE_COUNT] = {
        [DW_BOOL] = "bool",
        [DW_U8] = "uint8",
        [DW_I8] = "int8",
        [DW_U16] = "uint16",
        [DW_I16] = "int16",
        [DW_U32] = "uint32",
        [DW_I32] = "int32",
        [DW_U64] = "uint64",
        [DW_I64] = "int64",
        [DW_F16] = "float16",
        [DW_BF16] = "bfloat16",
        [DW_F32] = "float32",
        [DW_F64] = "float64",
        [DW_F8_E4M3] = "float8_e4m3fn",
        [DW_F8_E5M2] = "float8_e5m2",
        [DW_F8_E8M0] = "float8_e8m0fnu",
        [DW_F8_E4M3FNUZ] = "float8_e4m3fnuz",
        [DW_F8_E5M2FNUZ] = "float8_e5m2fnuz",
        [DW_C64] = "complex64",
    };
    return names[dtype];
}

typedef struct directory {
    dw_peer_publisher *p;
    const dw_peer_job *job;
    dw_peer_publish_report *report;
    dw_writer tensors; /* the members of "tensors" */
    dw_writer files;   /* and of "payload_files" */
    uint64_t n_raw_bytes;
    uint64_t n_packed_bytes;
} directory;

static void write_key(char out[DW_PEER_KEY], const dw_peer_job *job, const char *name)
{
    snprintf(out, DW_PEER_KEY, "delta-%08" PRIu64 "/%s", job->version, name);
}

static dw_status list_tensor(directory *d, const dw_tensor *t, const dw_peer_pack *pack,
                             size_t i, const char *file, dw_error *err)
{
    const char *dtype = torch_name(t->dtype);
    if (!dtype)
        return dw_fail_tensor(err, DW_UNSUPPORTED, NULL, t->name,
                              "%s has no name in SkyRL's manifest",
                              dw_dtype_name(t->dtype));
    dw_writer *w = &d->tensors;
    dw_write_text(w, w->n_bytes ? ",\n    " : "\n    ");
    dw_write_text(w, "{\"name\": ");
    dw_write_json_string(w, t->name);
    dw_write_format(w, ", \"dtype\": \"%s\", \"shape\": [", dtype);
    for (uint32_t k = 0; k < t->n_dims; k++)
        dw_write_format(w, "%s%" PRIu64, k ? ", " : "", t->dims[k]);
    dw_write_format(w,
                    "], \"uncompressed_num_bytes\": %" PRIu64
                    ", \"compressed_num_bytes\": %" PRIu64
                    ", \"payload_file\": \"%s\", \"payload_key\": ",
                    pack->raw_bytes[i], pack->dims[i], file);
    dw_write_json_string(w, t->name);
    dw_write_format(w, ", \"checksum\": \"%s\", \"checksum_algorithm\": \"xxh3-128\"}",
                    pack->checksums[i]);
    d->n_raw_bytes += pack->raw_bytes[i];
    d->n_packed_bytes += pack->dims[i];
    return DW_OK;
}

static dw_status put_payload(directory *d, const dw_peer_changes *changes, size_t first,
                             size_t n, size_t number, dw_error *err)
{
    char file[NAME_SIZE], key[DW_PEER_KEY];
    snprintf(file, sizeof file, "delta-rank%05d-file%06zu.safetensors", 0, number);
    write_key(key, d->job, file);
    dw_peer_pack pack;
    dw_status status = dw_peer_pack_make(&pack, changes, first, n, &d->p->options, err);
    for (size_t i = 0; status == DW_OK && i < n; i++)
        status = list_tensor(d, &changes->next[first + i], &pack, i, file, err);
    dw_write_format(&d->files, "%s\"%s\"", number ? ", " : "", file);
    if (status == DW_OK)
        status =
            dw_peer_put_file(d->p, key, pack.frames, pack.n, NULL, 0, d->report, err);
    dw_peer_pack_release(&pack);
    return status;
}

static dw_status put_payloads(directory *d, dw_error *err)
{
    const uint64_t max = d->p->options.max_shard_bytes;
    dw_peer_changes changes;
    dw_status status =
        dw_peer_changes_find(&changes, d->job, d->p->options.n_threads, err);
    if (status != DW_OK)
        return status;
    d->report->n_changed = changes.n_elems;
    for (size_t at = 0, number = 0; status == DW_OK && at < changes.n; number++) {
        size_t n = dw_shard_fill(changes.next + at, changes.n - at, max);
        status = put_payload(d, &changes, at, n, number, err);
        at += n;
    }
    dw_peer_changes_release(&changes);
    return status;
}

static dw_status put_manifest(directory *d, const char *key, dw_error *err)
{
    dw_writer w = {0};
    dw_write_format(&w,
                    "{\n  \"version\": %" PRIu64 ",\n  \"base_version\": %" PRIu64
                    ",\n  \"tensors\": [",
                    d->job->version, d->job->base_version);
    if (d->tensors.n_bytes > 0)
        dw_write_bytes(&w, d->tensors.bytes, d->tensors.n_bytes);
    dw_write_format(&w,
                    "\n  ],\n  \"total_uncompressed_num_bytes\": %" PRIu64
                    ",\n  \"total_compressed_num_bytes\": %" PRIu64
                    ",\n  \"payload_files\": [",
                    d->n_raw_bytes, d->n_packed_bytes);
    if (d->files.n_bytes > 0)
        dw_write_bytes(&w, d->files.bytes, d->files.n_bytes);
    dw_write_text(&w, "]\n}\n");
    w.failed = w.failed || d->tensors.failed || d->files.failed;
    dw_status status = dw_peer_put_text(d->p, key, &w, d->report, err);
    dw_writer_release(&w);
    return status;
}

dw_status dw_publish_skyrl(dw_peer_publisher *p, const dw_peer_job *job,
                           dw_peer_publish_report *report, dw_error *err)
{
    char prefix[DW_PEER_KEY], manifest[DW_PEER_RECORDS][DW_PEER_KEY];
    directory d = {.p = p, .job = job, .report = report};
    write_key(prefix, job, "");
    dw_peer_record_keys(manifest, DW_PEER_SKYRL, job->version);
    dw_status status = dw_peer_clear(p, prefix, manifest[0], err);
    if (status == DW_OK)
        status = put_payloads(&d, err);
    if (status == DW_OK)
        status = put_manifest(&d, manifest[0], err);
    dw_writer_release(&d.tensors);
    dw_writer_release(&d.files);
    return status;
}
