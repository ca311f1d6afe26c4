/* Records are written by hand, member by member in the order of docs/PROTOCOL.md, and
 * read back before they are let out: so no writer can put a record that readers refuse.
 */
#include "stream/record.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "stream/record_files.h"
#include "stream/record_parts.h"
#include "stream/record_seal.h"

/* ---- members ---- */

static void put_number(dw_writer *out, const char *name, uint64_t number)
{
    dw_write_format(out, ",\"%s\":%" PRIu64, name, number);
}

static void put_version(dw_writer *out, const char *name, uint64_t version)
{
    if (version == DW_NO_VERSION)
        dw_write_format(out, ",\"%s\":null", name);
    else
        put_number(out, name, version);
}

static void put_suspect(dw_writer *out, uint64_t version)
{
    if (version > 0)
        put_number(out, "suspect_from", version);
}

static void put_text(dw_writer *out, const char *name, const char *text)
{
    dw_write_format(out, ",\"%s\":", name);
    dw_write_json_string(out, text ? text : "");
}

static void put_provenance(dw_writer *out, const dw_provenance *made_by)
{
    if (made_by->library[0])
        put_text(out, "library", made_by->library);
    if (made_by->host[0])
        put_text(out, "host", made_by->host);
}

/* HASH NULL: null. */
static void put_sha256(dw_writer *out, const char *name, const uint8_t *hash)
{
    char text[DW_SHA256_TEXT];
    if (hash)
        dw_hex_encode(text, hash, DW_SHA256_BYTES);
    if (hash)
        dw_write_format(out, ",\"%s\":\"%s\"", name, text);
    else
        dw_write_format(out, ",\"%s\":null", name);
}

static void put_digest(dw_writer *out, const char *name, dw_digest digest)
{
    dw_write_format(out, ",\"%s\":\"%016" PRIx64 "\"", name, digest);
}

static void put_objects(dw_writer *out, const dw_objects *objects)
{
    dw_write_text(out, ",\"objects\":");
    dw_write_objects(out, objects);
}

static void put_now(dw_writer *out, const char *name)
{
    char now[DW_TIME_TEXT];
    dw_time_format(now, dw_wall_clock_ms());
    put_text(out, name, now);
}

/* Fills TIME first if it is empty. */
static void put_created(dw_writer *out, char time[DW_TIME_ROOM])
{
    if (!time[0])
        dw_time_format(time, dw_wall_clock_ms());
    put_text(out, "created", time);
}

/* Members that are 0 are left out, and so is the object if all are. */
static void put_times(dw_writer *out, const dw_times *times,
                      const char *(*name)(unsigned moment))
{
    const char *before = ",\"times\":{";
    for (unsigned i = 0; i < DW_N_MOMENTS; i++) {
        if (times->us[i] == 0)
            continue;
        dw_write_format(out, "%s\"%s\":%" PRIu64, before, name(i), times->us[i]);
        before = ",";
    }
    if (before[0] == ',' && before[1] == '\0')
        dw_write_u8(out, '}');
}

/* ---- the end of each record ---- */

typedef dw_status (*check_fn)(const uint8_t *bytes, size_t n_bytes, dw_error *err);

/* A failure takes what was written back out of OUT. */
static dw_status finish(dw_writer *out, size_t start, dw_record_seal *seal,
                        const dw_sign_key *key, check_fn check, dw_error *err)
{
    dw_status status = dw_record_end(out, start, seal, key, err);
    if (status == DW_OK) {
        dw_error fault = {0};
        status = check(out->bytes + start, out->n_bytes - start, &fault);
        if (status == DW_NO_MEMORY)
            dw_fail_memory(err, NULL);
        else if (status != DW_OK)
            status = dw_fail(err, DW_INVALID, NULL,
                             "no reader would take this record: %s", fault.text);
    }
    if (status != DW_OK)
        out->n_bytes = start;
    return status;
}

#define DEFINE_CHECK(kind)                                                               \
    static dw_status check_##kind(const uint8_t *bytes, size_t n_bytes, dw_error *err)   \
    {                                                                                    \
        dw_##kind##_record record;                                                       \
        dw_status status = dw_##kind##_record_parse(&record, bytes, n_bytes, NULL, err); \
        if (status == DW_OK)                                                             \
            dw_##kind##_record_release(&record);                                         \
        return status;                                                                   \
    }

