/* What each kind of record holds, in the order in which it is written, and the rules
 * between its members. */
#include <inttypes.h>

#include "base/mem.h"
#include "stream/record_files.h"
#include "stream/record_parts.h"

#define END                                                                              \
    {                                                                                    \
        0                                                                                \
    }
#define PROVENANCE(type)                                                                 \
    DW_MEMBER(type, made_by.library, "library", CLEANED, .is_optional = true),           \
        DW_MEMBER(type, made_by.host, "host", CLEANED, .is_optional = true)

/* Optional: a version below the record's. */
static void check_suspect(dw_fields *f, uint64_t from, uint64_t version)
{
    if (from > 0 && from >= version)
        dw_fields_fail(f, DW_CORRUPT, "suspect_from", "is not a version before this one");
}

/* ---- times ----
 * A moment that is 0 is not known, and is left out. */

typedef const char *(*moment_name_fn)(unsigned moment);

static void read_times(dw_fields *f, const char *member, dw_times *out,
                       moment_name_fn name)
{
    dw_fields times;
    if (!dw_field_object(&times, f, member))
        return;
    for (unsigned i = 0; times.status == DW_OK && i < DW_N_MOMENTS; i++)
        if (dw_json_get(times.object, name(i)))
            out->us[i] = dw_field_number(&times, name(i));
    f->status = times.status;
}

static void write_times(dw_writer *out, const dw_times *times, moment_name_fn name)
{
    const char *before = "{";
    for (unsigned i = 0; i < DW_N_MOMENTS; i++) {
        if (times->us[i] == 0)
            continue;
        dw_write_format(out, "%s\"%s\":%" PRIu64, before, name(i), times->us[i]);
        before = ",";
    }
    dw_write_u8(out, '}');
}

static bool has_times(const void *times)
{
    static const dw_times none;
    return memcmp(times, &none, sizeof none) != 0;
}

