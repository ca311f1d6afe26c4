/* Parsing what is signed: stream, epoch, commit, shortcut, receipt. */
#include "stream/record.h"

#include "base/mem.h"
#include "stream/record_files.h"
#include "stream/record_parts.h"
#include "stream/record_seal.h"

/* Refuses a record that has member NAME. */
static void refuse(dw_fields *f, const char *name, const char *content)
{
    if (f->status == DW_OK && dw_json_get(f->object, name))
        dw_fields_fail(f, DW_CORRUPT, name, "does not belong to content '%s'", content);
}

/* An optional member, cleaned; "" if it is missing. */
static void read_cleaned(dw_fields *f, char *out, size_t size, const char *name)
{
    if (f->status == DW_OK && dw_json_get(f->object, name))
        dw_text_clean(out, size, dw_field_text(f, name, DW_MAX_NOTE));
}

static void read_provenance(dw_fields *f, dw_provenance *out)
{
    read_cleaned(f, out->library, sizeof out->library, "library");
    read_cleaned(f, out->host, sizeof out->host, "host");
}

/* ---- stream ---- */

/* A word of a-z, 0-9 and '-'. */
static void read_word(dw_fields *f, char out[DW_QUANTIZED_TEXT], const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    const char *text = dw_field_text(f, name, DW_QUANTIZED_TEXT - 1);
    if (f->status == DW_OK && (!*text || text[strspn(text, letters)]))
        dw_fields_fail(f, DW_CORRUPT, name, "is not a word of a-z, 0-9 and '-'");
    if (f->status == DW_OK)
        memcpy(out, text, strlen(text) + 1);
}

/* Optional. */
static void read_quantized(dw_fields *f, dw_quantized *out)
{
    if (f->status != DW_OK || !dw_json_get(f->object, "quantized"))
        return;
    dw_fields q = *f;
    q.object = dw_field_object(f, "quantized");
    q.path = "quantized.";
    q.status = f->status;
    read_word(&q, out->scheme, "scheme");
    read_word(&q, out->rounded, "rounded");
    f->status = q.status;
}

dw_status dw_stream_record_parse(dw_stream_record *out, const void *bytes, size_t n,
                                 const char *where, dw_error *err)
{
    *out = (dw_stream_record){0};
    dw_fields f;
    dw_status status = dw_record_open(&f, out->stream, &out->seal, "stream",
                                      DW_RECORD_BYTES, bytes, n, where, err);
    if (status != DW_OK)
        return status;
    char created[DW_TIME_ROOM];
    dw_field_time(&f, created, "created");
    const char *writers = dw_field_text(&f, "writers", 32);
    out->single_writer = strcmp(writers, "single") == 0;
    if (!out->single_writer && strcmp(writers, "conditional") != 0)
        dw_fields_fail(&f, DW_CORRUPT, "writers",
                       "is neither 'conditional' nor 'single'");
    read_quantized(&f, &out->quantized);
    dw_field_tensors(&f, out);
    dw_fields_release(&f);
    if (f.status != DW_OK)
        dw_stream_record_release(out);
    return f.status;
}

void dw_stream_record_release(dw_stream_record *record)
{
    dw_free(record->tensors);
    dw_free(record->arena);
    *record = (dw_stream_record){0};
}

/* ---- epoch ---- */

/* Optional. */
static void read_process(dw_fields *f, dw_process *out)
{
    if (f->status != DW_OK || !dw_json_get(f->object, "pid"))
        return;
    out->pid = dw_field_number(f, "pid");
    out->begun = dw_field_number(f, "begun");
    read_cleaned(f, out->machine, sizeof out->machine, "machine");
}

dw_status dw_epoch_record_parse(dw_epoch_record *out, const void *bytes, size_t n,
                                const char *where, dw_error *err)
{
    *out = (dw_epoch_record){0};
    dw_fields f;
    dw_status status = dw_record_open(&f, out->stream, &out->seal, "epoch",
                                      DW_SMALL_BYTES, bytes, n, where, err);
    if (status != DW_OK)
        return status;
    out->epoch = dw_field_number(&f, "epoch");
    dw_field_id(&f, out->writer, "writer");
    out->job = dw_field_note(&f, "job");
    if (f.status == DW_OK && dw_json_get(f.object, "start"))
        out->start = dw_field_note(&f, "start");
    dw_field_time(&f, out->created, "created");
    read_provenance(&f, &out->made_by);
    read_process(&f, &out->process);
    dw_fields_release(&f);
    if (f.status != DW_OK)
        dw_epoch_record_release(out);
    return f.status;
}

void dw_epoch_record_release(dw_epoch_record *record)
{
    dw_free(record->job);
    dw_free(record->start);
    *record = (dw_epoch_record){0};
}

/* ---- commit ---- */

/* An optional member: a version below the record's, or 0. */
static uint64_t read_suspect(dw_fields *f, uint64_t version)
{
    if (f->status != DW_OK || !dw_json_get(f->object, "suspect_from"))
        return 0;
    const uint64_t from = dw_field_number(f, "suspect_from");
    if (f->status == DW_OK && (from == 0 || from >= version))
        dw_fields_fail(f, DW_CORRUPT, "suspect_from", "is not a version before this one");
    return from;
}