DEFINE_CHECK(stream)
DEFINE_CHECK(epoch)
DEFINE_CHECK(commit)
DEFINE_CHECK(shortcut)
DEFINE_CHECK(receipt)
DEFINE_CHECK(latest)
DEFINE_CHECK(follower)

static dw_status check_floor(const uint8_t *bytes, size_t n_bytes, dw_error *err)
{
    dw_floor_record record;
    return dw_floor_record_parse(&record, bytes, n_bytes, NULL, err);
}

/* ---- the records ---- */

static void write_quantized(dw_writer *out, const dw_quantized *q)
{
    if (q->scheme[0])
        dw_write_format(out, ",\"quantized\":{\"scheme\":\"%s\",\"rounded\":\"%s\"}",
                        q->scheme, q->rounded);
}

dw_status dw_stream_record_write(dw_writer *out, dw_stream_record *record,
                                 const dw_sign_key *key, dw_error *err)
{
    size_t start = out->n_bytes;
    dw_record_begin(out, "stream", record->stream);
    put_now(out, "created");
    put_text(out, "writers", record->single_writer ? "single" : "conditional");
    write_quantized(out, &record->quantized);
    dw_write_text(out, ",\"tensors\":");
    dw_write_tensors(out, record->tensors, record->n_tensors);
    return finish(out, start, &record->seal, key, check_stream, err);
}

dw_status dw_epoch_record_write(dw_writer *out, dw_epoch_record *record,
                                const dw_sign_key *key, dw_error *err)
{
    size_t start = out->n_bytes;
    dw_record_begin(out, "epoch", record->stream);
    put_number(out, "epoch", record->epoch);
    put_text(out, "writer", record->writer);
    put_text(out, "job", record->job);
    if (record->start)
        put_text(out, "start", record->start);
    put_now(out, "created");
    put_provenance(out, &record->made_by);
    if (record->process.pid != 0) {
        put_number(out, "pid", record->process.pid);
        put_number(out, "begun", record->process.begun);
        put_text(out, "machine", record->process.machine);
    }
    return finish(out, start, &record->seal, key, check_epoch, err);
}

static void put_content(dw_writer *out, const dw_commit_record *record)
{
    switch (record->content) {
    case DW_CONTENT_DELTA:
        put_text(out, "content", "delta");
        break;
    case DW_CONTENT_ANCHOR:
        put_text(out, "content", "anchor");
        break;
    case DW_CONTENT_BASE:
        put_text(out, "content", "base");
        put_text(out, "base", record->base);
        if (record->has_base_sha256)
            put_sha256(out, "base_sha256", record->base_sha256);
        break;
    case DW_CONTENT_FORK:
        put_text(out, "content", "fork");
        dw_write_text(out, ",\"fork\":{\"url\":");
        dw_write_json_string(out, record->fork.url ? record->fork.url : "");
        put_text(out, "stream", record->fork.stream);
        put_number(out, "version", record->fork.version);
        put_sha256(out, "commit_sha256", record->fork.commit_sha256);
        dw_write_u8(out, '}');
        break;
    }
}

dw_status dw_commit_record_write(dw_writer *out, dw_commit_record *record,
                                 const dw_sign_key *key, dw_error *err)
{
    size_t start = out->n_bytes;
    bool is_first = record->version == 0;
    dw_record_begin(out, "commit", record->stream);
    put_number(out, "version", record->version);
    put_version(out, "parent", is_first ? DW_NO_VERSION : record->version - 1);
    put_sha256(out, "parent_sha256", is_first ? NULL : record->parent_sha256);
    put_number(out, "epoch", record->epoch);
    put_text(out, "writer", record->writer);
    put_text(out, "write_id", record->write_id);
    put_created(out, record->created);
    put_provenance(out, &record->made_by);
    put_text(out, "step", record->step);
    put_text(out, "notes", record->notes);
    put_digest(out, "state", record->state);
    put_number(out, "changed", record->n_changed);
    put_suspect(out, record->suspect_from);
    put_times(out, &record->times, dw_publish_moment_name);
    put_content(out, record);
    if (record->restart)
        put_number(out, "restart", 1);
    if (record->source.stream[0]) {
        dw_write_format(out, ",\"source\":{\"stream\":\"%s\"", record->source.stream);
        put_number(out, "version", record->source.version);
        put_sha256(out, "commit_sha256", record->source.commit_sha256);
        dw_write_text(out, "}");
    }
    if (record->files.is_given) {
        dw_write_text(out, ",\"files\":");
        dw_write_files(out, &record->files);
    }
    put_objects(out, &record->objects);
    return finish(out, start, &record->seal, key, check_commit, err);
}