#define DEFINE_TIMES(name)                                                               \
    static void read_##name##_times(dw_fields *f, const char *member, void *times)       \
    {                                                                                    \
        read_times(f, member, times, dw_##name##_moment_name);                           \
    }                                                                                    \
    static void write_##name##_times(dw_writer *out, const void *times)                  \
    {                                                                                    \
        write_times(out, times, dw_##name##_moment_name);                                \
    }                                                                                    \
    static const dw_member_own name##_times = {read_##name##_times,                      \
                                               write_##name##_times, NULL, has_times}

DEFINE_TIMES(publish);
DEFINE_TIMES(follow);

/* ---- stream ---- */

static const char label_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
static const char *const writers_words[] = {"conditional", "single", NULL};

static const dw_member quantized[] = {
    DW_MEMBER(dw_quantized, scheme, "scheme", LABEL, .of = label_letters),
    DW_MEMBER(dw_quantized, rounded, "rounded", LABEL, .of = label_letters),
    END,
};

static const dw_member stream[] = {
    DW_MEMBER(dw_stream_record, created, "created", TIME),
    DW_MEMBER(dw_stream_record, single_writer, "writers", WORD, .of = writers_words),
    DW_MEMBER(dw_stream_record, quantized, "quantized", OBJECT, .of = quantized,
              .is_optional = true),
    DW_MEMBER_WHOLE("tensors", .of = &dw_tensors_member),
    END,
};

/* ---- epoch ---- */

static bool has_process(const void *record)
{
    return ((const dw_epoch_record *)record)->process.pid != 0;
}

static const dw_member epoch[] = {
    DW_MEMBER(dw_epoch_record, epoch, "epoch", NUMBER),
    DW_MEMBER(dw_epoch_record, writer, "writer", ID),
    DW_MEMBER(dw_epoch_record, job, "job", TEXT),
    DW_MEMBER(dw_epoch_record, start, "start", TEXT, .is_optional = true),
    DW_MEMBER(dw_epoch_record, created, "created", TIME),
    PROVENANCE(dw_epoch_record),
    DW_MEMBER(dw_epoch_record, process.pid, "pid", NUMBER, .is_optional = true),
    DW_MEMBER(dw_epoch_record, process.begun, "begun", NUMBER, .applies = has_process),
    DW_MEMBER(dw_epoch_record, process.machine, "machine", CLEANED,
              .applies = has_process),
    END,
};

/* ---- commit ---- */

static const char *const content_words[] = {
    [DW_CONTENT_DELTA] = "delta",
    [DW_CONTENT_ANCHOR] = "anchor",
    [DW_CONTENT_BASE] = "base",
    [DW_CONTENT_FORK] = "fork",
    NULL,
};

static bool has_parent(const void *record)
{
    return ((const dw_commit_record *)record)->version > 0;
}

static bool is_base(const void *record)
{
    return ((const dw_commit_record *)record)->content == DW_CONTENT_BASE;
}

static bool is_fork(const void *record)
{
    return ((const dw_commit_record *)record)->content == DW_CONTENT_FORK;
}

/* It is the version before, so the struct has no place for it. */
static void read_parent(dw_fields *f, const char *name, void *version)
{
    if (dw_field_number(f, name) != *(const uint64_t *)version - 1)
        dw_fields_fail(f, DW_CORRUPT, name, "is not the version before");
}

static void write_parent(dw_writer *out, const void *version)
{
    dw_write_format(out, "%" PRIu64, *(const uint64_t *)version - 1);
}

static const dw_member_own parent_member = {.read = read_parent, .write = write_parent};

static const dw_member fork_members[] = {
    DW_MEMBER(dw_fork, url, "url", TEXT),
    DW_MEMBER(dw_fork, stream, "stream", ID),
    DW_MEMBER(dw_fork, version, "version", NUMBER),
    DW_MEMBER(dw_fork, commit_sha256, "commit_sha256", SHA256),
    END,
};

static const dw_member origin[] = {
    DW_MEMBER(dw_origin, stream, "stream", ID),
    DW_MEMBER(dw_origin, version, "version", NUMBER),
    DW_MEMBER(dw_origin, commit_sha256, "commit_sha256", SHA256),
    END,
};

static const dw_member commit[] = {
    DW_MEMBER(dw_commit_record, version, "version", NUMBER),
    DW_MEMBER(dw_commit_record, version, "parent", OWN, .of = &parent_member,
              .applies = has_parent, .or_null = true),
    DW_MEMBER(dw_commit_record, parent_sha256, "parent_sha256", SHA256,
              .applies = has_parent, .or_null = true),
    DW_MEMBER(dw_commit_record, epoch, "epoch", NUMBER),
    DW_MEMBER(dw_commit_record, writer, "writer", ID),
    DW_MEMBER(dw_commit_record, write_id, "write_id", ID),
    DW_MEMBER(dw_commit_record, created, "created", TIME),
    PROVENANCE(dw_commit_record),
    DW_MEMBER(dw_commit_record, step, "step", TEXT),
    DW_MEMBER(dw_commit_record, notes, "notes", TEXT),
    DW_MEMBER(dw_commit_record, state, "state", DIGEST),
    DW_MEMBER(dw_commit_record, n_changed, "changed", NUMBER),
    DW_MEMBER(dw_commit_record, suspect_from, "suspect_from", NUMBER,
              .is_optional = true),
    DW_MEMBER(dw_commit_record, times, "times", OWN, .of = &publish_times,
              .is_optional = true),
    DW_MEMBER(dw_commit_record, content, "content", WORD, .of = content_words),
    DW_MEMBER(dw_commit_record, base, "base", TEXT, .applies = is_base),
    DW_MEMBER(dw_commit_record, base_sha256, "base_sha256", SHA256, .applies = is_base,
              .is_optional = true),
    DW_MEMBER(dw_commit_record, fork, "fork", OBJECT, .of = fork_members,
              .applies = is_fork),
    DW_MEMBER(dw_commit_record, restart, "restart", TRUE, .is_optional = true),
    DW_MEMBER(dw_commit_record, source, "source", OBJECT, .of = origin,
              .is_optional = true),
    DW_MEMBER(dw_commit_record, files, "files", OWN, .of = &dw_files_member,
              .is_optional = true),
    DW_MEMBER(dw_commit_record, objects, "objects", OWN, .of = &dw_objects_member),
    END,
};

static void check_commit(dw_fields *f, const void *holder)
{
    const dw_commit_record *record = holder;
    const dw_content content = record->content;
    const size_t n = record->objects.n;
    const bool has_none =
        content == DW_CONTENT_BASE || content == DW_CONTENT_FORK || record->restart;
    check_suspect(f, record->suspect_from, record->version);
    if ((record->version == 0) == (content == DW_CONTENT_DELTA))
        dw_fields_fail(
            f, DW_CORRUPT, "content", "is '%s', which %s", content_words[content],
            record->version == 0 ? "needs a version before" : "is for version 0");
    /* only its anchor leads to it */
    if (record->restart && content != DW_CONTENT_DELTA)
        dw_fields_fail(f, DW_CORRUPT, "restart", "does not belong to this content");
    if (has_none && n > 0)
        dw_fields_fail(f, DW_CORRUPT, "objects", "is not empty, as this content has it");
    if (n == 0 && content == DW_CONTENT_ANCHOR)
        dw_fields_fail(f, DW_CORRUPT, "objects", "is empty, but this is an anchor");
    if (n == 0 && content == DW_CONTENT_DELTA && record->n_changed > 0)
        dw_fields_fail(f, DW_CORRUPT, "objects", "is empty, but elements changed");
}

/* ---- shortcut ---- */

static bool is_fold(const void *record)
{
    return ((const dw_shortcut_record *)record)->from != DW_NO_VERSION;
}

static const dw_member shortcut[] = {
    DW_MEMBER(dw_shortcut_record, version, "version", NUMBER),
    DW_MEMBER(dw_shortcut_record, from, "from", VERSION),
    DW_MEMBER(dw_shortcut_record, commit_sha256, "commit_sha256", SHA256),
    DW_MEMBER(dw_shortcut_record, from_sha256, "from_sha256", SHA256, .applies = is_fold,
              .or_null = true),
    DW_MEMBER(dw_shortcut_record, state, "state", DIGEST),
    DW_MEMBER(dw_shortcut_record, created, "created", TIME),
    DW_MEMBER(dw_shortcut_record, objects, "objects", OWN, .of = &dw_objects_member),
    END,
};

static void check_shortcut(dw_fields *f, const void *holder)
{
    const dw_shortcut_record *record = holder;
    if (is_fold(record) && record->from >= record->version)
        dw_fields_fail(f, DW_CORRUPT, "from", "is not below the version");
    if (!is_fold(record) && record->objects.n == 0)
        dw_fields_fail(f, DW_CORRUPT, "objects", "is empty, but this is an anchor");
}

/* ---- receipt ---- */

static const char *const receipt_words[] = {
    [DW_SAYS_PART] = "part",
    [DW_SAYS_BEGUN] = "begun",
    [DW_SAYS_FAILED] = "failed",
    [DW_SAYS_LEFT] = "left",
    NULL,
};

static bool has_reason(const void *record)
{
    const dw_receipt_says says = ((const dw_receipt_record *)record)->says;
    return says == DW_SAYS_FAILED || says == DW_SAYS_LEFT;
}

static bool is_part(const void *record)
{
    return ((const dw_receipt_record *)record)->says == DW_SAYS_PART;
}

static void read_owned(dw_fields *f, const char *name, void *holder)
{
    dw_receipt_record *record = holder;
    dw_field_covers(f, &record->covers, &record->n_covers, name);
}

static void write_owned(dw_writer *out, const void *holder)
{
    const dw_receipt_record *record = holder;
    dw_write_covers(out, record->covers, record->n_covers);
}

static void release_owned(void *holder)
{
    dw_free(((dw_receipt_record *)holder)->covers);
}

static const dw_member_own owned_member = {read_owned, write_owned, release_owned, NULL};

static const dw_member receipt[] = {
    DW_MEMBER(dw_receipt_record, version, "version", NUMBER),
    DW_MEMBER(dw_receipt_record, epoch, "epoch", NUMBER),
    DW_MEMBER(dw_receipt_record, writer, "writer", ID),
    DW_MEMBER(dw_receipt_record, process, "process", ID),
    DW_MEMBER(dw_receipt_record, turn, "turn", NUMBER),
    DW_MEMBER(dw_receipt_record, attempt, "attempt", NUMBER),
    DW_MEMBER(dw_receipt_record, rank, "rank", RANK),
    DW_MEMBER(dw_receipt_record, n_ranks, "n_ranks", RANK),
    DW_MEMBER(dw_receipt_record, says, "says", WORD, .of = receipt_words),
    DW_MEMBER(dw_receipt_record, reason, "reason", TEXT, .applies = has_reason),
    DW_MEMBER(dw_receipt_record, share, "share", DIGEST, .applies = is_part),
    DW_MEMBER(dw_receipt_record, n_changed, "changed", NUMBER, .applies = is_part),
    DW_MEMBER(dw_receipt_record, suspect_from, "suspect_from", NUMBER, .applies = is_part,
              .is_optional = true),
    DW_MEMBER_WHOLE("covers", .of = &owned_member, .applies = is_part),
    DW_MEMBER(dw_receipt_record, objects, "objects", OWN, .of = &dw_objects_member,
              .applies = is_part),
    END,
};

static void check_receipt(dw_fields *f, const void *holder)
{
    const dw_receipt_record *record = holder;
    if (record->rank >= record->n_ranks)
        dw_fields_fail(f, DW_CORRUPT, "rank", "is not below 'n_ranks'");
    check_suspect(f, record->suspect_from, record->version);
}

/* ---- latest ---- */

static bool read_edge(dw_edge *out, const dw_json *entry)
{
    int64_t numbers[4];
    size_t n = 0;
    if (!dw_json_is_array(entry))
        return false;
    for (const dw_json *it = dw_json_first(entry); it; it = dw_json_next(entry, it)) {
        int64_t least = n == 0 ? -1 : 0;
        if (n == 4 || !dw_json_integer(it, &numbers[n]) || numbers[n] < least ||
            numbers[n] >= (int64_t)DW_NUMBER_END)
            return false;
        n++;
    }
    if (n != 4)
        return false;
    bool is_anchor = numbers[0] == -1;
    out->from = is_anchor ? DW_NO_VERSION : (uint64_t)numbers[0];
    out->to = (uint64_t)numbers[1];
    out->n_bytes = (uint64_t)numbers[2];
    out->n_objects = (uint64_t)numbers[3];
    return is_anchor || out->from < out->to;
}

static void read_edges(dw_fields *f, const char *name, void *holder)
{
    dw_latest_record *out = holder;
    const dw_json *edges = dw_field_list(f, name, DW_MAX_EDGES, &out->n_edges);
    out->edges = edges ? dw_alloc_array(out->n_edges, sizeof *out->edges) : NULL;
    if (!out->edges)
        dw_fields_fail_memory(f);
    const dw_json *item = dw_json_first(edges);
    for (size_t i = 0; item && f->status == DW_OK; i++, item = dw_json_next(edges, item))
        if (!read_edge(&out->edges[i], item) || out->edges[i].to > out->version)
            dw_fields_fail(f, DW_CORRUPT, name,
                           "has at %zu no [from, to, bytes, objects] with from < to <= "
                           "version",
                           i);
}

static void write_edges(dw_writer *out, const void *holder)
{
    const dw_latest_record *record = holder;
    dw_write_u8(out, '[');
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
}

static void release_edges(void *holder)
{
    dw_free(((dw_latest_record *)holder)->edges);
}

static const dw_member_own edges_member = {read_edges, write_edges, release_edges, NULL};

static const dw_member latest[] = {
    DW_MEMBER(dw_latest_record, version, "version", NUMBER),
    DW_MEMBER_WHOLE("edges", .of = &edges_member),
    END,
};

/* ---- floor, follower ---- */

static const dw_member floor_[] = {
    DW_MEMBER(dw_floor_record, version, "version", NUMBER),
    END,
};

static const char status_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-_";

static const dw_member follower[] = {
    DW_MEMBER(dw_follower_record, id, "id", LABEL),
    DW_MEMBER(dw_follower_record, version, "version", VERSION),
    DW_MEMBER(dw_follower_record, host, "host", TEXT),
    DW_MEMBER(dw_follower_record, status, "status", TEXT, .of = status_letters),
    DW_MEMBER(dw_follower_record, message, "message", TEXT),
    DW_MEMBER(dw_follower_record, time, "time", TIME),
    DW_MEMBER(dw_follower_record, times, "times", OWN, .of = &follow_times,
              .is_optional = true),
    END,
};

static void check_follower(dw_fields *f, const void *holder)
{
    const dw_follower_record *record = holder;
    if (!dw_follower_id_valid(record->id))
        dw_fields_fail(f, DW_CORRUPT, "id",
                       "is not 1 to 64 of A-Z a-z 0-9 _ . -, no dot first");
}

/* ---- all ---- */

#define DEFINE(kind)                                                                     \
    dw_status dw_##kind##_record_parse(dw_##kind##_record *out, const void *bytes,       \
                                       size_t n, const char *where, dw_error *err)       \
    {                                                                                    \
        return dw_record_parse(&kind##_type, out, bytes, n, where, err);                 \
    }                                                                                    \
    void dw_##kind##_record_release(dw_##kind##_record *record)                          \
    {                                                                                    \
        dw_record_release(&kind##_type, record);                                         \
    }

#define DEFINE_SIGNED(kind, name, members, max, check)                                   \
    static const dw_record_type kind##_type = {name,                                     \
                                               sizeof(dw_##kind##_record),               \
                                               offsetof(dw_##kind##_record, seal),       \
                                               max,                                      \
                                               members,                                  \
                                               check};                                   \
    DEFINE(kind)                                                                         \
    dw_status dw_##kind##_record_write(dw_writer *out, dw_##kind##_record *record,       \
                                       const dw_sign_key *key, dw_error *err)            \
    {                                                                                    \
        return dw_record_write(&kind##_type, out, record, key, err);                     \
    }

/* Never signed, for nothing depends on it. */
#define DEFINE_HINT(kind, members, max, check)                                           \
    static const dw_record_type kind##_type = {                                          \
        #kind, sizeof(dw_##kind##_record), 0, max, members, check};                      \
    DEFINE(kind)                                                                         \
    dw_status dw_##kind##_record_write(dw_writer *out, dw_##kind##_record *record,       \
                                       dw_error *err)                                    \
    {                                                                                    \
        return dw_record_write(&kind##_type, out, record, NULL, err);                    \
    }

DEFINE_SIGNED(stream, "stream", stream, DW_RECORD_BYTES, NULL)
DEFINE_SIGNED(epoch, "epoch", epoch, DW_SMALL_BYTES, NULL)
DEFINE_SIGNED(commit, "commit", commit, DW_RECORD_BYTES, check_commit)
DEFINE_SIGNED(shortcut, "way", shortcut, DW_RECORD_BYTES, check_shortcut)
DEFINE_SIGNED(receipt, "receipt", receipt, DW_RECORD_BYTES, check_receipt)
DEFINE_HINT(latest, latest, DW_LATEST_BYTES, NULL)
DEFINE_HINT(floor, floor_, DW_SMALL_BYTES, NULL)
DEFINE_HINT(follower, follower, DW_SMALL_BYTES, check_follower)