static void read_parent(dw_fields *f, dw_commit_record *out)
{
    if (f->status == DW_OK && out->version == 0) {
        dw_field_null(f, "parent");
        dw_field_null(f, "parent_sha256");
        return;
    }
    uint64_t parent = dw_field_number(f, "parent");
    if (f->status == DW_OK && parent != out->version - 1)
        dw_fields_fail(f, DW_CORRUPT, "parent", "is not the version before");
    dw_field_sha256(f, out->parent_sha256, "parent_sha256");
}

static void read_fork(dw_fields *f, dw_fork *out)
{
    dw_fields fork = *f;
    fork.object = dw_field_object(f, "fork");
    fork.path = "fork.";
    fork.status = f->status;
    out->url = dw_field_note(&fork, "url");
    dw_field_id(&fork, out->stream, "stream");
    out->version = dw_field_number(&fork, "version");
    dw_field_sha256(&fork, out->commit_sha256, "commit_sha256");
    f->status = fork.status;
}

static void read_base(dw_fields *f, dw_commit_record *out)
{
    out->base = dw_field_note(f, "base");
    out->has_base_sha256 =
        f->status == DW_OK && dw_json_get(f->object, "base_sha256") != NULL;
    if (out->has_base_sha256)
        dw_field_sha256(f, out->base_sha256, "base_sha256");
}

static void read_content(dw_fields *f, dw_commit_record *out)
{
    static const char *const names[] = {
        [DW_CONTENT_DELTA] = "delta",
        [DW_CONTENT_ANCHOR] = "anchor",
        [DW_CONTENT_BASE] = "base",
        [DW_CONTENT_FORK] = "fork",
    };
    enum { n_names = sizeof names / sizeof *names };
    const char *name = dw_field_text(f, "content", 32);
    unsigned content = 0;
    while (content < n_names && strcmp(names[content], name) != 0)
        content++;
    if (content == n_names)
        dw_fields_fail(f, DW_CORRUPT, "content",
                       "is none of 'delta', 'anchor', 'base', 'fork'");
    else if ((out->version == 0) == (content == DW_CONTENT_DELTA))
        dw_fields_fail(f, DW_CORRUPT, "content", "is '%s', which %s", name,
                       out->version == 0 ? "needs a version before" : "is for version 0");
    if (f->status != DW_OK)
        return;
    out->content = (dw_content)content;
    if (out->content == DW_CONTENT_BASE)
        read_base(f, out);
    else
        refuse(f, "base", name);
    if (out->content == DW_CONTENT_FORK)
        read_fork(f, &out->fork);
    else
        refuse(f, "fork", name);
}

/* A restart is a delta without objects: only its anchor leads to it. */
static void read_restart(dw_fields *f, dw_commit_record *out)
{
    if (f->status != DW_OK || !dw_json_get(f->object, "restart"))
        return;
    out->restart = true;
    if (dw_field_number(f, "restart") != 1)
        dw_fields_fail(f, DW_CORRUPT, "restart", "is not 1");
    if (out->content != DW_CONTENT_DELTA)
        dw_fields_fail(f, DW_CORRUPT, "restart", "does not belong to this content");
}

/* Optional. */
static void read_source(dw_fields *f, dw_origin *out)
{
    if (f->status != DW_OK || !dw_json_get(f->object, "source"))
        return;
    dw_fields source = *f;
    source.object = dw_field_object(f, "source");
    source.path = "source.";
    source.status = f->status;
    dw_field_id(&source, out->stream, "stream");
    out->version = dw_field_number(&source, "version");
    dw_field_sha256(&source, out->commit_sha256, "commit_sha256");
    f->status = source.status;
}

static void check_objects(dw_fields *f, const dw_commit_record *record)
{
    bool has_none = record->content == DW_CONTENT_BASE ||
                    record->content == DW_CONTENT_FORK || record->restart;
    size_t n = record->objects.n;
    if (has_none && n > 0)
        dw_fields_fail(f, DW_CORRUPT, "objects", "is not empty, as this content has it");
    if (n == 0 && record->content == DW_CONTENT_ANCHOR)
        dw_fields_fail(f, DW_CORRUPT, "objects", "is empty, but this is an anchor");
    if (n == 0 && record->content == DW_CONTENT_DELTA && record->n_changed > 0)
        dw_fields_fail(f, DW_CORRUPT, "objects", "is empty, but elements changed");
}