dw_status dw_shortcut_record_write(dw_writer *out, dw_shortcut_record *record,
                                   const dw_sign_key *key, dw_error *err)
{
    size_t start = out->n_bytes;
    bool is_anchor = record->from == DW_NO_VERSION;
    dw_record_begin(out, "way", record->stream);
    put_number(out, "version", record->version);
    put_version(out, "from", record->from);
    put_sha256(out, "commit_sha256", record->commit_sha256);
    put_sha256(out, "from_sha256", is_anchor ? NULL : record->from_sha256);
    put_digest(out, "state", record->state);
    put_created(out, record->created);
    put_objects(out, &record->objects);
    return finish(out, start, &record->seal, key, check_shortcut, err);
}

dw_status dw_receipt_record_write(dw_writer *out, dw_receipt_record *record,
                                  const dw_sign_key *key, dw_error *err)
{
    size_t start = out->n_bytes;
    dw_record_begin(out, "receipt", record->stream);
    put_number(out, "version", record->version);
    put_number(out, "epoch", record->epoch);
    put_text(out, "writer", record->writer);
    put_text(out, "process", record->process);
    put_number(out, "turn", record->turn);
    put_number(out, "attempt", record->attempt);
    put_number(out, "rank", record->rank);
    put_number(out, "n_ranks", record->n_ranks);
    put_text(out, "says", dw_receipt_words[record->says]);
    if (record->says == DW_SAYS_FAILED || record->says == DW_SAYS_LEFT)
        put_text(out, "reason", record->reason);
    if (record->says == DW_SAYS_PART) {
        put_digest(out, "share", record->share);
        put_number(out, "changed", record->n_changed);
        put_suspect(out, record->suspect_from);
        dw_write_text(out, ",\"covers\":");
        dw_write_covers(out, record->covers, record->n_covers);
        put_objects(out, &record->objects);
    }
    return finish(out, start, &record->seal, key, check_receipt, err);
}

dw_status dw_latest_record_write(dw_writer *out, const dw_latest_record *record,
                                 dw_error *err)
{
    size_t start = out->n_bytes;
    dw_record_begin(out, "latest", record->stream);
    put_number(out, "version", record->version);
    dw_write_text(out, ",\"edges\":[");
    for (size_t i = 0; i < record->n_edges; i++) {
        const dw_edge *e = &record->edges[i];
        dw_write_text(out, i ? ",[" : "[");
        if (e->from == DW_NO_VERSION)
            dw_write_text(out, "-1");
        else
            dw_write_format(out, "%" PRIu64, e->from);
        dw_write_format(out, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", e->to, e->n_bytes,
                        e->n_objects);
    }
    dw_write_u8(out, ']');
    return finish(out, start, NULL, NULL, check_latest, err);
}

dw_status dw_floor_record_write(dw_writer *out, const dw_floor_record *record,
                                dw_error *err)
{
    size_t start = out->n_bytes;
    dw_record_begin(out, "floor", record->stream);
    put_number(out, "version", record->version);
    return finish(out, start, NULL, NULL, check_floor, err);
}

dw_status dw_follower_record_write(dw_writer *out, const dw_follower_record *record,
                                   dw_error *err)
{
    size_t start = out->n_bytes;
    dw_record_begin(out, "follower", record->stream);
    put_text(out, "id", record->id);
    put_version(out, "version", record->version);
    put_text(out, "host", record->host);
    put_text(out, "status", record->status);
    put_text(out, "message", record->message);
    if (record->time[0])
        put_text(out, "time", record->time);
    else
        put_now(out, "time");
    put_times(out, &record->times, dw_follow_moment_name);
    return finish(out, start, NULL, NULL, check_follower, err);
}