dw_status dw_commit_record_parse(dw_commit_record *out, const void *bytes, size_t n,
                                 const char *where, dw_error *err)
{
    *out = (dw_commit_record){0};
    dw_fields f;
    dw_status status = dw_record_open(&f, out->stream, &out->seal, "commit",
                                      DW_RECORD_BYTES, bytes, n, where, err);
    if (status != DW_OK)
        return status;
    out->version = dw_field_number(&f, "version");
    read_parent(&f, out);
    out->epoch = dw_field_number(&f, "epoch");
    dw_field_id(&f, out->writer, "writer");
    dw_field_id(&f, out->write_id, "write_id");
    dw_field_time(&f, out->created, "created");
    read_provenance(&f, &out->made_by);
    out->step = dw_field_note(&f, "step");
    out->notes = dw_field_note(&f, "notes");
    out->state = dw_field_digest(&f, "state");
    out->n_changed = dw_field_number(&f, "changed");
    out->suspect_from = read_suspect(&f, out->version);
    dw_field_times(&f, &out->times, dw_publish_moment_name);
    read_content(&f, out);
    read_restart(&f, out);
    read_source(&f, &out->source);
    dw_field_files(&f, &out->files);
    dw_field_objects(&f, &out->objects);
    check_objects(&f, out);
    dw_fields_release(&f);
    if (f.status != DW_OK)
        dw_commit_record_release(out);
    return f.status;
}

void dw_commit_record_release(dw_commit_record *record)
{
    dw_free(record->step);
    dw_free(record->notes);
    dw_free(record->base);
    dw_free(record->fork.url);
    dw_file_list_release(&record->files);
    dw_objects_release(&record->objects);
    *record = (dw_commit_record){0};
}

/* ---- shortcut ---- */

dw_status dw_shortcut_record_parse(dw_shortcut_record *out, const void *bytes, size_t n,
                                   const char *where, dw_error *err)
{
    *out = (dw_shortcut_record){0};
    dw_fields f;
    dw_status status = dw_record_open(&f, out->stream, &out->seal, "way", DW_RECORD_BYTES,
                                      bytes, n, where, err);
    if (status != DW_OK)
        return status;
    out->version = dw_field_number(&f, "version");
    out->from = dw_field_version(&f, "from");
    bool is_anchor = out->from == DW_NO_VERSION;
    if (!is_anchor && out->from >= out->version)
        dw_fields_fail(&f, DW_CORRUPT, "from", "is not below the version");
    dw_field_sha256(&f, out->commit_sha256, "commit_sha256");
    if (is_anchor)
        dw_field_null(&f, "from_sha256");
    else
        dw_field_sha256(&f, out->from_sha256, "from_sha256");
    out->state = dw_field_digest(&f, "state");
    dw_field_time(&f, out->created, "created");
    dw_field_objects(&f, &out->objects);
    if (is_anchor && out->objects.n == 0)
        dw_fields_fail(&f, DW_CORRUPT, "objects", "is empty, but this is an anchor");
    dw_fields_release(&f);
    if (f.status != DW_OK)
        dw_shortcut_record_release(out);
    return f.status;
}

void dw_shortcut_record_release(dw_shortcut_record *record)
{
    dw_objects_release(&record->objects);
    *record = (dw_shortcut_record){0};
}

/* ---- receipt ---- */

const char *const dw_receipt_words[] = {"part", "begun", "failed", "left", NULL};

static dw_receipt_says read_says(dw_fields *f)
{
    const char *word = dw_field_text(f, "says", 32);
    for (unsigned i = 0; f->status == DW_OK && dw_receipt_words[i]; i++)
        if (strcmp(word, dw_receipt_words[i]) == 0)
            return (dw_receipt_says)i;
    if (f->status == DW_OK)
        dw_fields_fail(f, DW_CORRUPT, "says", "is none of part, begun, failed, left");
    return DW_SAYS_BEGUN;
}

dw_status dw_receipt_record_parse(dw_receipt_record *out, const void *bytes, size_t n,
                                  const char *where, dw_error *err)
{
    *out = (dw_receipt_record){0};
    dw_fields f;
    dw_status status = dw_record_open(&f, out->stream, &out->seal, "receipt",
                                      DW_RECORD_BYTES, bytes, n, where, err);
    if (status != DW_OK)
        return status;
    out->version = dw_field_number(&f, "version");
    out->epoch = dw_field_number(&f, "epoch");
    dw_field_id(&f, out->writer, "writer");
    dw_field_id(&f, out->process, "process");
    out->turn = dw_field_number(&f, "turn");
    out->attempt = dw_field_number(&f, "attempt");
    dw_field_rank(&f, &out->rank, &out->n_ranks);
    out->says = read_says(&f);
    if (out->says == DW_SAYS_FAILED || out->says == DW_SAYS_LEFT)
        out->reason = dw_field_note(&f, "reason");
    if (out->says == DW_SAYS_PART) {
        out->share = dw_field_digest(&f, "share");
        out->n_changed = dw_field_number(&f, "changed");
        out->suspect_from = read_suspect(&f, out->version);
        dw_field_covers(&f, &out->covers, &out->n_covers, "covers");
        dw_field_objects(&f, &out->objects);
    }
    dw_fields_release(&f);
    if (f.status != DW_OK)
        dw_receipt_record_release(out);
    return f.status;
}

void dw_receipt_record_release(dw_receipt_record *record)
{
    dw_free(record->reason);
    dw_free(record->covers);
    dw_objects_release(&record->objects);
    *record = (dw_receipt_record){0};
}
